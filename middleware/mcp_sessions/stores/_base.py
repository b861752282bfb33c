"""The contract that every store keeps, and the rules that all stores share.

A store identifies a session by its `ref` and by the keyed hash of its principal (`subject`), so nothing that it holds
is a credential. Every method is one atomic step as seen from every worker that shares the store: one that is not brings
deleted sessions back. A store fetches `Facts`, and `status_of` decides. `mcp_sessions.testing` has the tests.
"""

from __future__ import annotations

import logging
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from enum import Enum
from typing import Any, Final, Literal, NamedTuple, Protocol
from urllib.parse import parse_qsl

import msgspec

from .._errors import ConfigurationError, DataGone, DataNotInteger, DataTooLarge, PrincipalDataTooLarge
from .._session.claims import AUDIENCE, Claims, RedactedRepr
from .._session.data import DataStore, Namespace

STATE_KEY: Final = ""
"""Where a store has the state of a session whose client carries none; `session.data` has no such name."""
logger: Final = logging.getLogger("mcp_sessions")


class SessionStatus(Enum):
    """The status of a session whose token is authentic and not expired."""

    LIVE = "live"
    ENDED = "ended"  # revoked by its name, with all of its principal's, or with all before a moment
    IDLE = "idle"  # recorded, and not used for too long
    UNRECORDED = "unrecorded"  # without a record, though sessions are recorded; otherwise live
    UNKNOWN = "unknown"  # issued before the store lost data


LIVE: Final = SessionStatus.LIVE  # bound once: each look-up of an enum's member costs a request more than the answer
Position = tuple[float, str]
"""A place in a list of sessions: `created_at`, and among those of one millisecond `ref`."""

FIRST: Final[Position] = (-1, "")  # before every session

Forgotten = Literal["refuse", "accept"]  # what becomes of sessions from before a store lost data
Durability = Literal["warn", "refuse", "ignore"]  # what to do about a server that may lose acknowledged changes


class StoreScope(Enum):
    """Which processes share the content of a store."""

    PROCESS = "one process"
    MACHINE = "all processes of one machine"
    NETWORK = "all machines that reach it"


@dataclass(frozen=True, slots=True)
class Record:
    """The record of a tracked session.

    Args:
        ref: The session's public name.
        subject: The keyed hash of its principal, or None for an anonymous session.
        created_at: Unix seconds, to the millisecond.
        expires_at: When its token expires, Unix seconds.
        seen_at: When it was last used, Unix seconds; may lag by up to `resolution`, and by `freshness=` more.
        trace: The traceparent of its start, to which the span of its end links, or None.
        audience: The deployment that it belongs to. Deployments that share a store do not see each other's sessions.
        principal_hashes: Keyed hashes of the components of its principal, or None for an anonymous session.
    """

    ref: str
    subject: str | None
    created_at: float
    expires_at: int
    seen_at: float
    trace: str | None = None
    audience: str = AUDIENCE
    principal_hashes: str | None = None

    @classmethod
    def of(cls, claims: Claims, principal_hashes: str | None = None) -> Record:
        times = (claims.issued_at, claims.expires_at, claims.issued_at)
        return cls(claims.ref, claims.subject, *times, claims.trace, claims.audience, principal_hashes)

    @property
    def position(self) -> Position:
        return self.created_at, self.ref


@dataclass(frozen=True, slots=True)
class Ended:
    """An ended session whose `on_end` the caller now has to run."""

    record: Record
    reason: str  # "expired", "idle", or what was given to `revoke`


class Found(RedactedRepr, msgspec.Struct, frozen=True):
    """What `Store.look_up` returns for a session."""

    status: SessionStatus
    state: bytes | None = None  # the value of `STATE_KEY` in its data, if that was asked for


class Facts(NamedTuple):
    """What a store holds about a session."""

    ended: bool  # by its name
    cutoff_time: float  # Unix seconds; sessions of its principal, or of its audience, from before have ended
    epoch: float  # Unix seconds; the store is complete since then
    registered: bool  # by its name, in this epoch
    seen_at: float | None = None  # its last noted use, Unix seconds; None without a record


def status_of(issued_at: float, facts: Facts, *, accept_older: bool = False) -> SessionStatus:
    """Return the status of a verified session; `accept_older` accepts those from before the store's epoch."""
    if facts.ended or issued_at < facts.cutoff_time:
        return SessionStatus.ENDED
    if accept_older or facts.registered or facts.epoch <= issued_at:
        return LIVE
    return SessionStatus.UNKNOWN


def status_with_idle(
    issued_at: float, facts: Facts, *, now: float, idle_timeout: int | None, accept_older: bool = False
) -> SessionStatus:
    """Return the status of a verified session that must be recorded."""
    status = status_of(issued_at, facts, accept_older=accept_older)
    if status is not LIVE:
        return status
    if facts.seen_at is None:
        return SessionStatus.UNRECORDED
    return LIVE if now < idle_at(facts.seen_at, idle_timeout) else SessionStatus.IDLE


