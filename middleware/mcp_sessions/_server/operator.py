"""`Sessions`: operators list and end the sessions of a deployment.

It shares the middleware's store but sees no session id, so it can end a session and never use one.
"""

from __future__ import annotations

import math
import time
from collections.abc import AsyncIterator, Callable
from datetime import datetime, timedelta
from typing import Any, Final, NamedTuple, final

from anyio.lowlevel import checkpoint

from .._errors import ConfigurationError
from .._session.claims import AUDIENCE, MAX_CLOCK_SKEW, Principal, after_ms, utc
from .._session.endings import Ending
from .._session.functions import check_clock
from .._tokens.keyfile import Keys, key_source
from ..stores import make
from ..stores._base import FIRST, Record, Store, StoreScope
from . import option_types
from .lifecycle import ENDED_ALL
from .principal import checked
from .workers import exit_on_config_error

PAGE: Final = 200  # sessions that are read at once
_OF_CLIENT: Final = (
    "this is a client, which many users may share: name a user by the subject. A client's sessions can be listed, and "
    "each be ended by its ref; end_all_before (--before) ends everyone's"
)
_AS_SEEN: Final = "name the parts of session.principal as the servers see them, and leave out those that may be any"


class EndedAll(NamedTuple):
    """The result of `Sessions.end_all`."""

    before: datetime  # sessions of the principal, in the audience, that were created before this are refused
    recorded: int  # how many of them were recorded and alive


