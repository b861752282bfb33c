"""`mcp_sessions.testing`: tools are tested with a session that no server gave."""

import subprocess
import sys
from datetime import timedelta

import anyio
import pytest

from mcp_sessions import DataError, DataGone, DataNotJSON, Principal, StateNotJSON, current_session
from mcp_sessions.testing import session_for_test


async def shop(item: str) -> str:
    """A tool as a server has them."""
    session = current_session()
    assert session is not None
    cart = await session.data.update("cart", lambda cart: [*cart, item], default=[])
    session.state["last"] = item
    return f"{len(cart)} in the cart"


async def test_a_tool_finds_the_session_of_the_block() -> None:
    """With what it holds at first, and what the tool made of it afterwards; there is none outside."""
    with session_for_test(state={"last": None}, data={"cart": ["socks"]}) as session:
        assert await shop("shoes") == "2 in the cart"
        assert await session.data.get("cart") == ["socks", "shoes"]
        assert dict(session.state) == {"last": "shoes"}
        with session_for_test() as inner:
            assert await shop("hat") == "1 in the cart"
        assert current_session() is session
    assert current_session() is None
    assert session.ref != inner.ref
    assert session.id != inner.id


async def test_the_session_is_what_any_session_is() -> None:
    """It belongs to its principal, ends when it is ended, and has a client that stated nothing."""
    alice = Principal(subject="alice")
    with session_for_test(principal=alice, lifetime=60) as session:
        assert session.principal == alice
        assert session.expires_at - session.created_at == timedelta(seconds=60)
        assert await session.client_capabilities() is None
        await session.end()
        with pytest.raises(DataGone):
            await session.data.set("k", 1)


def test_a_plain_tool_needs_no_server() -> None:
    """`session.data.sync` works in a plain test; on an event loop it is refused, as in a server."""
    with session_for_test(data={"n": 1}) as session:
        assert session.data.sync.increment("n") == 2

        async def misused() -> None:
            session.data.sync.set("n", 5)

        with pytest.raises(DataError, match=r"await session\.data"):
            anyio.run(misused)
        assert session.data.sync.get("n") == 2


def test_what_has_no_json_form_is_refused() -> None:
    """As it would be in a tool."""
    with pytest.raises(StateNotJSON):
        session_for_test(state={"k": {1}}).__enter__()
    with pytest.raises(DataNotJSON):
        session_for_test(data={"k": {1}}).__enter__()


def test_pytest_is_not_needed_for_it() -> None:
    """In a process without it, as unittest's are."""
    source = "import sys; sys.modules['pytest'] = None; from mcp_sessions.testing import session_for_test"
    subprocess.run([sys.executable, "-c", source], check=True)
