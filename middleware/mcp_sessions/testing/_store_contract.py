"""The contract of a store as a suite of tests, which every store of this package passes.

class TestMyStore(SharedStoreContract):
    @pytest.fixture
    def make_store(self, clock, tmp_path):
        return lambda: MyStore(tmp_path / "sessions", clock=clock)
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import replace
from functools import partial
from typing import Any

import msgspec
import pytest

from .._errors import DataGone, DataNotInteger, DataTooLarge, PrincipalDataTooLarge
from .._session.claims import AUDIENCE
from .._session.data import Namespace
from ..stores._base import VALUE_COST, Ended, Record, SessionStatus, Store
from ._audience_contract import AudienceContract
from ._contract import (
    ALICE,
    BOB,
    DAY,
    HOUR,
    LATER,
    START,
    Clock,
    Fixtures,
    RecordContract,
    RevocationContract,
    at_once,
    claim,
    namespace,
    refused,
    register,
    revoke,
    session,
    status_in,
    statuses_in,
    touch_in,
)
from ._look_up_contract import LookUpContract

MOST = 2**63 - 1
SUMS: list[tuple[bytes | None, int, int | None]] = [
    *((None, 0, 0), (None, -5, -5), (b"-3", 3, 0), (b"0", MOST, MOST), (b"-1", -MOST, -MOST - 1)),
    (b"9007199254740993", 1, 9007199254740994),  # above 2**53, where doubles would lose it
    *((b"%d" % -(2**63), MOST, -1), (b"%d" % MOST, -(2**63), -1)),
    *((b"%d" % MOST, 1, None), (b"%d" % -(2**63), -1, None), (b"%d" % (MOST + 1), -1, None)),
    *((b"%d" % (-(2**63) - 1), 1, None), (b"1" * 100, 0, None), (b"1.0", 1, None), (b"1e3", 1, None)),
    *((value, 1, None) for value in (b'"1"', b"null", b"true", b"[1]", b'"a-word"')),
]
"""A value, what is added to it, and their sum, or None if it exceeds 64 bits."""


@pytest.mark.anyio
class SweepingContract(Fixtures):
    """Workers that share the sweeping, and deployments that share a store."""

    async def test_each_expired_session_goes_to_one_caller(self, store: Store, clock: Clock) -> None:
        """From its end on, no more at once than asked for, and to no other while the lease lasts.

        A lease of nothing leaves it to another at once. What was not recorded is never claimed, or was purged.
        """
        many = [session(f"s{n}", expires_at=START + 60 + n) for n in range(10)]
        await register(store, *many)
        for one in (many[0], session("unrecorded")):
            await revoke(store, one, lease=0)
        for second, reason in enumerate(("deleted", "expired")):
            clock.now = START + 60 + second
            assert await claim(store) == [Ended(Record.of(many[second]), reason)]
            assert await claim(store) == []
        clock.now = START + 69
        claimed = [ended.record.ref for _ in range(3) for ended in await claim(store, limit=3)]
        assert [len(claimed), set(claimed)] == [8, {one.ref for one in many[2:]}]
        for clock.now in (START + 69, LATER):
            assert await claim(store) == []
            await store.purge(*(one.ref for one in many))
            assert await status_in(store, session("unrecorded")) is SessionStatus.ENDED

    async def test_it_counts_those_that_live(self, store: Store) -> None:
        """Of an audience, whoever they belong to: neither once `on_end` has run nor after a cut-off of all."""
        assert await store.count(audience=AUDIENCE) == 0
        made = [session(f"{n}", subject=subject) for n, subject in enumerate([ALICE, BOB, None])]
        for record in (*map(Record.of, made), replace(Record.of(session("x")), audience="other")):
            await store.register(record)
        await revoke(store, made[0])
        await store.purge(made[0].ref)
        assert [await store.count(audience=audience) for audience in (AUDIENCE, "other")] == [2, 1]
        await register(store, session("later", issued_at=START + 1))
        await store.revoke_before(START + 1, audience=AUDIENCE, subject=None, expires_at=LATER)
        assert [await store.count(audience=audience) for audience in (AUDIENCE, "other")] == [1, 1]

    async def test_an_ended_session_waits_for_a_claim_for_as_long_as_it_takes(self, store: Store, clock: Clock) -> None:
        """With its data, long after its token expired: `on_end` runs at least once, and may read."""
        a = session()
        await store.write(namespace(a), "before", b"0")
        await register(store, a)
        await store.write(namespace(a), "browser", b'"b1"')
        for _ in range(5):
            clock.now += DAY
            await revoke(store, session(f"x{clock.now}", expires_at=int(clock.now)))
        assert await claim(store) == [Ended(Record.of(a), "expired")]
        assert [await store.read(namespace(a), key) for key in ("browser", "before")] == [b'"b1"', b"0"]


@pytest.mark.anyio
class DataContract(Fixtures):
    """The data that a session keeps on the server."""

    async def test_what_is_written_is_read(self, store: Store) -> None:
        """Byte for byte, under its name and session alone; writing None keeps none.

        Names are compared exactly. The empty one and those with NUL are names, too: the middleware keeps entries there.
        """
        a, b = namespace(session("a")), namespace(session("b"))
        value = b'{"x": [1e400, "\\u0000", null, "\xe2\x98\x83"]}'
        keys = ["", "\0", "\0a", "a\0b", "a", "A", "a ", "\u00e9", "e\u0301", "*", "%", "a:b", "a\nb", "0", "00"]
        keys.append("\U0001f36a")
        for n, key in enumerate(keys):
            assert await store.read(a, key) is None
            await store.write(a, key, value + b"%d" % n)
        assert [await store.read(a, key) for key in keys] == [value + b"%d" % n for n in range(len(keys))]
        assert await store.read(b, "a") is None
        await store.write(a, "a", b"null")
        assert await store.read(a, "a") == b"null"
        await at_once([partial(store.write, a, "a", None)] * 2)
        assert [await store.read(a, key) for key in ("a", "A")] == [None, value + b"5"]

    async def test_a_value_may_have_an_end_of_its_own(self, store: Store, clock: Clock) -> None:
        """From that moment on the value is gone. A new value has the end that it is given, or none.

        A swap and a sum leave the end as it was; that of an expired value is not taken over.
        """
        place = namespace(session())
        for key in ("swapped", "added", "replaced"):
            await store.write(place, key, b"1", expires_at=START + 10.5)
        assert await store.compare_and_swap(place, "swapped", b"1", b"2") is True
        assert await store.add(place, "added", 1) == 2
        await store.write(place, "replaced", b"2")
        clock.now = START + 10.25
        assert [await store.read(place, key) for key in ("swapped", "added", "replaced")] == [b"2"] * 3
        clock.now = START + 10.5
        assert [await store.read(place, key) for key in ("swapped", "added", "replaced")] == [None, None, b"2"]
        assert [await store.compare_and_swap(place, "swapped", old, b"3") for old in (b"2", None)] == [False, True]
        assert await store.add(place, "added", 5) == 5
        clock.now = START + 1000
        assert [await store.read(place, key) for key in ("swapped", "added", "replaced")] == [b"3", b"5", b"2"]
        await store.write(place, "replaced", b"4", expires_at=START + 1000)
        assert await store.read(place, "replaced") is None

    async def test_data_lasts_until_the_latest_end_that_a_change_names(self, store: Store, clock: Clock) -> None:
        """A name whose sessions follow each other, as those of a principal do, outlives each of them."""
        first = msgspec.structs.replace(namespace(session()), expires_at=START + HOUR)
        later = msgspec.structs.replace(first, expires_at=START + DAY)
        other = msgspec.structs.replace(namespace(session("b")), expires_at=START + DAY)
        await store.write(first, "a", b"1")
        await store.write(later, "a", b"2")
        clock.now = START + 3 * HOUR
        for n in range(3):  # which also sweeps
            await store.write(other, "b", b"%d" % n)
        assert await store.read(later, "a") == b"2"

    async def test_a_swap_needs_the_old_value(self, store: Store) -> None:
        """None stands for none, on either side; a swap that does not fit changes nothing."""
        place, none = namespace(session()), None
        for old, new, fits, then in (
            *((b"0", b"1", False, none), (none, b"1", True, b"1"), (none, b"2", False, b"1")),
            *((b"1 ", b"2", False, b"1"), (b"1", none, True, none), (none, none, True, none)),
        ):
            assert await store.compare_and_swap(place, "k", old, new) is fits
            assert await store.read(place, "k") == then

    async def test_parallel_changes_lose_nothing(self, store: Store) -> None:
        """Who loses the race of a swap tries again; of sums, each caller gets another."""
        place = namespace(session())

        async def count() -> None:
            old = await store.read(place, "k")
            while not await store.compare_and_swap(place, "k", old, b"%d" % (int(old or 0) + 1)):
                old = await store.read(place, "k")

        await at_once([count] * 20)
        assert await store.read(place, "k") == b"20"
        assert sorted(await at_once([partial(store.add, place, "n", 1)] * 20)) == list(range(1, 21))

    async def test_sums_are_exact_to_64_bits(self, store: Store) -> None:
        """Signed, and kept as JSON; no value counts as 0. What has no sum stays as it is."""
        place = namespace(session())
        for value, by, total in SUMS:
            await store.write(place, "k", value)
            if total is None:
                await refused(DataNotInteger, partial(store.add, place, "k", by))
            else:
                assert await store.add(place, "k", by) == total
            assert await store.read(place, "k") == (value if total is None else b"%d" % total), (value, by)

    async def test_a_sessions_names_and_values_have_a_limit_together(self, store: Store, clock: Clock) -> None:
        """Of bytes in UTF-8, which each call gives. What would exceed it changes nothing; others have their own.

        What is replaced, deleted or over counts for nothing, read or not.
        """
        place = namespace(session("a"), max_bytes=10)
        await store.write(place, "\u00e4", b"12345678")
        await store.write(place, "\u00e4", b"12345")  # 7 bytes
        await store.write(place, "b", b"12", expires_at=START + 10)
        written = (partial(store.write, place, key, value) for key, value in (("c", b"1"), ("b", b"123")))
        added = (partial(store.add, place, key, by) for key, by in (("b", 88), ("c", 1)))
        swapped = partial(store.compare_and_swap, place, "b", b"12", b"123")
        await refused(DataTooLarge, *written, *added, swapped)
        assert [await store.read(place, key) for key in "\u00e4bc"] == [b"12345", b"12", None]
        await store.write(namespace(session("b"), max_bytes=10), "b", b"123456789")
        await store.write(namespace(session("a"), max_bytes=12), "c", b"1")
        clock.now = START + 10
        await store.write(place, "c", b"12")
        await store.write(place, "\u00e4", None)
        assert await store.compare_and_swap(place, "c", b"12", b"123456789") is True
        await refused(DataTooLarge, partial(store.write, place, "d", b"1"))

    async def test_a_revoked_sessions_data_can_be_read_and_not_changed(self, store: Store, clock: Clock) -> None:
        """Until it is purged, recorded or not. Nor can one that expired longer ago than the leeway."""
        for one in (a := session("a"), session("b")):
            await register(store, a)
            await store.write(place := namespace(one), "k", b"1")
            await revoke(store, one)
            await refused(DataGone, *changes_of(store, place))
            assert await store.read(place, "k") == b"1"
            await store.purge(one.ref)
            assert await store.read(place, "k") is None
            await refused(DataGone, *changes_of(store, place))
        await store.write(place := namespace(session("c")), "k", b"1")
        clock.now = LATER + self.leeway
        await refused(DataGone, *changes_of(store, place))

    async def test_a_copy_is_what_lay_there_at_its_moment(self, store: Store, clock: Clock) -> None:
        """Values that are over are left out and replace nothing; neither place sees the other's later changes."""
        a, b = session("a"), session("b")
        at_a, at_b, empty = (namespace(one) for one in (a, b, session("empty")))
        await store.write(at_a, "k", b'"\\u00e9"')
        for at, key, value, ends in ((at_a, "n", b"7", 20), (at_a, "old", b"1", 10), (at_b, "old", b"3", 20)):
            await store.write(at, key, value, expires_at=START + ends)
        clock.now += 10
        await store.copy(at_a, at_b)
        await store.copy(empty, at_b)
        assert [await store.read(at_b, key) for key in ("k", "n", "old")] == [b'"\\u00e9"', b"7", b"3"]
        assert await store.add(at_b, "n", 1) == 8
        await refused(DataTooLarge, partial(store.copy, at_a, namespace(session("c"), max_bytes=4)))
        await store.write(at_a, "k", b"0")
        await revoke(store, a)
        await store.purge(a.ref)
        assert [await store.read(at_b, key) for key in ("k", "n")] == [b'"\\u00e9"', b"8"]
        clock.now += 10
        assert await store.read(at_b, "n") is None

    async def test_the_data_of_a_principal_s_sessions_has_a_limit_together(self, store: Store) -> None:
        """Each principal has a quota; replacing, deleting and ending make room, and what shrinks fits."""
        size = 400 - VALUE_COST - 1
        for name in "ab":
            await store.write(shelf(name), "k", b"x" * size)
        full = partial(store.write, shelf("c"), "k")
        large = partial(store.write, shelf("a"), "k", b"x" * 3 * size)
        swap, add = partial(store.compare_and_swap, shelf("a"), "n", None, b"1"), partial(store.add, shelf("b"), "n", 1)
        changes = (partial(full, b"x"), large, swap, add, partial(store.copy, shelf("a"), shelf("d")))
        limit = r"the limit is 1000 \(Limits\.data_bytes_per_principal\)"
        await refused(PrincipalDataTooLarge, *changes, match=limit)
        for free in (shelf("g", BOB), shelf("e", ""), shelf("h", None), shelf("f", most=None)):
            await store.write(free, "k", b"x" * 700)
        more = partial(store.write, shelf("other", ""), "k", b"x" * 700)
        await refused(PrincipalDataTooLarge, more, match=r"1000 \(Limits\.anonymous_data_bytes\)")
        await store.write(shelf("f", most=None), "k", None)
        await store.write(shelf("a", most=10), "k", b"x" * (size - 1))
        await store.write(shelf("a"), "k", None)
        await full(b"x" * size)
        await revoke(store, session("b"))
        await store.purge(session("b").ref)
        await store.write(shelf("a"), "k", b"x" * size)

    async def test_values_that_are_over_make_room(self, store: Store, clock: Clock) -> None:
        """In the session that changes; an expired value does not count when it is replaced."""
        await store.write(shelf("a"), "old", b"x" * 500, expires_at=START + 10)
        await store.write(shelf("a"), "n", b"1", expires_at=START + 10)
        await refused(PrincipalDataTooLarge, partial(store.write, shelf("a"), "k", b"x" * 700))
        clock.now += 10
        assert await store.add(shelf("a"), "n", 1) == 1
        await store.write(shelf("a"), "k", b"x" * 500)
        assert await store.add(shelf("a"), "n", 8) == 9
        await refused(PrincipalDataTooLarge, partial(store.write, shelf("b"), "k", b"x" * 100))


