"""The part of a store's contract that keeps one principal from taking all of it, and lists what there is of all."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import pytest

from .._errors import PrincipalDataTooLarge, Refusal
from .._session.claims import AUDIENCE
from .._session.data import Namespace
from ..stores._base import VALUE_COST, Record, Store
from ._contract import ALICE, BOB, HOUR, LATER, START, Clock, Fixtures, RecordContract, at_once, revoke, session


@pytest.mark.anyio
class TenantContract(RecordContract):
    """What is recorded, and how many sessions one principal may have."""

    @pytest.mark.parametrize("subject", [ALICE, None])
    async def test_one_principal_s_flood_leaves_room_for_others(self, store: Store, subject: str | None) -> None:
        """Of many creates as many succeed as may; others go on. All without a principal count as one."""
        reasons: list[str] = []

        async def create(n: int) -> None:
            try:
                await store.register(Record.of(session(f"{n}", subject=subject)), max_sessions=20)
            except Refusal as refusal:
                reasons.append(refusal.reason)

        for n in range(20):
            await create(n)
        await at_once([partial(create, n) for n in range(20, 100)])
        assert reasons == ["sessions_full"] * 80
        await store.register(Record.of(session("b", subject=BOB)), max_sessions=20)
        await store.register(Record.of(session("c", subject=None if subject else ALICE)), max_sessions=20)
        assert await store.count(audience=AUDIENCE) == 22

    @pytest.mark.parametrize(("subject", "moment"), [(ALICE, START + 1), (None, START + HOUR)])
    async def test_what_has_ended_makes_room_at_once(self, store: Store, subject: str | None, moment: int) -> None:
        """Cut off or finished; another audience's are not counted, and what is known already stays recorded."""
        one, other = session("a", subject=subject), session("b", subject=subject)
        await store.register(replace(Record.of(session("x", subject=subject)), audience="other"), max_sessions=1)
        await store.register(Record.of(one), max_sessions=1)
        await store.register(Record.of(one), max_sessions=1)
        with pytest.raises(Refusal, match="Too many sessions"):
            await store.register(Record.of(other), max_sessions=1)
        assert await store.get(other.ref) is None
        await revoke(store, one)
        await store.purge(one.ref)
        await store.register(Record.of(other), max_sessions=1)
        await store.revoke_before(moment, audience=AUDIENCE, subject=subject, expires_at=LATER)
        ends = {"issued_at": moment, "expires_at": moment + HOUR}
        later = [Record.of(session(name, subject=subject, **ends)) for name in "cd"]
        await store.register(later[0], max_sessions=1)
        with pytest.raises(Refusal, match="Too many sessions"):
            await store.register(later[1], max_sessions=1)

    async def test_it_counts_those_that_live(self, store: Store) -> None:
        """Of an audience, whoever they belong to; one is not counted any more once its `on_end` has run."""
        assert await store.count(audience=AUDIENCE) == 0
        made = [session(f"{n}", subject=subject) for n, subject in enumerate([ALICE, BOB, None])]
        for record in (*map(Record.of, made), replace(Record.of(session("x")), audience="other")):
            await store.register(record)
        await revoke(store, made[0])
        await store.purge(made[0].ref)
        assert [await store.count(audience=audience) for audience in (AUDIENCE, "other")] == [2, 1]

    async def test_a_cut_off_of_all_ends_what_is_counted(self, store: Store) -> None:
        for name, issued_at in (("a", START), ("b", START), ("c", START + 1)):
            await store.register(Record.of(session(name, issued_at=issued_at)))
        await store.revoke_before(START + 1, audience=AUDIENCE, subject=None, expires_at=LATER)
        assert await store.count(audience=AUDIENCE) == 1


@pytest.mark.anyio
class AccountContract(Fixtures):
    """What the data of one principal's sessions may take together; all sessions without a principal have one account.

    A store that cannot count it sets these tests to None.
    """

    async def test_the_data_of_a_principal_s_sessions_has_a_limit_together(self, store: Store) -> None:
        """Another's has its own; replacing, deleting and ending make room, and what shrinks always fits."""
        size = 400 - VALUE_COST - 1
        for name in "ab":
            await store.write(shelf(name), "k", b"x" * size)
        full = partial(store.write, shelf("c"), "k")
        for change in (
            partial(full, b"x"),
            partial(store.write, shelf("a"), "k", b"x" * 3 * size),
            partial(store.compare_and_swap, shelf("a"), "n", None, b"1"),
            partial(store.add, shelf("b"), "n", 1),
            partial(store.copy, shelf("a"), shelf("d")),
        ):
            with pytest.raises(PrincipalDataTooLarge, match=r"the limit is 1000 \(Limits\.data_bytes_per_principal\)"):
                await change()
        for free in (shelf("g", BOB), shelf("e", ""), shelf("h", None), shelf("f", most=None)):
            await store.write(free, "k", b"x" * 700)
        with pytest.raises(PrincipalDataTooLarge, match=r"1000 \(Limits\.anonymous_data_bytes\)"):
            await store.write(shelf("other", ""), "k", b"x" * 700)
        await store.write(shelf("f", most=None), "k", None)
        await store.write(shelf("a", most=10), "k", b"x" * (size - 1))
        await store.write(shelf("a"), "k", None)
        await full(b"x" * size)
        await revoke(store, session("b"))
        await store.purge(session("b").ref)
        await store.write(shelf("a"), "k", b"x" * size)

    async def test_values_that_are_over_make_room(self, store: Store, clock: Clock) -> None:
        """In the session that changes; one that is over is not counted where it is replaced."""
        await store.write(shelf("a"), "old", b"x" * 500, expires_at=START + 10)
        await store.write(shelf("a"), "n", b"1", expires_at=START + 10)
        with pytest.raises(PrincipalDataTooLarge):
            await store.write(shelf("a"), "k", b"x" * 700)
        clock.now += 10
        assert await store.add(shelf("a"), "n", 1) == 1
        await store.write(shelf("a"), "k", b"x" * 500)
        assert await store.add(shelf("a"), "n", 8) == 9
        with pytest.raises(PrincipalDataTooLarge):
            await store.write(shelf("b"), "k", b"x" * 100)


def shelf(name: str, subject: str | None = ALICE, most: int | None = 1000) -> Namespace:
    """Return a session's place for data, which counts for its principal."""
    return Namespace(session(name, subject=subject).ref, LATER, 10_000, subject, most)