class Store(DataStore, Protocol):
    """Revocations, records and data, shared by every worker that verifies the same tokens.

    Any method except `open` and `close` may raise `StoreUnavailable`: the answer is unknown; a change may or may not
    have been made. Callers never treat it as "no". Changes are durable when they return. A store that is set up wrongly
    may raise `ConfigurationError` anywhere; a request is then refused as if the store had not answered.
    """

    @property
    def scope(self) -> StoreScope:
        """Which processes share the stored data."""

    async def open(self) -> None:
        """Connect, and check whether the store is set up to be durable. Opening it twice is harmless.

        Called when the server starts; a store that was never opened opens itself at its first use.

        Raises:
            ConfigurationError: It is not durable, and the options demand that; the message names the remedy.
            StoreUnavailable: It cannot be reached. A later call tries again.
        """

    async def close(self) -> None:
        """Release connections, threads and files. The store is not used again."""

    async def look_up(
        self, *claims: Claims, state: bool = False, touch: bool = False, idle_timeout: int | None = None
    ) -> list[Found]:
        """Return the status of each session, and its state if asked for, in the order of the claims.

        Every request in a session asks this question, so it should take one round trip, whatever is asked for. A
        session has ENDED if it was revoked, or issued before a cut-off for its audience or any of `claims.owners`.

        Args:
            claims: The verified sessions, at most a few hundred. Without any, the store only has to answer.
            state: Whether to return the states, too: the value of `STATE_KEY` in the data of each session.
            touch: Whether the sessions must have a record, and are used now. One without a record is UNRECORDED, and
                one that was not used for `idle_timeout` seconds is IDLE. The `seen_at` of LIVE ones becomes the present
                time. It may lag by `resolution(idle_timeout)` seconds, and they then become idle later, never earlier.
            idle_timeout: Whole seconds, or None for no idle timeout.
        """

    async def revoke(self, record: Record, *, reason: str, lease: float | None) -> bool:
        """End a session, recorded or not: every request that begins after this returns sees it as ended.

        A revocation may be deleted some leeway after the token expires.

        Args:
            record: The session; what is recorded stays as it is.
            reason: For `on_end`.
            lease: Seconds that the caller has to run `on_end` and to call `purge`, after which `claim_ended` gives the
                recorded session to another. None if there is no `on_end`: its record and data are deleted now.

        Returns:
            Whether this call ended it; False if it had been revoked by name before.

        Raises:
            StoreFull: There is no room; nothing is evicted to make some.
        """

    async def revoke_before(self, cutoff_time: float, *, audience: str, subject: str | None, expires_at: int) -> None:
        """End all sessions of an audience, or of one principal in it, issued before a moment.

        Of several moments for one subject, the latest counts. Records are not changed.

        Args:
            cutoff_time: Unix seconds, to the millisecond; a session issued then or later stays as it is.
            audience: The deployment that the sessions belong to.
            subject: The keyed hash of their principal, or None for all principals.
            expires_at: When the last of these sessions expires, Unix seconds; the entry may be deleted then.

        Raises:
            StoreFull: There is no room.
        """

    async def register_at_epoch(self, claims: Claims) -> None:
        """Note a new session before its id is sent, if its date does not distinguish it from sessions that were lost.

        A store that was created or lost data just now, by the clock of another worker, must know which sessions began
        after that. `register` includes it; stores that lose everything or nothing do nothing.
        """

    async def register(self, record: Record, *, max_sessions: int | None = None) -> None:
        """Record a new session; a known or revoked one is not changed.

        Args:
            record: The session.
            max_sessions: The maximum recorded sessions of its principal, or of all without one, in its audience; those
                ended by `revoke_before` are not counted, or only if they began in the hour of its moment.

        Raises:
            Refusal: `sessions_full`: There are that many; parallel calls may exceed the maximum by a few.
            StoreFull: There is no room.
        """

    async def get(self, ref: str) -> Record | None:
        """Return the record of a session that has neither ended nor expired, or None."""

    async def list_sessions(
        self,
        *,
        audience: str,
        subject: str | None = None,
        after: Position = FIRST,
        limit: int,
        with_cut_off: bool = False,
    ) -> list[Record]:
        """Return recorded sessions that have neither ended nor expired, oldest first.

        Args:
            audience: The deployment that the sessions belong to.
            subject: The keyed hash of their principal, or None for the sessions of all.
            after: The `Record.position` of the last session of the previous page.
            limit: The maximum number of sessions; fewer are the last. A page costs the same however many there are.
            with_cut_off: Whether to include sessions that `revoke_before` ended, so that they can be revoked by name.
        """

    async def count(self, *, audience: str) -> int:
        """Return the number of live recorded sessions of an audience.

        Called every few seconds, so it must not read each of 100,000 records. It may include expired and idle sessions
        until they are claimed, and sessions of principals that `revoke_before` ended.
        """

    async def claim_ended(self, *, audience: str, idle_timeout: int | None, lease: float, limit: int) -> list[Ended]:
        """Lease ended sessions whose `on_end` no worker is running, each to one caller, and at most `limit`.

        These are sessions that have expired or become idle, which this ends for good, and sessions ended by a worker
        whose lease, in seconds, has run out. Any number of workers may call it at once.

        Raises:
            StoreFull: There is no room to record that they ended.
        """

    async def purge(self, *refs: str) -> None:
        """Delete the records and the data of ended sessions whose `on_end` has run. Their revocations stay."""


