"""Session state from request to request, as a client and a tool see it through the middleware."""

from __future__ import annotations

from typing import Any

import pytest
from apps import Server, sessions
from clients import Client

from mcp_sessions import Session
from mcp_sessions._errors import StateClosed, StateTooLarge


@pytest.fixture(params=["legacy", "modern"])
def modern(request: pytest.FixtureRequest) -> bool:
    return bool(request.param == "modern")


async def test_it_travels_with_the_client(modern: bool) -> None:
    """Written in one request, read in the next, on any worker; not sent again while unchanged."""
    client = Client(sessions(Server()), modern=modern)
    session = await client.create()
    first = (await client.tool("remember", session=session, a=1)).session
    assert first is not None
    carried = {name: first[name] for name in ("sessionId", "state")}
    second = await Client(sessions(Server()), modern=modern).tool("remember", session=carried, b=2)
    assert second.result["content"] == {"a": 1, "b": 2}
    unchanged = (await client.tool(session=carried)).session
    assert unchanged is not None
    assert "state" not in unchanged


async def test_the_last_write_wins(modern: bool) -> None:
    """Two requests from one state lose one of two changes: what must not be lost is the server's to keep."""
    client = Client(sessions(Server()), modern=modern)
    session = await client.create()
    await client.tool("remember", session=session, a=1)
    later = (await client.tool("remember", session=session, b=2)).session
    assert later is not None
    carried = {name: later[name] for name in ("sessionId", "state")}
    assert (await client.tool("remember", session=carried)).result["content"] == {"b": 2}


async def test_too_much_is_the_application_s_own_error(modern: bool) -> None:
    """In its own request, at the assignment, with the size."""
    caught: list[StateTooLarge] = []

    async def fill(session: Session | None, arguments: dict[str, Any]) -> Any:
        assert session is not None
        with pytest.raises(StateTooLarge) as raised:
            session.state["a"] = "x" * 5000
        caught.append(raised.value)
        return "refused"

    client = Client(sessions(Server(fill=fill)), modern=modern)
    assert (await client.tool("fill", session=await client.create())).result["content"] == "refused"
    assert caught[0].size > caught[0].limit == 4096


async def test_too_much_inside_of_a_value_makes_the_answer_an_error(modern: bool) -> None:
    """Nothing is lost in silence: the client gets the size and the limit instead of a success."""

    async def grow(session: Session | None, arguments: dict[str, Any]) -> Any:
        assert session is not None
        session.state["list"] = []
        session.state["list"].append("x" * 5000)

    client = Client(sessions(Server(grow=grow)), modern=modern)
    error = (await client.tool("grow", session=await client.create())).error
    assert error["code"] == -32603
    assert "the limit is 4096" in error["message"]


async def test_a_write_after_the_response_raises(modern: bool) -> None:
    """A task that outlives its request is told that its change would be lost."""
    kept: list[Session] = []

    async def keep(session: Session | None, arguments: dict[str, Any]) -> Any:
        assert session is not None
        kept.append(session)

    client = Client(sessions(Server(keep=keep)), modern=modern)
    await client.tool("keep", session=await client.create())
    with pytest.raises(StateClosed):
        kept[0].state["a"] = 1
