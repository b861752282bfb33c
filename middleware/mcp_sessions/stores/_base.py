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
from .._session import claims as lineage
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
Position = tuple[int, str]
"""A place in a list of sessions: `created_at`, and among those of one second `ref`."""

FIRST: Final[Position] = (-1, "")  # before every session

Forgotten = Literal["refuse", "accept"]  # what becomes of sessions from before a store lost data


class Reach(Enum):
    """Which processes share what a store holds."""

    PROCESS = "one process"
    MACHINE = "all processes of one machine"
    NETWORK = "all machines that reach it"


@dataclass(frozen=True, slots=True)
class Record:
    """What a store holds of a recorded session.

    Args:
        ref: The session's public name.
        subject: The keyed hash of its principal, or None for an anonymous session.
        created_at: Unix seconds.
        expires_at: The token's own end, Unix seconds.
        seen_at: When it was last used, Unix seconds; up to `resolution` behind.
        root: The session at the top of its lineage, by its `ref`, or None where it is not a fork.
        trace: The traceparent of its start, or None; a link from its end leads there.
        audience: Whom it is for. Servers of different ones that share a store never see each other's sessions.
        parts: Keyed hashes of the components of its principal (`Key.parts`), or None for an anonymous session.
    """

    ref: str
    subject: str | None
    created_at: int
    expires_at: int
    seen_at: int
    root: str | None = None
    trace: str | None = None
    audience: str = AUDIENCE
    parts: str | None = None

    @classmethod
    def of(cls, claims: Claims, parts: str | None = None) -> Record:
        times = (claims.issued_at, claims.expires_at, claims.issued_at)
        return cls(claims.ref, claims.subject, *times, claims.root, claims.trace, claims.audience, parts)

    @property
    def position(self) -> Position:
        return self.created_at, self.ref


@dataclass(frozen=True, slots=True)
class Ended:
    """A recorded session that has ended, and whose `on_end` the caller now has to run."""

    record: Record
    reason: str  # "expired", "idle", or what was given to `revoke`


class Revocations(Protocol):
    """Which sessions ended before their time."""

    async def admit(self, claims: Claims) -> None:
        """Note a new session before its id leaves, where its date does not tell it from those that were lost.

        Tokens are dated to the second, so a store that lost data, or is new, in this very second has to know which
        sessions began after it. All others have nothing to note.
        """

    async def status(self, claims: Claims) -> Standing:
        """Return whether a verified session was ended: LIVE, ENDED or LOST."""

    async def statuses(self, claims: Sequence[Claims]) -> list[Standing]:
        """Return the status of many sessions in one round trip, in their order."""

    async def revoke(self, ref: str, *, audience: str, expires_at: int, reason: str, lease: float) -> bool:
        """Make every request that begins after this returns see the session as ended. Durable on return.

        Where the session is recorded, its record stays, with the reason, until `purge`: the caller has `lease` seconds
        to run its `on_end`, and after that `claim_ended` gives it to another. The entry may go some leeway after the
        token's own end.

        Returns:
            Whether this call ended it; False where it had been revoked by name before.

        Raises:
            StoreFull: There is no room, and nothing is ever evicted to make some.
        """

    async def revoke_before(self, moment: int, *, audience: str, subject: str | None, until: int) -> None:
        """End all sessions of an audience, or of one principal in it, issued before a moment. Durable on return.

        Of several moments for one subject the latest counts. Records stay as they are.

        Args:
            moment: Unix seconds; a session issued in that second or later stays as it is.
            audience: Whom the sessions are for.
            subject: Whose they are, or None for the sessions of all.
            until: When the last session concerned ends by itself, Unix seconds; the entry may go then.

        Raises:
            StoreFull: There is no room.
        """


