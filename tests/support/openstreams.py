"""An open event stream of a session, as a response lists it."""

from __future__ import annotations

import anyio

from mcp_sessions._server.resumption import Events, StreamGuard, StreamRequest, Streams
from mcp_sessions._session.claims import Claims


class OpenStream:
    """A stream that is open in a process until it is cut."""

    def __init__(self, streams: Streams, claims: Claims, *, ended_by_this_request: bool = False) -> None:
        request = StreamRequest(claims, b"1", "tools/call")
        self.guard = StreamGuard(
            request, None, streams, Events(), lambda refusal: b"", lambda: ended_by_this_request, False
        )
        self.cut = anyio.Event()
        streams.add(self.guard, self.terminate)

    async def terminate(self) -> None:
        self.cut.set()

    @property
    def is_cut(self) -> bool:
        return self.cut.is_set()
