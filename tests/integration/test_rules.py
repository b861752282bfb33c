"""The rules that a server with sessions keeps, on real servers in each era, with the clauses that ask for them.

Sources: the data-layer sessions draft; MCP 2026-07-28; SEP-2243. `tests/tools/conformance` runs the official suite,
which does not know sessions.
"""

import secrets
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import datetime
from typing import Any, Final

import anyio
import pytest
from clients import Answer, RealClient

from mcp_sessions import Session

from .servers import COVERING, FASTMCP, SDK, running

CAPABILITIES: Final = "io.modelcontextprotocol/clientCapabilities"
INVALID_PARAMS: Final = -32602
SERVERS: Final = [cell for cell in COVERING if (cell.framework, cell.stateful) in {(SDK, True), (FASTMCP, False)}]

pytestmark = pytest.mark.parametrize("cell", SERVERS, ids=str)


async def keep_state(session: Session, params: object, scope: object) -> None:
    """Begin every session with state, which the client then returns with each request."""
    session.state["count"] = 0


@asynccontextmanager
async def connected(cell: Any) -> AsyncIterator[RealClient]:
    tracked = {"tracked": True, "idle_timeout": 600, "transport": "auto"}
    async with running(cell, **({"on_create": keep_state} if cell.stateful else tracked)) as server:
        yield await server.connected()


async def use(client: RealClient, session: Any, **headers: str) -> Answer:
    """Send a harmless request in a session."""
    return await client.having(**headers).send("tools/list", session=session)


def refuses(answer: Answer) -> bool:
    return answer.status in range(400, 500) or "error" in answer.json


def is_not_found(answer: Answer, session_id: str) -> None:
    """Check that an answer is the refusal of a session, and repeats its id."""
    error = answer.error
    assert (error["code"], error["message"]) == (-32043, "Session not found")
    assert error["data"]["sessionId"] == session_id


async def test_a_session_is_created(cell: Any) -> None:
    """Draft: Creating Sessions, Data Types, Schema. A time is of ISO 8601, and none is created within another."""
    async with connected(cell) as client:
        one, other = [(await client.send("sessions/create")).result["session"] for _ in range(2)]
        assert one["sessionId"] != other["sessionId"]
        assert all("!" <= character <= "~" for character in one["sessionId"])
        datetime.fromisoformat(one["expiresAt"].replace("Z", "+00:00"))  # which raises where it is none
        assert ("state" in one) is cell.stateful
        session = {name: one[name] for name in one.keys() & {"sessionId", "state"}}
        assert (await client.send("sessions/create", session=session)).error["code"] == INVALID_PARAMS


async def test_a_request_is_in_the_session_that_it_names(cell: Any) -> None:
    """Draft: Using Sessions 1-4. A result names it, also of parallel requests, and of none where the request does."""
    async with connected(cell) as client:
        sessions = [await client.create() for _ in range(2)]
        assert (await use(client, None)).session is None

        async def is_named(session: dict[str, str]) -> None:
            echo = (await use(client, session)).session
            assert echo is not None
            assert echo["sessionId"] == session["sessionId"]

        await is_named(sessions[0])
        async with anyio.create_task_group() as tasks:
            for session in sessions * 5:
                tasks.start_soon(is_named, dict(session))


async def test_an_id_that_is_none_is_refused(cell: Any) -> None:
    """Draft: Schema, Data Types (hijacking). A made up one and a forged one get the same answer."""
    async with connected(cell) as client:
        session = await client.create()
        assert (await use(client, {"sessionId": 7})).error["code"] == INVALID_PARAMS
        kept = session["sessionId"]
        forged = f"{kept[:-6]}{'A' if kept[-6] != 'A' else 'B'}{kept[-5:]}"  # at the end some bits do not count
        statuses = set()
        for session_id in (secrets.token_urlsafe(24), forged):
            answer = await use(client, {"sessionId": session_id})
            is_not_found(answer, session_id)
            statuses.add(answer.status)
        assert len(statuses) == 1
        assert refuses(await use(client, {"sessionId": "A" * 20_000}))
        assert (await use(client, session)).session


async def test_headers_and_envelope_agree_with_the_body(cell: Any) -> None:
    """SEP-2243; MCP 2026-07-28: -32020 and -32602. In the legacy era the header names the transport's session."""
    async with connected(cell) as client:
        session, other = await client.create(), await client.create()
        assert refuses(await use(client, session, mcp_session_id=other["sessionId"]))
        if cell.modern:
            assert (await use(client, session, mcp_session_id=session["sessionId"])).session
            assert refuses(await client.having(mcp_method="ping").send("sessions/create"))
            incomplete = client.message("sessions/create")
            del incomplete["params"]["_meta"][CAPABILITIES]
            assert refuses(await client.post(incomplete, method="sessions/create"))


async def test_a_deleted_session_is_not_found(cell: Any) -> None:
    """Draft: Deleting Sessions, Schema. Neither for use nor for another deletion; others and its forks survive."""
    async with connected(cell) as client:
        session, other = await client.create(), await client.create()
        fork = await client.fork(session)
        assert (await client.send("sessions/delete")).error["code"] == INVALID_PARAMS
        assert (await client.delete(dict(session))).result in ({}, {"resultType": "complete"})
        is_not_found(await use(client, session), session["sessionId"])
        is_not_found(await client.delete(session), session["sessionId"])
        for survivor in (other, fork):
            assert (await use(client, survivor)).session
