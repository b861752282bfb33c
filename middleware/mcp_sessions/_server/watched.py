"""`Watched`: the feed and the inspector of one middleware, and what the inspector asks of its store."""

from __future__ import annotations

from typing import Final

from .._errors import ConfigurationError, StoreUnavailable
from ..stores._base import Record
from ..telemetry._feed import Feed, LiveSession
from ..telemetry._inspector import Inspector, Roster
from .forms import is_loopback
from .lifecycle import Terminator
from .operator import PAGE, Sessions
from .options import Options
from .streams import start

ENDED_BY_INSPECTOR: Final = "inspector"
MAX_LISTED: Final = 1_000  # sessions on the page


class Watched:
    """What shows a middleware's sessions live.

    Args:
        options: The middleware's.
        feed: Its feed.
        terminator: Ends sessions that are not recorded.

    Raises:
        ConfigurationError: Other machines could reach the inspector without a token.
    """

    def __init__(self, options: Options, feed: Feed, terminator: Terminator) -> None:
        self._feed: Final = feed
        self._terminator: Final = terminator
        self._audience: Final = options.audience
        self._tracked: Final = options.tracked is not None
        self._inspector: Inspector | None = None
        address, token = options.telemetry.inspector, options.telemetry.inspector_token
        if address is not None:
            if token is None and not is_loopback(address):
                raise ConfigurationError(
                    f"telemetry.inspector={address!r} can be reached from other machines: write 127.0.0.1, or give "
                    "inspector_token="
                )
            self._inspector = Inspector(address, token, feed=feed, recorded=self.recorded, end=self.end)

    def start(self) -> None:
        """Open the feed, and serve the page; a second call changes nothing."""
        if self._feed.open() and self._inspector is not None:
            start(self._inspector.run)

    async def stop(self) -> None:
        """Close both."""
        if self._inspector is not None:
            self._inspector.stop()
        self._feed.close()

    async def recorded(self) -> Roster | None:
        """Return the recorded sessions that are alive, or None where none are recorded or the store does not answer."""
        if not self._tracked:
            return None
        found, cursor, is_first = list[LiveSession](), "", True
        while is_first or (cursor and len(found) < MAX_LISTED):
            try:
                page, cursor = await self._terminator.store.roster(audience=self._audience, cursor=cursor, limit=PAGE)
            except StoreUnavailable:
                return None
            is_first = False
            for one in page:
                at, since, until = one.seen_at, one.created_at, one.expires_at
                found.append(LiveSession(worker="", ref=one.ref, at=at, created_at=since, expires_at=until))
        return Roster(found, not cursor)

    async def end(self, session: LiveSession) -> bool:
        """End a session, and return whether this call did.

        Raises:
            StoreUnavailable: It may still live.
        """
        if self._tracked:
            operator = Sessions(store=self._terminator.store, audience=self._audience)
            return await operator.end(session.ref, reason=ENDED_BY_INSPECTOR)
        created_at, expires_at = int(session.created_at), int(session.expires_at)
        record = Record(session.ref, None, created_at, expires_at, created_at, audience=self._audience)
        return await self._terminator.end_record(record, ENDED_BY_INSPECTOR)
