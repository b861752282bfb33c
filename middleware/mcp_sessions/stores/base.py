"""The contract that every store keeps, and the words in which it is written.

A store remembers which sessions ended before their time, and, where a deployment asks for it, which
sessions there are and what data they hold on the server. It knows a session by its `ref` and by the
keyed hash of its principal (`subject`), so nothing that is stored is a credential. Every method is
one atomic step as seen from every worker that shares the store. Whoever breaks this contract lets
deleted sessions rise from the dead. One test suite, `tests/stores/test_contract.py`, holds for all.

What every store decides alike: when a session is idle, what a sum is, and whether data has room.

Pure functions over what a store holds, so that stores cannot come to differ in an edge. Nothing here
reads a clock or keeps anything. The rules are those of `stores/base.py` and `data.py`.

How forks stand: each by itself, and with its whole lineage, in the one question that a request asks of a store.

A session that is no fork is asked about as ever. The store knows nothing of lineages: what ends one is a revocation
under a name of its own (`lineage.mark`).
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Final, Protocol

from .._session import claims as lineage
from .._session.claims import AUDIENCE, Claims
from .._session.data import DataStore, Namespace
from ..errors import DataNotInteger, DataTooLarge


class Standing(Enum):
    """What a store says of a session whose token is authentic and not expired."""

    LIVE = "live"
    ENDED = "ended"  # revoked by its name, with all of its principal's, or with all before a moment
    IDLE = "idle"  # recorded, and not seen for too long
    LOST = "lost"  # the store cannot vouch for it: no record, or issued before the store lost data


LIVE: Final = Standing.LIVE  # found once, for the reason that `jsonrpc` gives


class Reach(Enum):
    """Who shares what a store holds."""

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
        seen_at: When it was last used, Unix seconds; up to `grain` behind.
        root: The session at the top of its lineage, by its `ref`, or None where it is no fork.
        trace: The traceparent of its start, or None; a link from its end leads there.
        audience: Whom it is for. Servers of different ones that share a store never see each other's sessions.
    """

    ref: str
    subject: str | None
    created_at: int
    expires_at: int
    seen_at: int
    root: str | None = None
    trace: str | None = None
    audience: str = AUDIENCE

    @classmethod
    def of(cls, claims: Claims) -> Record:
        """The record of a new session."""
        return cls(
            ref=claims.ref,
            subject=claims.subject,
            created_at=claims.issued_at,
            expires_at=claims.expires_at,
            seen_at=claims.issued_at,
            root=claims.root,
            trace=claims.trace,
            audience=claims.audience,
        )


@dataclass(frozen=True, slots=True)
class Ended:
    """A recorded session that has ended and whose `on_end` is now the taker's to run.

    Args:
        record: The session.
        reason: Why it ended: `"expired"`, `"idle"`, or the reason that was given to `revoke`.
    """

    record: Record
    reason: str


class Store(DataStore, Protocol):
    """Revocations, records and data, shared by every worker that verifies the same tokens.

    Any method but `open` and `close` may raise `StoreUnavailable`: nobody knows, or it is not certain
    that the change will be seen. The caller must never take that for "no".
    """

    @property
    def reach(self) -> Reach:
        """Who shares what is stored."""
        ...

    async def open(self) -> None:
        """Connect, and look whether the store is set up to keep what it is given.

        Called when the server starts; a store that was never opened opens itself at its first use.
        Opening twice is the same as once.

        Raises:
            ConfigurationError: It is not, and was told to be refused then; the message says the remedy.
            StoreUnavailable: It cannot be reached now. A later call tries again.
        """

    async def close(self) -> None:
        """Let go of connections, threads and files. The store is not used again."""

    # --- standing and revocation -------------------------------------------------------------

    async def status(self, claims: Claims) -> Standing:
        """Whether an authentic session was ended: LIVE, ENDED or LOST.

        Args:
            claims: What its verified token says.
        """
        ...

    async def statuses(self, claims: Sequence[Claims]) -> list[Standing]:
        """As `standing`, for many sessions in one round trip, in their order."""
        ...

    async def revoke(self, ref: str, *, audience: str, expires_at: int, reason: str, lease: float) -> bool:
        """Make every request that begins after this returns see the session as ended. Durable on return.

        Where the session is recorded, its record stays, with the reason, until `finish`: whoever ended
        it has `lease` seconds to run its `on_end`, and after that `claim_ended` gives it to another.

        Args:
            ref: The session's public name.
            audience: Whom the session is for.
            expires_at: The token's own end, Unix seconds; the entry may go some leeway after that.
            reason: Why it ends.
            lease: Seconds.

        Returns:
            Whether this call ended it; False where it had been revoked by name before.

        Raises:
            StoreFull: There is no room, and nothing is ever evicted to make some.
        """
        ...

    async def revoke_before(self, moment: int, *, audience: str, subject: str | None, until: int) -> None:
        """End all sessions issued before a moment, of one principal or of everybody in an audience. Durable on return.

        Of several moments for one subject the latest counts. Records stay as they are.

        Args:
            moment: Unix seconds; a session issued in that second or later stays as it is.
            audience: Whom the sessions are for.
            subject: The keyed hash of the principal, or None for the sessions of everybody.
            until: When the last session concerned ends by itself, Unix seconds; the entry may go then.
        """

    # --- records, where sessions are tracked -------------------------------------------------

    async def register(self, record: Record) -> None:
        """Note a session at its creation. Durable on return."""

    async def touch(self, claims: Claims, *, idle_timeout: int | None) -> Standing:
        """As `standing`, and: LOST without a record, IDLE where it was unused for `idle_timeout` seconds.

        A LIVE session's `seen_at` moves to now; it may lag by up to `grain(idle_timeout)` seconds, and
        an idle session is then told that much later, never earlier.
        """
        ...

    async def sessions(self, subject: str, *, audience: str) -> list[Record]:
        """The recorded sessions of a principal that have neither ended nor expired, oldest first.

        Args:
            subject: The keyed hash of the principal.
            audience: Whom the sessions are for.
        """
        ...

    async def forks(self, root: str) -> list[Record]:
        """The recorded forks of a lineage, of every generation, that have neither ended nor expired, oldest first.

        Args:
            root: The session at its top, by its `ref`. It need not live.
        """
        ...

    async def find(self, ref: str) -> Record | None:
        """The record of a session that has neither ended nor expired, or None."""
        ...

    async def claim_ended(self, *, audience: str, idle_timeout: int | None, lease: float, limit: int) -> list[Ended]:
        """Recorded sessions that ended and whose `on_end` nobody is running: each goes to one taker.

        Those are the sessions that expired or stood idle, which end hereby (nothing revives them), and
        those that were ended by a worker whose lease has run out.

        Args:
            audience: Whom the sessions are for.
            idle_timeout: Seconds, or None.
            lease: Seconds for which nobody else is given them.
            limit: How many at most.
        """
        ...

    async def purge(self, ref: str) -> None:
        """Forget an ended session's record and its data: its `on_end` has run. The revocation stays."""

    async def elect(self, worker: str, *, audience: str, seconds: float) -> bool:
        """Whether this worker is the one that sweeps for its audience, for so many seconds from now on.

        Args:
            worker: A name that no other worker has. Who leads already stays the leader by asking again.
            audience: Whom the sessions are for that it sweeps.
            seconds: How long nobody else may lead.
        """
        ...