METHODS: Final = tuple(name for name in dir(Store) if not name.startswith("_") and name != "scope")


def resolution(idle_timeout: int | None) -> int:
    """Return the seconds by which `Record.seen_at` may lag, so that not every request has to write it."""
    return 60 if idle_timeout is None else min(60, idle_timeout // 60)


def idle_at(seen_at: float, idle_timeout: int | None) -> float:
    """Return when a session is idle: by the resolution later than its noted use, since that may lag."""
    return math.inf if idle_timeout is None else seen_at + idle_timeout + resolution(idle_timeout)


def idle_since(now: float, idle_timeout: int | None) -> float:
    """Return the latest noted use of a session that is idle now."""
    return -math.inf if idle_timeout is None else now - idle_timeout - resolution(idle_timeout)


def is_touch_due(seen_at: float, now: float, idle_timeout: int | None) -> bool:
    """Whether a use must be noted, so that `seen_at` lags by no more than the resolution."""
    return now >= seen_at + resolution(idle_timeout)


def split_options(url: Any, names: Sequence[str]) -> tuple[Any, dict[str, Any]]:
    """Return a URL without the options of a store, which its driver does not know, and those options."""
    if not isinstance(url, str):
        return url, {}
    address, _, query = url.partition("?")
    rest = [part for part in query.split("&") if part.partition("=")[0] not in names]
    for part in rest:  # it is not shown: it may be of a password
        if near := get_close_matches(part.partition("=")[0], names, n=1, cutoff=0.8):
            raise ConfigurationError(f"store= has an unknown query parameter in its URL; did you mean '{near[0]}'?")
    given = [(name, value) for name, value in parse_qsl(query, keep_blank_values=True) if name in names]
    return f"{address}?{'&'.join(rest)}".rstrip("?"), dict(given)


_INTEGER: Final = re.compile(rb"0|-?[1-9][0-9]{0,18}")
INT64: Final = range(-(1 << 63), 1 << 63)  # what every store can add


def checked_add(value: bytes | None, by: int) -> int:
    """Return the sum of a value, as JSON or None for 0, and a number; `DataNotInteger` if it takes over 64 bits."""
    if value is not None and _INTEGER.fullmatch(value) is None:
        raise DataNotInteger("increment needs a value that is a whole number")
    before = 0 if value is None else int(value)
    if before in INT64 and before + by in INT64:
        return before + by
    raise DataNotInteger("increment needs a value and a sum of 64 bits at most")


ANONYMOUS: Final = ""
"""The `Namespace.subject` of all who have no principal: together they have one account."""
VALUE_COST: Final = 200  # bytes that keeping a value takes besides its name and itself


def entry_size(key: str, value: bytes) -> int:
    """Return the bytes that a value counts for against `Namespace.max_bytes`."""
    return len(key.encode("utf-8")) + len(value)


def check_principal(namespace: Namespace, before: int, more: int) -> None:
    """Raise `PrincipalDataTooLarge` if the data of an account, `Namespace.account`, would grow over its limit."""
    limit = namespace.max_subject_bytes
    if limit is not None and more > 0 and before + more > limit:
        whose, option = ("this principal's sessions", "data_bytes_per_principal")
        if namespace.subject == ANONYMOUS:
            whose, option = ("all sessions without a principal", "anonymous_data_bytes")
        raise PrincipalDataTooLarge(
            f"the data of {whose} would take {before + more} bytes; the limit is {limit} (Limits.{option})"
        )


def check_size(namespace: Namespace, size: int) -> None:
    """Raise `DataTooLarge` if a session's data would take more bytes than it may."""
    if size > namespace.max_bytes:
        raise DataTooLarge(f"session data would take {size} bytes; the limit is {namespace.max_bytes}")


def check_changeable(namespace: Namespace, now: float, leeway: float, *, has_ended: bool) -> None:
    """Raise `DataGone` if a session was ended, or has expired by more than the leeway."""
    if has_ended or namespace.expires_at + leeway <= now:
        raise DataGone("the session has ended; its data can no longer be changed")
