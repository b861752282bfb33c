"""The example `shopping_cart`: carts that travel with their clients."""

from __future__ import annotations

import secrets
import sys

import pytest
from example_servers import client_of, connected, running

from session_client import HeldSession, ToolFailed


async def test_each_session_has_a_cart() -> None:
    """Items go in and out, and what was ordered is no longer in it."""
    async with connected("shopping_cart") as client:
        a, b = await HeldSession.create(client), await HeldSession.create(client)
        assert await a.call("add", item="pen", quantity=2) == {"pen": 2}
        assert await a.call("add", item="book") == {"pen": 2, "book": 1}
        assert await a.call("add", item="pen", quantity=-2) == {"book": 1}
        assert await b.call("show") == {}
        assert await a.call("checkout") == "order 1: 1 items"
        assert sys.modules["shopping_cart"].orders == [{"book": 1}]
        with pytest.raises(ToolFailed, match="the cart is empty"):
            await a.call("checkout")


async def test_any_server_with_the_keys_goes_on_with_a_cart() -> None:
    """It never saw the calls before: the client holds what it needs."""
    keys = secrets.token_urlsafe(32)
    async with running("shopping_cart", keys) as app, client_of(app) as client:
        session = await HeldSession.create(client)
        await session.call("add", item="pen")
    async with running("shopping_cart", keys) as app, client_of(app) as client:
        assert await HeldSession(client, session.metadata).call("add", item="book") == {"pen": 1, "book": 1}


async def test_a_cart_that_grows_too_large_says_so() -> None:
    """And stays as it was."""
    async with connected("shopping_cart") as client:
        session = await HeldSession.create(client)
        await session.call("add", item="pen")
        with pytest.raises(ToolFailed, match=r"the cart is full: .* the limit is 4096"):
            await session.call("add", item="long" * 2000)
        assert await session.call("show") == {"pen": 1}
