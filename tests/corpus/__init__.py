"""A replay corpus: what the middleware does with some thousands of requests, byte for byte.

Who changes the way of a request replays it: `test_corpus.py` compares every answer, everything that reached the wrapped
application, and every fact, log level and span with `recorded/`. An intended change of the wire is recorded anew with
`python -m tests.corpus --write`, and reviewed as a diff of those files.
"""
