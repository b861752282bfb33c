"""The life of a session: opened, written back, idle, expired, ended."""

from __future__ import annotations

import gc

import pytest
from clients import START, Clock
from living import ALICE, BOB, SCOPE, Away, mint, named, options_of, reopen

from mcp_sessions._protocol.draft import SessionMetadata
from mcp_sessions._server import minting, sessions
from mcp_sessions._server.options import HOUR
from mcp_sessions._server.runtime import Runtime
from mcp_sessions._server.sessions import ActiveSession
from mcp_sessions._session.claims import TRANSPORT, Principal, utc
from mcp_sessions._session.events import Fact, SessionCreated, SessionDeleted
from mcp_sessions._tokens.seal import sealed_size
from mcp_sessions.errors import (
    SessionEnded,
    SessionExpired,
    SessionNotFound,
    StateTooLarge,
    StateUnreadable,
    StoreUnavailable,
)


async def test_a_minted_session_opens_again() -> None:
    """On any worker with the same keys: nothing was stored."""
    clock = Clock()
    live = await mint(options_of(clock), ALICE)
    opened = (await reopen(named(live), options_of(clock), ALICE)).session
    assert (opened.ref, opened.principal) == (live.session.ref, ALICE)
    assert (opened.created_at, opened.expires_at) == (utc(START), utc(START + 10 * HOUR))
    assert not opened.state.received


async def test_a_request_leaves_nothing_to_the_garbage_collector() -> None:
    """What the application sees is made of the rest and not the other way round, also where it looked at the state."""
    options = options_of(Clock())
    sent = named(await mint(options))
    gc.collect()
    gc.disable()
    try:
        session = (await reopen(sent, options)).session
        session.state["n"] = 1
        ref = session.ref
        del session
        assert not [one for one in gc.get_objects() if isinstance(one, ActiveSession) and one.claims.ref == ref]
    finally:
        gc.enable()


@pytest.mark.parametrize(("owner", "caller"), [(ALICE, BOB), (ALICE, None), (None, ALICE)])
async def test_nobody_opens_somebody_else_s(owner: Principal | None, caller: Principal | None) -> None:
    """Not even an anonymous one after logging in: a session fixed on a victim stays worthless."""
    options = options_of(Clock())
    with pytest.raises(SessionNotFound) as refused:
        await reopen(named(await mint(options, owner)), options, caller)
    assert type(refused.value) is SessionNotFound


async def test_state_comes_back_as_it_was_written() -> None:
    """Sealed, carried by the client, opened; the same bytes go back unsealed when nothing changes."""
    options = options_of(Clock())
    live = await mint(options)
    live.session.state["n"] = 1
    sent = named(live)
    opened = await reopen(sent, options)
    assert opened.session.state == {"n": 1}
    assert "state" not in opened.metadata()
    assert sent.state is not None
    assert "n" not in sent.state.rpartition(".")[0]


async def test_the_bytes_of_an_echo_say_the_same_as_the_metadata() -> None:
    """With and without a new state."""
    options = options_of(Clock())
    live = await reopen(named(await mint(options)), options)
    assert live.echo() is (await reopen(SessionMetadata(live.session.id, None), options)).echo()
    changed = await reopen(SessionMetadata(live.session.id, None), options)
    changed.session.state["n"] = 1
    assert b'"state":"v1.' in changed.echo()


async def test_state_of_another_session_opens_nowhere() -> None:
    """One's own other session, and one that is equal but for its id."""
    options = options_of(Clock())
    first, second = await mint(options, ALICE), await mint(options, ALICE)
    first.session.state["role"] = "admin"
    with pytest.raises(StateUnreadable):
        await reopen(SessionMetadata(second.session.id, named(first).state), options, ALICE)


async def test_state_has_a_limit_of_its_sealed_size() -> None:
    """The largest state fits exactly; one byte more is refused, with both figures."""
    live = await mint(options_of(Clock(), max_state_bytes=200))
    room = next(n for n in range(200) if sealed_size(n + 1) > 200) - len(b'{"a":""}')
    live.session.state["a"] = "x" * room
    with pytest.raises(StateTooLarge) as refused:
        live.session.state["a"] = "x" * (room + 1)
    assert (refused.value.size, refused.value.limit) == (sealed_size(room + 1 + len(b'{"a":""}')), 200)
    assert refused.value.size > 200


class TestExpiry:
    async def test_a_session_ends_at_its_time(self) -> None:
        """The last second before is alive; the second itself is not, and its owner is told why."""
        clock = Clock()
        options = options_of(clock)
        sent = named(await mint(options))
        clock.now = START + 10 * HOUR - 1
        await reopen(sent, options)
        clock.now = START + 10 * HOUR
        with pytest.raises(SessionExpired):
            await reopen(sent, options)

    async def test_idleness_ends_it_sooner(self) -> None:
        """Counted from the last request whose state the client carries."""
        clock = Clock()
        options = options_of(clock, idle_timeout=HOUR)
        sent = named(await mint(options))
        for _ in range(3):
            clock.now += HOUR - 1
            sent = named(await reopen(sent, options))
        clock.now += HOUR
        with pytest.raises(SessionExpired):
            await reopen(sent, options)

    async def test_use_never_prolongs_the_absolute_end(self) -> None:
        """`expiresAt` is the earlier of the two."""
        clock = Clock()
        options = options_of(clock, idle_timeout=6 * HOUR)
        live = await mint(options)
        assert live.session.expires_at == utc(START + 6 * HOUR)
        assert live.metadata()["expiresAt"] == utc(START + 6 * HOUR).strftime("%Y-%m-%dT%H:%M:%SZ")
        clock.now += 5 * HOUR
        later = await reopen(named(live), options)
        assert later.metadata()["expiresAt"] == utc(START + 10 * HOUR).strftime("%Y-%m-%dT%H:%M:%SZ")

    @pytest.mark.parametrize("withheld", [True, False])
    async def test_a_withheld_or_replayed_state_only_shortens(self, withheld: bool) -> None:
        """A client that sends no state, or its first one again, is idle since its creation."""
        clock = Clock()
        options = options_of(clock, idle_timeout=HOUR)
        first = named(await mint(options))
        clock.now += HOUR - 1
        newest = named(await reopen(first, options))
        clock.now += 1
        assert (await reopen(newest, options)).session.expires_at == utc(START + 2 * HOUR - 1)
        with pytest.raises(SessionExpired):
            await reopen(SessionMetadata(first.session_id, None if withheld else first.state), options)

    async def test_an_unread_state_is_kept_when_only_the_time_is_renewed(self) -> None:
        """Renewing says when the session was seen and loses nothing of what it held."""
        clock = Clock()
        options = options_of(clock, idle_timeout=HOUR)
        live = await mint(options)
        live.session.state["n"] = 1
        renewed = named(await reopen(named(live), options))
        assert (await reopen(renewed, options)).session.state == {"n": 1}