def grain(idle_timeout: int | None) -> int:
    """How many seconds `Record.seen_at` may lag, so that not every request has to write it."""
    return 60 if idle_timeout is None else min(60, idle_timeout // 60)


_INTEGER: Final = re.compile(rb"0|-?[1-9][0-9]{0,18}")
_MOST: Final = 2**63 - 1


def idle_at(seen: float, idle_timeout: int | None) -> float:
    """When a session that was noted as seen at a moment is idle: by the grain later, since that note may lag."""
    return math.inf if idle_timeout is None else seen + idle_timeout + grain(idle_timeout)


def seen_by(now: float, idle_timeout: int | None) -> float:
    """The last moment at which a session that is idle now can have been noted as seen."""
    return -math.inf if idle_timeout is None else now - idle_timeout - grain(idle_timeout)


def is_due_again(seen: float, now: float, idle_timeout: int | None) -> bool:
    """Whether a use of a session must be noted, so that the note lags by no more than the grain."""
    return now >= seen + grain(idle_timeout)


def added(value: bytes | None, by: int) -> int:
    """The sum of a value and a number.

    Args:
        value: A value's JSON, or None for 0.
        by: What is added.

    Raises:
        DataNotInteger: The value or the sum is no integer of 64 bits.
    """
    if value is not None and _INTEGER.fullmatch(value) is None:
        raise DataNotInteger("increment needs a value that is a whole number")
    before = 0 if value is None else int(value)
    if -_MOST - 1 <= before <= _MOST and -_MOST - 1 <= before + by <= _MOST:
        return before + by
    raise DataNotInteger("increment needs a value and a sum of 64 bits at most")


def size_of(key: str, value: bytes) -> int:
    """Bytes that a value counts for against `Namespace.max_bytes`."""
    return len(key.encode("utf-8")) + len(value)


def check_size(shelf: Namespace, size: int) -> None:
    """Refuse what would not fit.

    Raises:
        DataTooLarge: The session's data would take more bytes than it may.
    """
    if size > shelf.max_bytes:
        raise DataTooLarge(f"session data would take {size} bytes; the limit is {shelf.max_bytes}")


async def statuses(store: Store, claims: Sequence[Claims]) -> list[Standing]:
    """As `Store.statuses`; a fork has also ended where all forks of its lineage have.

    Args:
        store: What is asked.
        claims: What verified tokens say.

    Raises:
        StoreUnavailable: Nobody knows.
    """
    forks = [place for place, one in enumerate(claims) if one.root is not None]
    found = await store.statuses([*claims, *(lineage.mark(claims[place]) for place in forks)])
    own = found[: len(claims)]
    for place, of_lineage in zip(forks, found[len(claims) :], strict=True):
        own[place] = own[place] if of_lineage is Standing.LIVE else of_lineage
    return own


async def status(store: Store, claims: Claims) -> Standing:
    """As `standings`, of one session."""
    (found,) = await statuses(store, (claims,))
    return found