class Records(Protocol):
    """Which sessions there are, where sessions are tracked."""

    async def register(self, record: Record, *, of_subject: int | None = None, of_lineage: int | None = None) -> None:
        """Record a session at its creation; one that is known, or was revoked, stays as it is. Durable on return.

        Args:
            record: The session.
            of_subject: How many sessions of its principal, or of all without one, may be recorded for its audience;
                those that were cut off are not counted, or only where they began in the hour of the cut-off.
            of_lineage: How many forks of its root may be.

        Raises:
            TooManySessions: There are as many; what must not be exceeded by a few parallel calls is the order alone.
            StoreFull: There is no room.
        """

    async def touch(self, claims: Claims, *, idle_timeout: int | None) -> Standing:
        """Return a session's status and note its use: LOST without a record, IDLE after `idle_timeout` seconds.

        A LIVE session's `seen_at` moves to now; it may lag by up to `resolution(idle_timeout)` seconds, and the
        session is then found idle that much later, never earlier.
        """

    async def sessions(
        self, subject: str, *, audience: str, after: Position = FIRST, limit: int | None = None, cut_off: bool = False
    ) -> list[Record]:
        """Return the recorded sessions of a principal that have neither ended nor expired, oldest first.

        Args:
            subject: Whose they are.
            audience: Whom they are for.
            after: The `Record.position` of the last one of the page before.
            limit: At most so many; None for all. A page takes no longer where many come before or after it.
            cut_off: Whether to return also those that `revoke_before` ended, to revoke them by name.
        """

    async def forks(self, root: str, *, after: Position = FIRST, limit: int | None = None) -> list[Record]:
        """Return a lineage's recorded forks, of all generations, as `sessions` does; `root` itself need not live."""

    async def roster(self, *, audience: str, cursor: str = "", limit: int) -> tuple[list[Record], str]:
        """Return some sessions of an audience that have neither ended nor expired, and the cursor of what follows.

        A cursor is `""` before the first page and after the last. Pages come in no order and hold any number; a session
        that is recorded throughout is on one of them, or more.
        """

    async def count(self, *, audience: str) -> int | None:
        """Return how many recorded sessions of an audience live, or None where only the roster can tell.

        It is asked every few seconds, so it does not look at each of 100,000. Those that have expired, or are idle, may
        be among them until they are claimed.
        """

    async def find(self, ref: str) -> Record | None:
        """Return the record of a session that has neither ended nor expired, or None."""

    async def claim_ended(self, *, audience: str, idle_timeout: int | None, lease: float, limit: int) -> list[Ended]:
        """Lease recorded sessions that ended and whose `on_end` no worker is running: each goes to one caller.

        Those are the sessions that expired or are idle, which end hereby (nothing revives them), and those that were
        ended by a worker whose lease, in seconds, has run out.

        At most `limit` are given out; the idle timeout is the same for as long as the store is used.

        Raises:
            StoreFull: There is no room to keep that they ended.
        """

    async def purge(self, *refs: str) -> None:
        """Delete the records and the data of ended sessions: their `on_end` has run. The revocations stay."""

    async def elect(self, worker: str, *, audience: str, seconds: float) -> bool:
        """Return whether this worker, by a name of its own, is the one that sweeps for so many seconds from now on.

        A leader that asks again stays the leader. Each audience has one.
        """


class Store(Revocations, Records, DataStore, Protocol):
    """Revocations, records and data, shared by every worker that verifies the same tokens.

    Any method but `open` and `close` may raise `StoreUnavailable`: the answer is unknown, or a change may not be seen.
    The caller must never take that for "no".
    """

    @property
    def reach(self) -> Reach:
        """Which processes share what is stored."""

    async def open(self) -> None:
        """Connect, and check whether the store is set up to keep what it is given. Twice is the same as once.

        Called when the server starts; a store that was never opened opens itself at its first use.

        Raises:
            ConfigurationError: It is not, and the options ask to refuse that; the message says the remedy.
            StoreUnavailable: It cannot be reached now. A later call tries again.
        """

    async def close(self) -> None:
        """Let go of connections, threads and files. The store is not used again."""


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


async def statuses(store: Store, claims: Sequence[Claims]) -> list[Standing]:
    """Return the status of many sessions in one round trip; a fork has also ended where all of its lineage's have.

    The store knows nothing of lineages: what ends one is a revocation under a name of its own (`lineage.mark`).
    """
    forks = [place for place, one in enumerate(claims) if one.root is not None]
    found = await store.statuses([*claims, *(lineage.mark(claims[place]) for place in forks)])
    own = found[: len(claims)]
    for place, of_lineage in zip(forks, found[len(claims) :], strict=True):
        own[place] = of_lineage if of_lineage is Standing.ENDED else own[place]
    return own


async def status(store: Store, claims: Claims) -> Standing:
    """Return the status of one session, as `statuses` does."""
    return (await statuses(store, (claims,)))[0]
