"""What holds of every answer that the middleware writes itself, and which answers of the server admit a caller."""

from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from apps import Server, reply, sessions
from clients import DISCOVER, Answer, Client, Clock, by, call, http, user_of
from failing import Failing
from starlette.types import Message, Receive, Scope, Send
from stateful import HEADER

from mcp_sessions import Session
from mcp_sessions.stores import MemoryStore

FORGED = {"sessionId": "forged"}
Ask = Callable[[Client], Awaitable[Answer]]


def options_of(name: str) -> dict[str, Any]:
    """Return the options that the answer of this name needs."""
    options: dict[str, dict[str, Any]] = {
        "too large": {"max_body_bytes": 10},
        "too many": {"create_limit": 1},
        "store unavailable": {"store": Failing("look_up")},
        "era": {"era": "legacy"},
        "listed": {"principal": user_of, "tracked": True},
        "required": {"require": "always"},
    }
    return options.get(name, {})


async def renewed(client: Client) -> Answer:
    """Call a tool with a cookie whose session is deleted."""
    cookie = (await client.send(DISCOVER)).cookie
    await client.tool("leave", cookie)
    return await client.tool("whoami", cookie)


async def deleted(client: Client) -> Answer:
    return await call(client.app, http("DELETE", headers=[await Client(client.app, modern=False).initialize()]))


async def deleted_twice(client: Client) -> Answer:
    ours = await Client(client.app, modern=False).initialize()
    return [await call(client.app, http("DELETE", headers=[ours])) for _ in range(2)][-1]


async def listened(client: Client) -> Answer:
    return await call(client.app, http("GET", headers=[await Client(client.app, modern=False).initialize()]))


async def forged_header(client: Client) -> Answer:
    ours = (await Client(client.app, modern=False).initialize())[1]
    return await Client(client.app, modern=False).tool("whoami", (HEADER, ours[:-2] + b"AA"))


async def created_twice(client: Client) -> Answer:
    return [await client.send("sessions/create") for _ in range(2)][-1]


async def of_session(client: Client, method: str) -> Answer:
    return await client.send(method, session=await client.create())


ANSWERS: dict[str, tuple[Ask, int]] = {
    "created": (lambda client: client.send("sessions/create"), 200),
    "forked": (lambda client: of_session(client, "sessions/fork"), 200),
    "deleted by message": (lambda client: of_session(client, "sessions/delete"), 200),
    "listed": (lambda client: client.send("sessions/list", None, by("ann")), 200),
    "refused": (lambda client: client.tool(session=FORGED), 200),
    "required": (lambda client: client.tool(), 200),
    "notification refused": (lambda client: client.send("notifications/x", session=FORGED, id=None), 400),
    "not JSON": (lambda client: client.post(b"{"), 400),
    "too large": (lambda client: client.post(b"x" * 11), 413),
    "encoded": (lambda client: client.post(b"{}", (b"content-encoding", b"gzip")), 415),
    "header twice": (lambda client: client.tool("whoami", (HEADER, b"a"), (HEADER, b"b")), 400),
    "too many": (created_twice, 429),
    "store unavailable": (lambda client: of_session(client, "tools/call"), 503),
    "era": (lambda client: client.send(DISCOVER), 404),
    "deleted by header": (deleted, 200),
    "deleted by header twice": (deleted_twice, 404),
    "forged header": (forged_header, 404),
    "no stream": (listened, 405),
    "cookie renewed": (renewed, 200),
}


@pytest.mark.parametrize("name", ANSWERS)
async def test_no_answer_of_ours_is_stored(name: str) -> None:
    """It may hold a credential, and a cache does not know sessions."""
    ask, status = ANSWERS[name]
    answer = await ask(Client(sessions(Server(), **options_of(name))))
    assert answer.status == status
    assert [value for header, value in answer.start["headers"] if header == b"cache-control"] == [b"no-store"]


@pytest.mark.parametrize("status", [100, 199, 200, 202, 204, 299, 300, 302, *range(400, 432), 451, 500, 503, 599])
async def test_a_success_or_a_missing_method_admits_a_deletion(status: int) -> None:
    """Any other answer goes to the caller as it came, and the session lives on."""

    async def guard(scope: Scope, send: Send) -> bool:
        if scope["method"] == "DELETE":
            await reply(send, b"the server's own", status=status, media_type=b"text/own")
        return bool(scope["method"] == "DELETE")

    client = Client(sessions(Server(guard=guard)), modern=False)
    ours = await client.initialize()
    answer = await call(client.app, http("DELETE", headers=[ours]))
    admitted = 200 <= status < 300 or status == 405
    assert (answer.status, answer.body) == ((200, b"") if admitted else (status, b"the server's own"))
    assert ((await client.tool("whoami", ours)).status == 404) is admitted


@pytest.mark.parametrize("status", [*range(400, 432), 451, 500, 503])
@pytest.mark.parametrize("bridge", [True, False])
async def test_a_server_that_misses_its_id_has_admitted_the_caller(status: int, bridge: bool) -> None:
    """Behind the bridge our refusal takes the place of 400 and 404, since the client's id never reaches the server."""
    shut = False

    async def guard(scope: Scope, send: Send) -> bool:
        if shut:
            await reply(send, b"the server's own", status=status, media_type=b"text/own")
        return shut

    client = Client(sessions(Server(guard=guard), store=MemoryStore(), bridge=bridge), modern=False)
    ours = (await client.initialize())[1]
    shut = True
    answer = await client.tool("whoami", (HEADER, ours[:-2] + b"AA"))
    if bridge and status in {400, 404}:
        assert (answer.status, answer.error["code"]) == (404, -32043)
    else:
        assert (answer.status, answer.body) == (status, b"the server's own")


async def test_error_in_place_of_a_late_answer_is_not_stored() -> None:
    """Though the server lets its own answer be stored."""
    store, clock, held = MemoryStore(clock=Clock()), Clock(), dict[str, str]()

    async def work(session: Session | None, arguments: dict[str, Any]) -> str:
        clock.now += 2
        await Client(sessions(Server(), store=store, clock=clock)).delete(held)
        return "done"

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        async def stored(event: Message) -> None:
            more = [(b"cache-control", b"public, max-age=60")] if event["type"] == "http.response.start" else []
            await send({**event, "headers": [*event["headers"], *more]} if more else event)

        await server(scope, receive, stored)

    server = Server(work=work)
    client = Client(sessions(app, store=store, clock=clock))
    held.update(await client.create())
    answer = await client.tool("work", session=held)
    assert (answer.error["code"], answer.headers[b"cache-control"]) == (-32043, b"no-store")
