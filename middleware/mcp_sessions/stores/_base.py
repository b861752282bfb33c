"""The contract that every store keeps, and what several stores do alike.

A store knows a session by its `ref` and by the keyed hash of its principal (`subject`), so nothing that is stored is a
credential. Every method is one atomic step as seen from every worker that shares the store: one that is not brings
deleted sessions back. `mcp_sessions.testing` has its tests.
"""

from __future__ import annotations

import logging
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple, Protocol

from .._errors import DataGone, DataNotInteger, DataTooLarge, PrincipalDataTooLarge
from .._session.claims import AUDIENCE, Claims
from .._session.data import DataStore, Namespace

logger: Final = logging.getLogger("mcp_sessions")


class Standing(Enum):
    """The status of a session whose token is authentic and not expired."""

    LIVE = "live"
    ENDED = "ended"  # revoked by its name, with all of its principal's, or with all before a moment
    IDLE = "idle"  # recorded, and not used for too long
    LOST = "lost"  # the store cannot vouch for it: no record, or issued before the store lost data


LIVE: Final = Standing.LIVE  # found once: each look-up of an enum's member costs a request more than the answer
Position = tuple[float, str]
"""A place in a list of sessions: `created_at`, and among those of one millisecond `ref`."""

FIRST: Final[Position] = (-1, "")  # before every session

Forgotten = Literal["refuse", "accept"]  # what becomes of sessions from before a store lost data


