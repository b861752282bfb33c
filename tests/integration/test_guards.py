"""The wrapped server's own guards (bearer tokens, Host and Origin) also hold for what the middleware answers."""

from __future__ import annotations

from contextlib import AsyncExitStack
from typing import Any, Final

import pytest
from starlette.types import Scope

from .servers import COVERING, Cell, Guard, added, running, wrapped
from .wire import Client, Held, Reply, StartRefused

GUARD: Final = Guard({"token-of-ann": "ann", "token-of-bob": "bob"})
ANN: Final = {"authorization": "Bearer token-of-ann"}
BOB: Final = {"authorization": "Bearer token-of-bob"}
REFUSED_TOKENS: Final = [{"authorization": value} for value in ("", "Bearer of-nobody", "Basic YW5uOmFubg==")]

CODES: Final = [None, None, -32602, -32043, -31044, -32602]  # of `all_our_answers` to a caller with a good token


def by_token(scope: Scope) -> str:
    """Name the caller from outside the server's authentication, unchecked."""
    headers: dict[bytes, bytes] = dict(scope["headers"])
    return headers[b"authorization"].decode()


PLACES: Final[dict[str, dict[str, Any]]] = {
    "outside": {"make": wrapped, "principal": by_token},
    "inside": {"make": added},
}

every_cell = pytest.mark.parametrize("cell", COVERING, ids=str)
every_place = pytest.mark.parametrize("place", PLACES)


async def all_our_answers(client: Client, held: Held, headers: dict[str, str]) -> list[Reply]:
    """Request what the middleware answers itself: create, delete, and forged, missing and malformed sessions."""
    whoami = {"name": "whoami", "arguments": {}}
    return [
        await client.request("sessions/create", headers=headers),
        await client.request("sessions/delete", held=held, headers=headers),
        await client.request("sessions/delete", headers=headers),
        await client.request("tools/call", whoami, Held({"sessionId": "made-up"}), headers),
        await client.request("tools/call", {"name": "count", "arguments": {}}, headers=headers),
        await client.request("tools/call", {**whoami, "_meta": {"io.modelcontextprotocol/session": 1}}, None, headers),
    ]


@every_place
@every_cell
async def test_without_a_good_token_every_answer_is_401(cell: Cell, place: str) -> None:
    """A client with a bad access token gets 401 for every request, and changes nothing."""
    async with running(cell, GUARD, require={"tools/call": ["count"]}, **PLACES[place]) as server:
        client = await server.connected(**ANN)
        held = await client.create()
        replies = [reply for token in REFUSED_TOKENS for reply in await all_our_answers(client, held, token)]
        assert await client.call("count", held) == "1"
    assert [reply.status for reply in replies] == [401] * len(replies)
    assert all("www-authenticate" in reply.headers for reply in replies)
    assert not any("ession" in reply.body.decode() for reply in replies)


@every_place
@every_cell
async def test_with_a_good_token_the_answers_are_ours(cell: Cell, place: str) -> None:
    async with running(cell, GUARD, require={"tools/call": ["count"]}, **PLACES[place]) as server:
        client = await server.connected(**ANN)
        replies = await all_our_answers(client, await client.create(), {})
    assert [reply.answer.get("error", {}).get("code") for reply in replies] == CODES


@every_place
@every_cell
async def test_a_session_serves_its_owner_alone(cell: Cell, place: str) -> None:
    """Another user with a good token gets "Session not found", and cannot delete the session."""
    async with running(cell, GUARD, **PLACES[place]) as server:
        ann, bob = await server.connected(**ANN), await server.connected(**BOB)
        held = await ann.create()
        assert await ann.call("count", held) == "1"
        foreign = Held(dict(held.metadata))
        used = await bob.request("tools/call", {"name": "count", "arguments": {}}, foreign)
        ended = await bob.delete(foreign)
        assert await ann.call("count", held) == "2"
    expected = {"code": -32043, "message": "Session not found", "data": {"sessionId": held.id}}
    assert used.error == ended.error == expected


@every_cell
async def test_a_wrapper_that_cannot_see_the_user_does_not_start(cell: Cell) -> None:
    """Around a server that authenticates inside, start-up fails with the remedy in the message."""
    refused = pytest.RaisesExc(StartRefused, match="add_sessions")
    async with AsyncExitStack() as stack:
        with pytest.RaisesGroup(refused, flatten_subgroups=True):
            await stack.enter_async_context(running(cell, GUARD))


@pytest.mark.parametrize(("header", "value"), [("host", "evil.example"), ("origin", "https://evil.example")])
@every_cell
async def test_host_and_origin_checks_apply_to_our_answers(cell: Cell, header: str, value: str) -> None:
    """A page that the server refuses by Host or Origin cannot create, end or probe a session."""
    async with running(cell, require={"tools/call": ["count"]}) as server:
        client = await server.connected()
        held = await client.create()
        own = await client.request("ping", headers={header: value})
        replies = await all_our_answers(client, held, {header: value})
        assert await client.call("count", held) == "1"
    assert own.status == {"host": 421, "origin": 403}[header]
    assert {(reply.status, reply.body) for reply in replies} == {(own.status, own.body)}
