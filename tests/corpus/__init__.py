"""A replay corpus: what the middleware does with thousands of requests, byte for byte.

`test_corpus.py` compares every answer, everything that reached the wrapped application, and every fact, log level and
span with `recorded/`. Record an intended change of the wire with `python -m tests.corpus --write`, and review the diff
of those files.
"""
