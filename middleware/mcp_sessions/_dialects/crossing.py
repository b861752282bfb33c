"""How one request crosses the bridge: kept in its `notes` between the hooks of the dialect."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from .._session.claims import RedactedRepr

CROSSING: Final = "crossing"
"""The key of a request's `Crossing` in its `notes`."""


@dataclass(eq=False, repr=False)
class Crossing(RedactedRepr):
    """How one request crosses the bridge."""

    client_id: str = ""  # our id, a credential
    server_id: str = ""  # the server's, once it is known
    begins: bool = False  # an `initialize` that may begin a session of the server
    is_orphaned: bool = False  # ours was refused, so no client can use the server's
    epoch: int = 0  # how often the session has moved to another process
    may_begin_again: bool = False  # if the server has forgotten its session, another one may take its place
    is_late: bool = False  # the message belongs to a question that was asked in another epoch
