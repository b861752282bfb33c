"""Dialects: further ways for clients to identify a session, for `MCPSessionMiddleware(dialects=[...])`.

`SEP1364Create()` and `SEP1364Initialize()` are the two alternatives of SEP-1364. A dialect of your own is a subclass of
`Dialect`, whose hooks all have defaults: usually it overrides `find`, which returns a `Credential`.
"""

from ._dialects.base import Answers, Credential, Dialect, NoCredential, Request
from ._dialects.sep1364 import SEP1364Create, SEP1364Initialize
from ._server.changes import SaveState
from ._server.response import Change

__all__ = [
    "Answers",
    "Change",
    "Credential",
    "Dialect",
    "NoCredential",
    "Request",
    "SEP1364Create",
    "SEP1364Initialize",
    "SaveState",
]
