"""The life of a session: minted, opened, written back, idle, expired, ended."""

from __future__ import annotations

import pytest

from apps import Server, sessions
from clients import START, Clock
from mcp_sessions.dialects.draft import Named
from mcp_sessions.errors import SessionEnded, SessionExpired, SessionNotFound, StateTooLarge, StateUnreadable
from mcp_sessions.events import Fact, SessionCreated, SessionDeleted
from mcp_sessions.live import Live
from mcp_sessions.options import HOUR, Options
from mcp_sessions.session import Principal, utc
from mcp_sessions.state import sealed_size

ALICE = Principal(subject="alice")
BOB = Principal(subject="bob")


def options_of(clock: Clock, **options: object) -> Options:
    return sessions(Server(), clock=clock, lifetime=10 * HOUR, **options)._options


def mint(options: Options, principal: Principal | None = None) -> Live:
    return Live.mint(options, principal=principal)


def named(live: Live) -> Named:
    """What a client sends back, from what it was sent."""
    metadata = live.metadata()
    return Named(metadata["sessionId"], metadata.get("state"))


async def reopen(named: Named, options: Options, principal: Principal | None = None) -> Live:
    return await Live.open(named, options, principal=principal)


async def test_a_minted_session_opens_again() -> None:
    """On any worker with the same keys: nothing was stored."""
    clock = Clock()
    live = mint(options_of(clock), ALICE)
    opened = (await reopen(named(live), options_of(clock), ALICE)).session
    assert (opened.ref, opened.principal) == (live.session.ref, ALICE)
    assert (opened.created_at, opened.expires_at) == (utc(START), utc(START + 10 * HOUR))
    assert not opened.state.received


def test_every_session_is_another() -> None:
    """Ids and references are random."""
    options = options_of(Clock())
    made = [mint(options).session for _ in range(100)]
    assert len({session.id for session in made}) == len({session.ref for session in made}) == 100


def test_an_id_is_short_and_visible_ascii() -> None:
    """At most 512 bytes with default options, between 0x21 and 0x7E, as the specification asks."""
    session_id = mint(options_of(Clock()), ALICE).session.id
    assert len(session_id) <= 512
    assert all(0x21 <= ord(character) <= 0x7E for character in session_id)


@pytest.mark.parametrize(("owner", "caller"), [(ALICE, BOB), (ALICE, None), (None, ALICE)])
async def test_nobody_opens_somebody_else_s(owner: Principal | None, caller: Principal | None) -> None:
    """Not even an anonymous one after logging in: a session fixed on a victim stays worthless."""
    options = options_of(Clock())
    with pytest.raises(SessionNotFound) as refused:
        await reopen(named(mint(options, owner)), options, caller)
    assert type(refused.value) is SessionNotFound


async def test_state_comes_back_as_it_was_written() -> None:
    """Sealed, carried by the client, opened; the same bytes go back unsealed when nothing changes."""
    options = options_of(Clock())
    live = mint(options)
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
    live = await reopen(named(mint(options)), options)
    assert live.echo() is (await reopen(Named(live.session.id, None), options)).echo()
    changed = await reopen(Named(live.session.id, None), options)
    changed.session.state["n"] = 1
    assert b'"state":"v1.' in changed.echo()


async def test_state_of_another_session_opens_nowhere() -> None:
    """One's own other session, and one that is equal but for its id."""
    options = options_of(Clock())
    first, second = mint(options, ALICE), mint(options, ALICE)
    first.session.state["role"] = "admin"
    with pytest.raises(StateUnreadable):
        await reopen(Named(second.session.id, named(first).state), options, ALICE)


def test_state_has_a_limit_of_its_sealed_size() -> None:
    """The largest state fits exactly; one byte more is refused, with both figures."""
    live = mint(options_of(Clock(), max_state_bytes=200))
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
        sent = named(mint(options))
        clock.now = START + 10 * HOUR - 1
        await reopen(sent, options)
        clock.now = START + 10 * HOUR
        with pytest.raises(SessionExpired):
            await reopen(sent, options)

    async def test_idleness_ends_it_sooner(self) -> None:
        """Counted from the last request whose state the client carries."""
        clock = Clock()
        options = options_of(clock, idle_timeout=HOUR)
        sent = named(mint(options))
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
        live = mint(options)
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
        first = named(mint(options))
        clock.now += HOUR - 1
        newest = named(await reopen(first, options))
        clock.now += 1
        assert (await reopen(newest, options)).session.expires_at == utc(START + 2 * HOUR - 1)
        with pytest.raises(SessionExpired):
            await reopen(Named(first.session_id, None if withheld else first.state), options)

    async def test_an_unread_state_is_kept_when_only_the_time_is_renewed(self) -> None:
        """Renewing says when the session was seen and loses nothing of what it held."""
        clock = Clock()
        options = options_of(clock, idle_timeout=HOUR)
        live = mint(options)
        live.session.state["n"] = 1
        renewed = named(await reopen(named(live), options))
        assert (await reopen(renewed, options)).session.state == {"n": 1}


async def test_an_ended_session_is_refused_and_told_so() -> None:
    """From the moment `end` returns; facts say what happened, by reference."""
    facts: list[Fact] = []
    options = options_of(Clock(), listen=facts.append)
    live = mint(options)
    await live.session.end("logout")
    with pytest.raises(SessionEnded):
        await reopen(named(live), options)
    ref = live.session.ref
    assert facts == [SessionCreated(ref, START + 10 * HOUR), SessionDeleted(ref, "logout")]
