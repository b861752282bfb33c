"""Sessions that live in one process, served by any worker: each request reaches the worker that owns its session.

`frames` connects workers, `workers` finds them, `ownership` says which one owns a session, `relay` carries a request,
and `affinity` puts these together. Taking over the session of a worker that is gone is the bridge's
(`_dialects/takeover.py`), since it has to speak to the wrapped server.
"""