async def test_an_ended_session_is_refused_and_told_so() -> None:
    """From the moment `end` returns; facts say what happened, by reference."""
    facts: list[Fact] = []
    options = options_of(Clock(), listen=facts.append)
    live = await mint(options)
    await live.session.end("logout")
    with pytest.raises(SessionEnded):
        await reopen(named(live), options)
    ref = live.session.ref
    assert facts == [SessionCreated(ref, START + 10 * HOUR), SessionDeleted(ref, "logout", 0, live.claims.trace)]


async def test_the_request_that_ends_it_outlives_it() -> None:
    """And is a request like any other again where the store did not take the end."""
    store = Away()
    live = await mint(options_of(Clock(), store=store))
    with pytest.raises(StoreUnavailable):
        await live.session.end()
    before = live.ended_by_own_request
    store.is_away = False
    await live.session.end()
    assert (before, live.ended_by_own_request) == (False, True)
    with pytest.raises(SessionEnded):
        await reopen(named(live), options_of(Clock(), store=store))


async def test_nobody_is_let_in_unknown_unless_that_was_asked_for(caplog: pytest.LogCaptureFixture) -> None:
    """A store that does not answer refuses; who lets the request in all the same finds it in the log."""
    store = Away()
    options = options_of(Clock(), store=store)
    live = await mint(options)
    with pytest.raises(StoreUnavailable):
        await reopen(named(live), options)
    assert caplog.messages == []
    assert (await reopen(named(live), options, fail_open=True)).session.ref == live.session.ref
    assert caplog.messages == [
        f"accepting session {live.session.ref} without a revocation check: store unavailable (store_unavailable)"
    ]
    with pytest.raises(SessionNotFound):
        await reopen(SessionMetadata("x", None), options, fail_open=True)


class TestTracked:
    async def test_one_without_a_record_is_lost(self) -> None:
        """What another store recorded, or none, is not found here."""
        clock = Clock()
        live = await mint(options_of(clock))
        with pytest.raises(SessionNotFound) as refused:
            await reopen(named(live), options_of(clock, tracked=True))
        assert (type(refused.value), refused.value.reason) == (SessionNotFound, "store_lost")

    async def test_idleness_is_counted_in_the_store(self) -> None:
        """By any request, with or without a state; the client need not carry one."""
        clock = Clock()
        options = options_of(clock, tracked=True, idle_timeout=HOUR)
        live = await mint(options)
        assert "state" not in live.metadata()
        bare = SessionMetadata(live.session.id, None)
        for _ in range(3):
            clock.now += HOUR - 60
            opened = await reopen(bare, options)
            assert opened.session.expires_at == utc(int(clock.now) + HOUR)
            assert "state" not in opened.metadata()
        clock.now += HOUR + 60
        with pytest.raises(SessionExpired):
            await reopen(bare, options)


class TestATransportSession:
    """Its clients echo no state, so the store keeps that; and they lose all when it dies, so it lives long."""

    async def reopened(self, live: ActiveSession, options: Runtime) -> ActiveSession:
        return await sessions.open_session(
            SessionMetadata(live.session.id, None), options, principal=None, kind=TRANSPORT
        )

    async def test_its_state_lies_in_the_store(self) -> None:
        """Written when it changed, and under a name that no other data has."""
        options = options_of(Clock())
        live = await minting.mint(options, principal=None, params={}, scope=SCOPE, kind=TRANSPORT)
        live.session.state["n"] = 1
        await live.save()
        again = await self.reopened(live, options)
        assert again.session.state == {"n": 1}
        await again.save()
        assert await again.session.data.get("n") is None

    async def test_what_its_last_request_wrote_goes_with_it(self) -> None:
        """A request that ends its own session is answered all the same."""
        live = await minting.mint(options_of(Clock()), principal=None, params={}, scope=SCOPE, kind=TRANSPORT)
        live.session.state["n"] = 1
        await live.session.end()
        await live.save()

    async def test_the_two_kinds_are_never_taken_for_each_other(self) -> None:
        """A session id opens no transport session, nor the other way round."""
        options = options_of(Clock())
        live = await minting.mint(options, principal=None, params={}, scope=SCOPE, kind=TRANSPORT)
        with pytest.raises(SessionNotFound):
            await reopen(SessionMetadata(live.session.id, None), options)
        with pytest.raises(SessionNotFound):
            await self.reopened(await mint(options), options)
