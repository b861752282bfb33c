"""bodyless.py: GET and DELETE that name a session of ours in the header."""

from __future__ import annotations

import pytest
from apps import Server, reply, sessions
from clients import SECRET, Answer, Client, call, http
from starlette.types import Scope, Send

from mcp_sessions import SEP1364Create
from mcp_sessions._server.middleware import MCPSessionMiddleware
from mcp_sessions._session.claims import Claims
from mcp_sessions.errors import StoreUnavailable
from mcp_sessions.stores.base import Standing
from mcp_sessions.stores.memory import MemoryStore


class Away(MemoryStore):
    """A store that stops answering."""

    is_away = False

    async def revoke(self, ref: str, *, audience: str, expires_at: int, reason: str, lease: float) -> bool:
        if self.is_away:
            raise StoreUnavailable
        return await super().revoke(ref, audience=audience, expires_at=expires_at, reason=reason, lease=lease)


async def named(app: MCPSessionMiddleware) -> str:
    """The transport session that `initialize` names."""
    answer = await Client(app, modern=False).send("initialize")
    return answer.headers[b"mcp-session-id"].decode()


async def send(app: MCPSessionMiddleware, method: str, session_id: str) -> Answer:
    return await call(app, http(method=method, headers=[(b"mcp-session-id", session_id.encode())]), b"")


@pytest.mark.parametrize("method", ["GET", "HEAD", "PUT"])
async def test_a_stream_is_not_to_be_had(method: str) -> None:
    """Nor anything else but POST and DELETE; the server is not asked, since the question would open a stream."""
    server = Server()
    app = sessions(server)
    session_id = await named(app)
    answer = await send(app, method, session_id)
    assert (answer.status, answer.headers[b"allow"]) == (405, b"POST, DELETE")
    assert server.methods == ["initialize"]


async def test_delete_ends_the_session() -> None:
    """Once; after that there is nothing to end, and nothing to use."""
    app = sessions(Server())
    session_id = await named(app)
    assert (await send(app, "DELETE", session_id)).status == 200
    gone = await send(app, "DELETE", session_id)
    assert (gone.status, gone.error["code"]) == (404, -32043)


async def test_a_delete_that_the_store_did_not_take_is_said_to_have_failed() -> None:
    """The client may try again."""
    store = Away()
    app = sessions(Server(), store=store)
    session_id = await named(app)
    store.is_away = True
    answer = await send(app, "DELETE", session_id)
    assert (answer.status, answer.headers[b"retry-after"]) == (503, b"1")
    store.is_away = False
    assert (await send(app, "DELETE", session_id)).status == 200


async def test_a_store_that_does_not_answer_is_no_dead_session() -> None:
    """Clients take a 404 as final."""

    class Silent(MemoryStore):
        async def status(self, claims: Claims) -> Standing:
            raise StoreUnavailable

    app = sessions(Server(), store=Silent())
    assert (await send(app, "DELETE", await named(app))).status == 503


@pytest.mark.parametrize("method", ["GET", "DELETE"])
async def test_a_session_id_is_no_transport_id(method: str) -> None:
    """It stands in the header as a mirror of `_meta` only."""
    app = sessions(Server())
    session_id = (await Client(app).create())["sessionId"]
    answer = await send(app, method, session_id)
    assert (answer.status, answer.error["code"]) == (400, -32020)


@pytest.mark.parametrize("transport", ["auto", "off"])
async def test_a_session_of_the_field_has_no_stream_and_is_deleted_by_a_message(transport: str) -> None:
    """Its clients mirror it in the header of every request, so a GET is answered as any other of theirs."""
    app = sessions(Server(), dialects=[SEP1364Create()], transport=transport)
    created = await Client(app, modern=False).send("sessions/create", {"capabilities": {}})
    session_id = created.result["sessionId"]
    answer = await send(app, "GET", session_id)
    assert (answer.status, answer.headers[b"allow"]) == (405, b"POST")
    deleted = await send(app, "DELETE", session_id)
    assert (deleted.status, deleted.error["code"]) == (400, -32020)


@pytest.mark.parametrize("method", ["GET", "DELETE"])
async def test_where_none_are_named_an_id_of_ours_is_out_of_place(method: str) -> None:
    """A transport session that was named before is not known any more."""
    session_id = await named(sessions(Server(), keys=SECRET))
    answer = await send(sessions(Server(), keys=SECRET, transport="off"), method, session_id)
    assert (answer.status, answer.error["code"]) == (400, -32020)


async def test_the_server_s_guards_come_before_ours() -> None:
    """Whom it would not let delete gets its answer, and the session lives on."""
    is_closed = False

    async def guard(_scope: Scope, send: Send) -> bool:
        if is_closed:
            await reply(send, b"", status=401)
        return is_closed

    app = sessions(Server(guard=guard))
    session_id = await named(app)
    is_closed = True
    assert (await send(app, "DELETE", session_id)).status == 401
    is_closed = False
    assert (await send(app, "DELETE", session_id)).status == 200