class Reach(Enum):
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
        seen_at: When it was last used, Unix seconds; may lag by up to `resolution`.
        trace: The traceparent of its start, to which the span of its end links, or None.
        audience: The deployment that it belongs to. Deployments that share a store do not see each other's sessions.
        parts: Keyed hashes of the components of its principal (`Key.parts`), or None for an anonymous session.
    """

    ref: str
    subject: str | None
    created_at: float
    expires_at: int
    seen_at: float
    trace: str | None = None
    audience: str = AUDIENCE
    parts: str | None = None

    @classmethod
    def of(cls, claims: Claims, parts: str | None = None) -> Record:
        times = (claims.issued_at, claims.expires_at, claims.issued_at)
        return cls(claims.ref, claims.subject, *times, claims.trace, claims.audience, parts)

    @property
    def position(self) -> Position:
        return self.created_at, self.ref


@dataclass(frozen=True, slots=True)
class Ended:
    """An ended session whose `on_end` the caller now has to run."""

    record: Record
    reason: str  # "expired", "idle", or what was given to `revoke`


class Revocations(Protocol):
    """Sessions that were ended before they expired."""

    async def admit(self, claims: Claims) -> None:
        """Note a new session before its id is sent, if its date does not distinguish it from sessions that were lost.

        A store that lost data, or was created, dates that to the second, and must know which sessions of that second
        began after it. Other stores do nothing.
        """

    async def status(self, claims: Claims) -> Standing:
        """Return whether a verified session was ended: LIVE, ENDED or LOST."""

    async def statuses(self, claims: Sequence[Claims]) -> list[Standing]:
        """Return the status of many sessions in one round trip, in their order."""

    async def revoke(self, ref: str, *, audience: str, expires_at: int, reason: str, lease: float) -> bool:
        """End a session: every request that begins after this returns sees it as ended. Durable on return.

        The record of a tracked session stays, with the reason, until `purge`: the caller has `lease` seconds to run
        its `on_end`, after which `claim_ended` gives it to another. The revocation may be deleted some leeway after the
        token expires.

        Returns:
            Whether this call ended it; False if it had been revoked by name before.

        Raises:
            StoreFull: There is no room; nothing is evicted to make some.
        """

    async def revoke_before(self, moment: float, *, audience: str, subject: str | None, until: int) -> None:
        """End all sessions of an audience, or of one principal in it, issued before a moment. Durable on return.

        Of several moments for one subject, the latest counts. Records are not changed.

        Args:
            moment: Unix seconds, to the millisecond; a session issued then or later stays as it is.
            audience: The deployment that the sessions belong to.
            subject: The keyed hash of their principal, or None for all principals.
            until: When the last of these sessions expires, Unix seconds; the entry may be deleted then.

        Raises:
            StoreFull: There is no room.
        """


class Records(Protocol):
    """Records of sessions, where sessions are tracked."""

    async def register(self, record: Record, *, of_subject: int | None = None) -> None:
        """Record a new session; a known or revoked one is not changed. Durable on return.

        Args:
            record: The session.
            of_subject: The maximum recorded sessions of its principal, or of all without one, in its audience; those
                ended by `revoke_before` are not counted, or only if they began in the hour of its moment.

        Raises:
            TooManySessions: There are that many; parallel calls may exceed the maximum by a few.
            StoreFull: There is no room.
        """

    async def touch(self, claims: Claims, *, idle_timeout: int | None) -> Standing:
        """Record a use of a session and return its status: LOST without a record, IDLE after `idle_timeout` seconds.

        The `seen_at` of a LIVE session becomes the present time. It may lag by up to `resolution(idle_timeout)`
        seconds, by which the session then becomes idle later, never earlier.
        """

    async def sessions(
        self, subject: str, *, audience: str, after: Position = FIRST, limit: int | None = None, cut_off: bool = False
    ) -> list[Record]:
        """Return the recorded sessions of a principal that have neither ended nor expired, oldest first.

        Args:
            subject: The keyed hash of the principal.
            audience: The deployment that the sessions belong to.
            after: The `Record.position` of the last session of the previous page.
            limit: The maximum number of sessions, or None for all. A page costs the same however many sessions there
                are in all.
            cut_off: Whether to include sessions that `revoke_before` ended, so that they can be revoked by name.
        """

    async def roster(self, *, audience: str, cursor: str = "", limit: int) -> tuple[list[Record], str]:
        """Return some sessions of an audience that have neither ended nor expired, and the cursor of what follows.

        A cursor is `""` before the first page and after the last. Pages have no order and any length. A session that
        is recorded throughout is on at least one of them.
        """

    async def count(self, *, audience: str) -> int | None:
        """Return the number of live recorded sessions of an audience, or None if only the roster knows.

        Called every few seconds, so it must not look at each of 100,000 sessions. It may include expired and idle
        sessions until they are claimed.
        """

    async def find(self, ref: str) -> Record | None:
        """Return the record of a session that has neither ended nor expired, or None."""

    async def claim_ended(self, *, audience: str, idle_timeout: int | None, lease: float, limit: int) -> list[Ended]:
        """Lease ended sessions whose `on_end` no worker is running, each to one caller, and at most `limit`.

        These are sessions that have expired or become idle, which this ends for good, and sessions ended by a worker
        whose lease, in seconds, has run out. The idle timeout never changes while the store is in use.

        Raises:
            StoreFull: There is no room to record that they ended.
        """

    async def purge(self, *refs: str) -> None:
        """Delete the records and the data of ended sessions whose `on_end` has run. Their revocations stay."""

    async def elect(self, worker: str, *, audience: str, seconds: float) -> bool:
        """Return whether this worker, named by `worker`, is the leader that sweeps for the next `seconds` seconds.

        A leader that asks again stays the leader. Each audience has its own.
        """


class Store(Revocations, Records, DataStore, Protocol):
    """Revocations, records and data, shared by every worker that verifies the same tokens.

    Any method except `open` and `close` may raise `StoreUnavailable`: the answer is unknown; a change may or may not
    have been made. Callers never treat it as "no".
    """

    @property
    def reach(self) -> Reach:
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


METHODS: Final = tuple(name for name in dir(Store) if not name.startswith("_") and name != "reach")


class ByName:
    """A store in which `_call(name, args, kwargs)` answers for every method that a subclass does not define itself."""

    if TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any: ...


def _by_name(name: str) -> Any:
    return lambda self, *args, **kwargs: self._call(name, args, kwargs)


for _name in METHODS:
    setattr(ByName, _name, _by_name(_name))


class Delegating(ByName):
    """A store that hands on to another whatever it does not define itself."""

    def __init__(self, store: Store) -> None:
        self._store = store

    @property
    def reach(self) -> Reach:
        return self._store.reach

    def _call(self, name: str, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        return getattr(self._store, name)(*args, **kwargs)


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


def standing_in_use(standing: Standing, seen_at: float | None, now: float, idle_timeout: int | None) -> Standing:
    """Return the status of a session that must be recorded, from its `status` and its last noted use."""
    if standing is not LIVE:
        return standing
    if seen_at is None:
        return Standing.LOST
    return LIVE if now < idle_at(seen_at, idle_timeout) else Standing.IDLE


_INTEGER: Final = re.compile(rb"0|-?[1-9][0-9]{0,18}")
INT64: Final = range(-(1 << 63), 1 << 63)  # what every store can add


def added(value: bytes | None, by: int) -> int:
    """Return the sum of a value, as JSON or None for 0, and a number; `DataNotInteger` where it takes over 64 bits."""
    if value is not None and _INTEGER.fullmatch(value) is None:
        raise DataNotInteger("increment needs a value that is a whole number")
    before = 0 if value is None else int(value)
    if before in INT64 and before + by in INT64:
        return before + by
    raise DataNotInteger("increment needs a value and a sum of 64 bits at most")


ANONYMOUS: Final = ""
"""The `Namespace.subject` of all who have no principal: together they have one account."""
VALUE_COST: Final = 200  # bytes that keeping a value takes besides its name and itself


class Filling(NamedTuple):
    """What fills a store."""

    sessions: int  # recorded
    most_sessions: int  # of one principal
    data: int  # bytes of all values
    most_data: int  # of one principal, with `VALUE_COST` for each value


class FullLog:
    """Logs how a store got full, once a minute: nobody else sees who fills it."""

    def __init__(self) -> None:
        self._minute = -1.0

    def is_due(self, now: float) -> bool:
        minute, before = now // 60, self._minute
        self._minute = minute
        return minute != before

    def log(self, filling: Filling) -> None:
        logger.error(
            "the session store is full: %d sessions are recorded, at most %d of one principal; the data of sessions "
            "takes %d bytes, at most %d of them of one principal; see Limits(sessions_per_principal=..., "
            "anonymous_sessions=..., data_bytes_per_principal=..., anonymous_data_bytes=...), or use a larger store",
            *filling,
        )


def check_principal(namespace: Namespace, before: int, more: int) -> None:
    """Raise `PrincipalDataTooLarge` where the data of a principal's sessions would grow over what it may take."""
    most = namespace.max_subject_bytes
    if most is not None and more > 0 and before + more > most:
        whose, limit = ("this principal's sessions", "data_bytes_per_principal")
        if namespace.subject == ANONYMOUS:
            whose, limit = ("all sessions without a principal", "anonymous_data_bytes")
        raise PrincipalDataTooLarge(
            f"the data of {whose} would take {before + more} bytes; the limit is {most} (Limits.{limit})"
        )


def size_of(key: str, value: bytes) -> int:
    """Return the bytes that a value counts for against `Namespace.max_bytes`."""
    return len(key.encode("utf-8")) + len(value)


def check_size(namespace: Namespace, size: int) -> None:
    """Raise `DataTooLarge` where a session's data would take more bytes than it may."""
    if size > namespace.max_bytes:
        raise DataTooLarge(f"session data would take {size} bytes; the limit is {namespace.max_bytes}")


def check_changeable(namespace: Namespace, now: float, leeway: float, *, has_ended: bool) -> None:
    """Raise `DataGone` where a session was ended, or is over by more than the leeway."""
    if has_ended or namespace.until + leeway <= now:
        raise DataGone("the session has ended; its data can no longer be changed")
