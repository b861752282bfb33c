"""An open event stream of a session, as a response lists it."""

from __future__ import annotations

from types import SimpleNamespace

import anyio

from mcp_sessions._server.resumption import StreamRequest, Streams
from mcp_sessions._session.claims import Claims


class OpenStream:
    """A stream that is open in a process until it is cut."""

    def __init__(self, streams: Streams, claims: Claims, *, ended_by_this_request: bool = False) -> None:
        session = SimpleNamespace(ended_by_own_request=ended_by_this_request, close=lambda: None)
        self.request = StreamRequest(claims, b"1", "tools/call", session=session)
        self.cut = anyio.Event()
        streams.add(self.request, self.terminate)

    async def terminate(self) -> None:
        self.cut.set()

    @property
    def is_cut(self) -> bool:
        return self.cut.is_set()
