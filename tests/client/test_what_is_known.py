"""Only an answer that says what the server offers changes what is known of it; no error does, and no lost answer."""

from __future__ import annotations

from itertools import chain, repeat
from typing import Any

import anyio
import pytest

from mcp_sessions.client import MemoryStorage, NoAnswer, NotOffered, SessionMetadata

from .scripted import LOST, OFFER, URL, Rule, Server, calling, error, session_of, storing, talk

DECLARED: dict[str, Any] = {"experimental": {"sessions": {}}}


def first(*answers: dict[str, Any], then: Any = None) -> Rule:
    following = chain(answers, repeat(then or {"result": OFFER}))
    return lambda message: next(following)


async def test_a_refused_discovery_leaves_it_to_the_handshake() -> None:
    """A client tries the modern era first: the handshake that follows declares sessions, and one is created."""
    server = Server({"server/discover": first(error(-32601))})
    async with talk(server) as (sessions, caller):
        assert sessions.offered is None
        caller.modern = False
        await caller.ask("initialize", {"capabilities": {}})
        await caller.ask("tools/call")
    assert [sent["params"]["capabilities"] for sent in server.sent("initialize")] == [DECLARED]
    assert server.carried("tools/call") == [{"sessionId": "id-1"}]


async def test_a_refused_handshake_may_be_made_again() -> None:
    server = Server({"initialize": first(error(-32603), {"result": {}})})
    async with talk(server, modern=False) as (_, caller):
        for _ in range(2):
            await caller.ask("initialize", {"capabilities": {}})
        await caller.ask("tools/call")
    assert [sent["params"]["capabilities"] for sent in server.sent("initialize")] == [DECLARED] * 3
    assert server.carried("tools/call") == [{"sessionId": "id-1"}]


async def test_a_first_request_that_fails_changes_nothing() -> None:
    server = Server({"tools/list": lambda _: error(-32603)})
    async with talk(server, greet=False) as (sessions, caller):
        with sessions.use(None):
            await caller.ask("tools/list")
        await caller.ask("tools/call")
    assert server.carried("tools/call") == [{"sessionId": "id-1"}]


async def test_our_own_discovery_is_sent_again_where_it_was_refused() -> None:
    """The request that needed it goes without a session; the next one asks anew."""
    server = Server({"server/discover": first(error(-32603))})
    async with talk(server, greet=False) as (_, caller):
        for _ in range(3):
            await caller.ask("tools/call")
    assert server.carried("tools/call") == [None, {"sessionId": "id-1"}, {"sessionId": "id-1"}]
    assert len(server.sent("server/discover")) == 2


async def test_a_session_that_was_not_sent_was_not_lost() -> None:
    """A server behind the server has lost one of its own: the handle, which has not begun, is not done with that."""
    server = Server({"server/discover": first(error(-32603)), "tools/call": first(error(LOST), then={"result": {}})})
    async with talk(server, greet=False) as (sessions, caller):
        with sessions.use(sessions.new()) as held:
            assert (await caller.ask("tools/call"))["error"]["code"] == LOST
            assert held is not None
            assert not held.ended
            await caller.ask("tools/call")
    assert server.carried("tools/call") == [None, {"sessionId": "id-1"}]


@pytest.mark.parametrize("result", [{"capabilities": "text"}, {"capabilities": {"experimental": [1]}}])
async def test_an_offer_that_cannot_be_read_is_none(result: dict[str, Any]) -> None:
    server = Server({"server/discover": lambda _: {"result": result}, "tools/call": lambda _: {"result": {}}})
    async with talk(server) as (sessions, caller):
        assert "result" in await caller.ask("tools/call")
        assert sessions.offered is False


async def test_metadata_that_cannot_be_read_is_not_of_the_session() -> None:
    server = Server({"tools/call": lambda _: {"result": {"_meta": [1]}}})
    async with talk(server) as (_, caller):
        for _ in range(2):
            assert (await caller.ask("tools/call"))["result"] == {"_meta": [1]}
    assert server.carried("tools/call") == [{"sessionId": "id-1"}] * 2


async def test_what_is_not_known_yet_is_not_lacking() -> None:
    server = Server({"server/discover": first(error(-32603))})
    async with talk(server, greet=False) as (sessions, caller):
        await caller.ask("ping")
        with pytest.raises(NoAnswer, match="not answered yet what it offers"):
            await sessions.list()
        with pytest.raises(NotOffered):
            await sessions.list()


async def test_an_error_of_an_older_session_leaves_the_newer_one_in_the_storage() -> None:
    """Two calls of a lost session: the second error comes when the next session has begun under the same name."""

    def lose_the_first(message: dict[str, Any]) -> dict[str, Any]:
        session = session_of(message) or {}
        return error(LOST, **session) if session["sessionId"] == "id-1" else {"result": {}}

    server = Server({"tools/call": lose_the_first, "slow": lose_the_first}, late=frozenset({"slow"}))
    sessions = storing(server, storage := MemoryStorage())
    async with calling(sessions) as caller, anyio.create_task_group() as tasks:
        tasks.start_soon(caller.ask, "slow")
        await server.asked.wait()
        for _ in range(2):
            await caller.ask("tools/call")
        server.go.set()
        await caller.ask("ping")
    assert await storage.load(URL) == {"": SessionMetadata("id-2")}
