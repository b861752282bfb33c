"""`Inspected`: the sessions of one middleware, as its inspector shows and ends them."""

from __future__ import annotations

from typing import Final

from .._errors import ConfigurationError, StoreUnavailable
from ..stores._base import FIRST, Record
from ..telemetry._feed import MAX_SESSIONS, Feed, LiveSession
from ..telemetry._inspector import Inspector, LocalServer, Recorded, SessionToEnd
from . import option_types
from .background import start
from .lifecycle import Terminator
from .options import CoreOptions, tracking

ENDED_BY_INSPECTOR: Final = "inspector"


class Inspected:
    """Connects an inspector with a middleware, and serves its page if the page has an address."""

    def __init__(self, options: CoreOptions, feed: Feed, terminator: Terminator) -> None:
        self._terminator: Final = terminator
        self._audience: Final = options["audience"]
        self._tracked: Final = tracking(options) is not None
        self._server: LocalServer | None = None
        address, token = options["telemetry"].inspector, options["telemetry"].inspector_token
        inspector = Inspector() if address is None or isinstance(address, str) else address
        inspector.bind(feed, self.read_recorded, self.end)
        if isinstance(address, str):
            if token is None and not option_types.is_loopback(address):
                raise ConfigurationError(
                    f"telemetry.inspector={address!r} can be reached from other machines: write 127.0.0.1, or give "
                    "inspector_token="
                )
            self._server = LocalServer(inspector, address, token)
        self._is_started = False

    def start(self) -> None:
        """Serve the page if it has an address; a second call changes nothing."""
        if self._server is not None and not self._is_started:
            start(self._server.run)
        self._is_started = True

    async def stop(self) -> None:
        if self._server is not None:
            await self._server.stop()

    async def read_recorded(self) -> Recorded | None:
        """Return what the store has recorded, or None if it records no sessions or does not answer."""
        if not self._tracked:
            return None
        store = self._terminator.store
        try:
            live = await store.count(audience=self._audience)
            if live > MAX_SESSIONS:
                return Recorded(live, [])
            records = await store.list_sessions(audience=self._audience, after=FIRST, limit=MAX_SESSIONS)
        except StoreUnavailable:
            return None
        sessions = [
            LiveSession(ref=one.ref, at=one.seen_at, created_at=one.created_at, expires_at=one.expires_at)
            for one in records
        ]
        return Recorded(len(sessions), sessions)

    async def end(self, session: SessionToEnd) -> bool:
        """End a session, and return True if this call did."""
        store, created_at = self._terminator.store, session.created_at
        if self._tracked:
            record = await store.get(session.ref)
            if record is None or record.audience != self._audience:
                return False
            return await store.revoke(record, reason=ENDED_BY_INSPECTOR, lease=0)  # a worker may run `on_end` at once
        record = Record(session.ref, None, created_at, session.expires_at, created_at, audience=self._audience)
        return await self._terminator.end_record(record, ENDED_BY_INSPECTOR)
