"""The example `counter`: each call returns one more than the last one of its session."""

from __future__ import annotations

from example_servers import connected

from session_client import HeldSession


async def test_each_session_counts_for_itself() -> None:
    """A session counts on, whatever another session does."""
    async with connected("counter") as client:
        a, b = await HeldSession.create(client), await HeldSession.create(client)
        assert [await session.call("count") for session in (a, a, b, a)] == [1, 2, 1, 3]


async def test_without_a_session_every_call_is_the_first() -> None:
    """Sessions are optional here, and nothing is kept without one."""
    async with connected("counter") as client:
        answers = [(await client.call_tool("count")).structured_content for _ in range(2)]
        assert answers == [{"result": 1}, {"result": 1}]


async def test_the_client_holds_the_number() -> None:
    """State is last-write-wins: a client that sends an older state again counts from there."""
    async with connected("counter") as client:
        session = await HeldSession.create(client)
        await session.call("count")
        meta = session.meta
        answers = [(await client.call_tool("count", meta=meta)).structured_content for _ in range(2)]
        assert answers == [{"result": 2}, {"result": 2}]
