"""Transport sessions of the wrapped server whose client may skip `notifications/initialized`, and has not sent it.

SEP-1364's second alternative makes it optional where both sides spoke the same version; a server of today
waits for it all the same. So it is sent for the client, before the first message that needs it. A server
that keeps transport sessions keeps them in its process, and so does this.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import Final

from starlette.types import ASGIApp, Receive, Scope

from .admission import notify
from .jsonrpc import Message as Request

CONFIRMATION: Final = "notifications/initialized"
MAX_WAITING: Final = 10_000  # transport sessions; those of clients that never came back go first
_EARLY: Final = frozenset({"initialize", "ping"})


class Unconfirmed:
    """The transport sessions of one middleware that wait for `notifications/initialized`."""

    def __init__(self, *, max_waiting: int = MAX_WAITING) -> None:
        """Args:
        max_waiting: How many are remembered at most; the oldest go first.
        """
        self._max_waiting: Final = max_waiting
        self._waiting: Final[OrderedDict[str, None]] = OrderedDict()

    def note(self, transport: str) -> None:
        """A transport session has begun whose client need not confirm it."""
        self._waiting[transport] = None
        if len(self._waiting) > self._max_waiting:
            self._waiting.popitem(last=False)

    async def settle(self, transport: str, message: Request, app: ASGIApp, scope: Scope, receive: Receive) -> None:
        """Confirm a transport session, if it waits for that and this message comes before its client did so.

        Args:
            transport: The server's own id of it.
            message: What is about to be forwarded.
            app: The wrapped application.
            scope: The message's own scope.
            receive: The server's `receive`.
        """
        if transport not in self._waiting or message.method in _EARLY:
            return
        if message.method != CONFIRMATION:
            await notify(app, scope, receive, CONFIRMATION)
        self._waiting.pop(transport, None)  # only now: a message beside this one must not overtake it
