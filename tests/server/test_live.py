"""The life of a session: opened, written back, idle, expired, ended."""

from __future__ import annotations

import json

import pytest
from clients import START, Clock
from failing import Failing
from living import SCOPE, mint, named, options_of, reopen

from mcp_sessions._errors import (
    SessionEnded,
    SessionExpired,
    SessionNotFound,
    StoreUnavailable,
)
from mcp_sessions._protocol.draft import SessionMetadata
from mcp_sessions._server import minting
from mcp_sessions._server.options import HOUR
from mcp_sessions._session.claims import TRANSPORT, utc


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
        clock = Clock()
        options = options_of(clock, idle_timeout=6 * HOUR)
        live = await mint(options)
        assert live.session.expires_at == utc(START + 6 * HOUR)
        assert json.loads(live.encode_metadata())["expiresAt"] == utc(START + 6 * HOUR).strftime("%Y-%m-%dT%H:%M:%SZ")
        clock.now += 5 * HOUR
        later = await reopen(named(live), options)
        assert json.loads(later.encode_metadata())["expiresAt"] == utc(START + 10 * HOUR).strftime("%Y-%m-%dT%H:%M:%SZ")

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


async def test_the_request_that_ends_it_outlives_it() -> None:
    """And is a request like any other again where the store did not take the end."""
    store = Failing("revoke")
    live = await mint(options_of(Clock(), store=store))
    with pytest.raises(StoreUnavailable):
        await live.session.end()
    before = live.ended_by_own_request
    store.failing.clear()
    await live.session.end()
    assert (before, live.ended_by_own_request) == (False, True)
    with pytest.raises(SessionEnded):
        await reopen(named(live), options_of(Clock(), store=store))


class TestTracked:
    async def test_one_without_a_record_is_lost(self) -> None:
        """What another store recorded, or none, is not found here."""
        clock = Clock()
        live = await mint(options_of(clock))
        with pytest.raises(SessionNotFound) as refused:
            await reopen(named(live), options_of(clock, tracked=True))
        assert (type(refused.value), refused.value.reason) == (SessionNotFound, "store_lost")


class TestATransportSession:
    """Its clients echo no state, so the store keeps that; and they lose all when it dies, so it lives long."""

    async def test_what_its_last_request_wrote_goes_with_it(self) -> None:
        """A request that ends its own session is answered all the same."""
        live = await minting.mint(options_of(Clock()), principal=None, params={}, scope=SCOPE, kind=TRANSPORT)
        live.session.state["n"] = 1
        await live.session.end()
        await live.save()