@final
class Sessions:
    """The sessions of a deployment, for its operators.

        async with Sessions(store="redis://sessions:6379/0", keys="env:MCP_SESSIONS_KEYS") as sessions:
            await sessions.end_all(Principal(client_id="web", issuer="https://id.example", subject="alice"))

    A principal is matched by its components, as in `session.principal`. Missing components match anything:
    `Principal(subject="alice")` is alice with any of her clients, at any issuer.
    """

    @exit_on_config_error
    def __init__(
        self,
        *,
        store: str | Store,
        keys: Keys = None,
        audience: str = AUDIENCE,
        lifetime: float | timedelta = option_types.CENTURY,  # seconds
        timeout: float = 5,  # seconds
        clock: Callable[[], float] = time.time,
    ) -> None:
        """Args:
            store: The store of the middleware: the same URL, or the same object.
            keys: The keys of the middleware; needed for methods that take a principal.
            audience: The audience of the middleware. Sessions of other audiences are neither listed nor ended.
            lifetime: Seconds, or a `timedelta`: at least the longest lifetime of any session in the store, including
                `TransportSessions.lifetime`. `end_all` and `end_all_before` take effect for that long; by default, for
                the longest lifetime that servers accept.
            timeout: Seconds within which the store must answer.
            clock: Returns Unix seconds, in agreement with the servers' clocks.

        Raises:
            ConfigurationError: An option is wrong; the message names the remedy.
        """
        self._ring = None if keys is None else key_source(keys)
        self._store = make(store, clock=check_clock(clock), timeout=timeout)
        self._owned = isinstance(store, str)
        if self._owned and self._store.scope is StoreScope.PROCESS:
            raise ConfigurationError(
                "store='memory:' would be a new and empty store: pass the object that the middleware was given"
            )
        self._lifetime: float = option_types.LIFETIME.check("lifetime", lifetime)
        self._audience = option_types.NAME.check("audience", audience)
        self._clock = clock

    async def of(self, principal: Principal | None = None) -> list[Record]:
        """Return the live recorded sessions of a principal, or of all principals, oldest first.

            for record in await sessions.of(Principal(subject="alice")):
                print(record.ref, record.seen_at)

        Sessions are recorded if the middleware has `tracked=True`; otherwise the list is empty.

        Raises:
            ConfigurationError: The principal is empty, or there are no keys.
            StoreUnavailable: The store did not answer.
        """
        return sorted([record async for record in self.each(principal)], key=lambda record: record.position)

    async def each(self, principal: Principal | None = None) -> AsyncIterator[Record]:
        """Yield the sessions that `of` returns, in any order, without holding more than a page of them in memory.

        Raises:
            ConfigurationError: The principal is empty, or there are no keys.
            StoreUnavailable: The store did not answer.
        """
        subjects = [] if principal is None else self._subjects(principal)
        if principal is not None and _is_whole(principal):
            for subject in subjects:
                async for record in self._records(subject=subject):
                    yield record
            return
        ring = () if self._ring is None else self._ring(self._clock())
        async for record in self._records():
            hashes = record.principal_hashes or ""
            if principal is None or record.subject in subjects or any(key.matches(hashes, principal) for key in ring):
                yield record

    async def count(self) -> int:
        """Return the number of live recorded sessions. It may include some that have expired or were ended just now.

        Raises:
            StoreUnavailable: The store did not answer.
        """
        return await self._store.count(audience=self._audience)

    async def end(self, ref: str, *, reason: str = "ended", by: str | None = None) -> bool:
        """End one recorded session. One of the servers runs its `on_end` soon after.

            await sessions.end("ses_mjqxgylsmfzxk5dfon2ca2lo", reason="support", by="carol")

        Args:
            ref: The session's public name, as logs and traces show it.
            reason: The reason for `on_end` and the logs.
            by: The name of the person or program that ends it, for logs and spans.

        Returns:
            Whether this call ended it; False if no live session of this name is recorded.

        Raises:
            StoreUnavailable: The store did not confirm the change, so the session may still be alive.
        """
        record = await self._store.get(ref)
        if record is None or record.audience != self._audience:
            return False
        return await self._revoke(record, Ending(reason, "operator", by))

    async def end_all(self, principal: Principal, *, by: str | None = None) -> EndedAll:
        """End all sessions of a principal, recorded or not, on every server.

        If the principal lacks its client or issuer, those of the sessions may be any.

            await sessions.end_all(Principal(subject="alice"))  # signed out everywhere

        Sessions are dated to the millisecond: those created later, by the servers' clocks, are not affected. One of
        the servers runs `on_end` for recorded sessions soon after. `by` is the name of the person or program that ends
        them, for logs and spans.

        Returns:
            The time before which sessions were ended, and how many of them were recorded.

        Raises:
            ConfigurationError: The principal is no user, or there are no keys.
            StoreFull: The store has no room. Some sessions may still be alive.
            StoreUnavailable: The store did not confirm the change. Some sessions may still be alive.
        """
        moment, recorded = after_ms(self._clock()), 0
        subjects = {*self._subjects(principal)}
        if not principal.can_be_user:
            raise ConfigurationError(_OF_CLIENT)
        if not _is_whole(principal):
            for alias in self._aliases(principal):  # of sessions that no record lists
                await self._revoke_before(moment, alias)
            subjects |= {record.subject async for record in self.each(principal) if record.subject is not None}
        for subject in subjects:  # the cut-off first: it ends them all at once
            await self._revoke_before(moment, subject)
        for subject in subjects:
            async for record in self._records(subject=subject, with_cut_off=True):
                recorded += record.created_at < moment and await self._revoke(record, Ending(ENDED_ALL, "operator", by))
        return EndedAll(utc(moment), recorded)

    async def end_all_before(self, moment: datetime) -> None:
        """End every session that was created before a moment; `on_end` of recorded ones runs when they expire.

            await sessions.end_all_before(datetime(2026, 7, 28, 12, tzinfo=timezone.utc))  # after a leak

        Args:
            moment: A `datetime` with a time zone, not in the future. Sessions are dated to the millisecond: if the
                moment lies within one, sessions of that whole millisecond end.

        Raises:
            ConfigurationError: The moment has no time zone or is in the future.
            StoreUnavailable: The store did not confirm the change. The sessions may still be alive.
        """
        if moment.tzinfo is None:
            raise ConfigurationError("the moment needs a time zone, as in datetime(..., tzinfo=timezone.utc)")
        if not moment.timestamp() <= self._clock():
            raise ConfigurationError("the moment is in the future: sessions that do not exist yet cannot be ended")
        await self._revoke_before(math.ceil(round(moment.timestamp() * 1000, 3)) / 1000, None)

    async def check(self) -> None:
        """Query the store, as for a readiness endpoint; needs no keys.

        Raises:
            StoreUnavailable: It did not answer, so requests in sessions are being refused.
        """
        await self._store.get("")

    async def open(self) -> None:
        """Connect to the store; otherwise, the first call does.

        Raises:
            ConfigurationError: The store is not set up to be durable, and its options demand that.
            StoreUnavailable: It cannot be reached.
        """
        await self._store.open()

    async def close(self) -> None:
        """Close the store if it was given as a URL; close an object yourself."""
        if self._owned:
            await self._store.close()

    async def __aenter__(self) -> Sessions:
        await self.open()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    def _subjects(self, principal: object) -> list[str]:
        if not isinstance(principal, Principal) or principal == Principal():
            raise ConfigurationError("a principal needs a client_id, an issuer or a subject; see session.principal")
        checked(principal, "this is", remedy=_AS_SEEN)
        if self._ring is None:
            raise ConfigurationError("keys= is needed to find a principal's sessions: the middleware's keys")
        return self._ring(self._clock()).subjects(principal)

    def _aliases(self, principal: Principal) -> list[str]:
        ring = () if self._ring is None else self._ring(self._clock())
        return [key.alias(principal) for key in ring if key.principal_key is not None]

    async def _records(self, **of: Any) -> AsyncIterator[Record]:
        """Yield the recorded sessions of the audience, or of one subject in it, oldest first."""
        after = FIRST
        while page := await self._store.list_sessions(audience=self._audience, after=after, limit=PAGE, **of):
            for record in page:
                yield record
            if len(page) < PAGE:
                return
            after = page[-1].position
            await checkpoint()  # a store in memory answers without

    async def _revoke(self, record: Record, ending: Ending) -> bool:
        return await self._store.revoke(
            record, reason=ending.to_text(), lease=0
        )  # a server may run its `on_end` at once

    async def _revoke_before(self, moment: float, subject: str | None) -> None:
        until = math.ceil(moment + self._lifetime + MAX_CLOCK_SKEW)  # when the last session from before has expired
        await self._store.revoke_before(moment, audience=self._audience, subject=subject, expires_at=until)


def _is_whole(principal: Principal) -> bool:
    return None not in {principal.client_id, principal.issuer, principal.subject}
