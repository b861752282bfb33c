"""The example `rate_limit`: a budget for each user, over all of the user's sessions."""

from __future__ import annotations

import sys

import pytest
from clients import Clock
from example_servers import client_of, http_of, running

from session_client import HeldSession, ToolFailed


@pytest.fixture
def clock() -> Clock:
    return Clock()


async def test_a_new_session_brings_no_fresh_budget(clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    """The sessions of a user share a budget, which is renewed after a minute; another user has another."""
    async with running("rate_limit") as app:
        monkeypatch.setattr(sys.modules["rate_limit"], "clock", clock)
        async with client_of(app, token="token-of-ann") as ann, client_of(app, token="token-of-bob") as bob:
            one, other = await HeldSession.create(ann), await HeldSession.create(ann)
            for session in (one, one, other, other):
                await session.call("search", words="socks")
            clock.now += 18
            text = await other.call("search", words="socks")
            assert text == "search 3 of this session for socks; 0 more this minute"
            for session in (one, await HeldSession.create(ann)):
                with pytest.raises(ToolFailed, match=r"all used; wait 42 s\. A new session brings no new ones"):
                    await session.call("search", words="socks")
            assert (await (await HeldSession.create(bob)).call("search", words="hats")).endswith("4 more this minute")
            clock.now += 42
            assert (await one.call("search", words="socks")).endswith("3 more this minute")


async def test_an_unknown_token_is_refused() -> None:
    """A session does not replace authentication."""
    async with running("rate_limit") as app:
        body = {"jsonrpc": "2.0", "id": 1, "method": "sessions/create"}
        async with http_of(app, authorization="Bearer token-of-nobody") as http:
            assert (await http.post("/mcp", json=body)).status_code == 401