def changes_of(store: Store, place: Namespace) -> list[Callable[[], Awaitable[Any]]]:
    """Return changes of each kind, with and without effect on a value that is 1."""
    return [
        *(partial(store.write, place, key, value) for key, value in (("k", b"2"), ("k", None), ("new", b"2"))),
        *(partial(store.compare_and_swap, place, "k", old, b"2") for old in (b"1", b"wrong")),
        partial(store.add, place, "k", 1),
        partial(store.copy, namespace(session("another")), place),
    ]


def shelf(name: str, subject: str | None = ALICE, most: int | None = 1000) -> Namespace:
    """Return a session's place for data, which counts for its principal."""
    return Namespace(session(name, subject=subject).ref, LATER, 10_000, subject, most)


class StoreContract(
    LookUpContract, RevocationContract, RecordContract, SweepingContract, DataContract, AudienceContract
):
    """The tests of every store: derive a test class from it, and override the fixture `make_store`.

    A store that cannot count what a principal's sessions take together sets the last two tests of data to None, and
    those of an audience that are about data.
    """


class SharedStoreContract(StoreContract):
    """The tests of a store that several processes share: all stores from `make_store` have the same content."""

    @pytest.fixture
    async def other(self, make_store: Callable[[], Store]) -> AsyncIterator[Store]:
        """A second store at the same place, never opened."""
        made = make_store()
        yield made
        await made.close()

    async def test_what_is_kept_outlives_the_store_object(
        self, make_store: Callable[[], Store], store: Store, other: Store
    ) -> None:
        """Revocations, cut-offs, records and data are there after a restart."""
        a, b, c = session("a"), session("b", subject=BOB), session("c", issued_at=START + 1)
        await register(store, c)
        await store.write(namespace(c), "cart", b"[1]")
        await revoke(store, a)
        await store.revoke_before(START + 1, audience=AUDIENCE, subject=BOB, expires_at=LATER)
        await store.close()
        await other.close()
        again = make_store()
        assert await statuses_in(again, [a, b, c]) == [SessionStatus.ENDED, SessionStatus.ENDED, SessionStatus.LIVE]
        assert [await again.get(c.ref), await again.read(namespace(c), "cart")] == [Record.of(c), b"[1]"]
        await again.close()

    async def test_every_change_is_seen_at_once(self, store: Store, other: Store) -> None:
        """Also where the other one was asked before, and has answered what was right then."""
        a, b, place = session("a"), session("b", issued_at=START - 1), namespace(session("a"))
        assert await statuses_in(other, [a, b]) == [SessionStatus.LIVE] * 2
        assert [await other.get(a.ref), await other.read(place, "k")] == [None, None]
        await register(store, a)
        assert await touch_in(other, a, idle_timeout=60) is SessionStatus.LIVE
        assert await other.get(a.ref) == Record.of(a)
        await store.write(place, "k", b"1")
        assert await other.read(place, "k") == b"1"
        assert await other.compare_and_swap(place, "k", b"1", b"2") is True
        assert await store.read(place, "k") == b"2"
        await revoke(store, a)
        assert await status_in(other, a) is SessionStatus.ENDED
        assert await revoke(other, a) is False
        await store.revoke_before(START, audience=AUDIENCE, subject=ALICE, expires_at=LATER)
        assert await status_in(other, b) is SessionStatus.ENDED

    async def test_of_parallel_calls_one_succeeds(self, store: Store, other: Store, clock: Clock) -> None:
        """On whichever worker they run: one ends a session, and each ended session is claimed once."""
        both = [store, other] * 10
        assert (await at_once([partial(revoke, one, session()) for one in both])).count(True) == 1
        many = [session(f"s{n}") for n in range(30)]
        await register(store, *many)
        clock.now = LATER
        claims = await at_once([partial(claim, one, limit=2) for one in both])
        claimed = [ended.record.ref for some in claims for ended in some]
        assert claimed
        claimed += [ended.record.ref for ended in await claim(store)]
        assert [len(claimed), set(claimed)] == [30, {one.ref for one in many}]

    async def test_a_change_and_a_revocation_have_an_order(self, store: Store, other: Store) -> None:
        """What was changed before stays, what comes after is refused, and nothing comes after it unseen."""

        async def changes() -> int:
            done = 0
            try:
                while True:
                    await other.write(namespace(session()), "k", b"%d" % (done + 1))
                    done += 1
            except DataGone:
                return done

        async def ends() -> None:
            for _ in range(3):
                await status_in(other, session())
            await revoke(store, session())

        done, _ = await at_once([changes, ends])
        assert int(await store.read(namespace(session()), "k") or 0) == done
