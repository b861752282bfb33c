"""The example `shopping_cart`: carts in the state that clients hold."""

from __future__ import annotations

import secrets
import sys

import pytest
from example_servers import client_of, connected, running

from session_client import HeldSession, ToolFailed


async def test_each_session_has_a_cart() -> None:
    """Items are added and removed, and a checkout empties the cart of its session."""
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


async def test_any_server_with_the_keys_continues_a_cart() -> None:
    """A server that never saw the session continues from the state that the client holds."""
    keys = secrets.token_urlsafe(32)
    async with running("shopping_cart", keys) as app, client_of(app) as client:
        session = await HeldSession.create(client)
        await session.call("add", item="pen")
    async with running("shopping_cart", keys) as app, client_of(app) as client:
        assert await HeldSession(client, session.metadata).call("add", item="book") == {"pen": 1, "book": 1}


async def test_an_item_beyond_the_limit_is_refused() -> None:
    """An item that does not fit is refused with the limit, and the cart is unchanged."""
    async with connected("shopping_cart") as client:
        session = await HeldSession.create(client)
        await session.call("add", item="pen")
        with pytest.raises(ToolFailed, match=r"the cart is full: .* the limit is 4096"):
            await session.call("add", item="long" * 2000)
        assert await session.call("show") == {"pen": 1}
