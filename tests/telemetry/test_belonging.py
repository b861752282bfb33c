"""Spans say who sends a request where the application lets them, and name the wrapped server's own sessions."""

from __future__ import annotations

from typing import Any

import pytest
from apps import Server, sessions
from clients import INITIALIZE, Client, by, call, http, user_of
from opentelemetry import trace
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.trace import SpanKind
from recorded import named, said
from starlette.types import Receive, Scope, Send
from stateful import Stateful

from mcp_sessions._session.claims import Principal
from mcp_sessions.telemetry import _attributes
from mcp_sessions.telemetry._attributes import server_ref

NAMES = ("session.id", "mcp.session.id")
HEADER = b"mcp-session-id"


# --- who ---------------------------------------------------------------------------------------------


def user(principal: Principal) -> str | None:
    if principal.subject == "broken":
        raise LookupError(principal.subject)
    return None if principal.subject == "shy" else principal.subject


META = {"_meta": {"io.modelcontextprotocol/clientInfo": {"name": "wire", "version": "1"}}}
WHO = ("user.id", "client.address", "mcp_sessions.client")


async def test_each_span_of_a_session_says_who_sends_the_request(spans: list[ReadableSpan]) -> None:
    app = sessions(Server(), principal=user_of, user=user)
    client = Client(app, client=("192.0.2.7", 4242))
    held = (await client.send("sessions/create", META, by("ann"))).result["session"]
    await client.tool("whoami", by("ann"), session=held)
    await client.send("sessions/delete", None, by("ann"), session=held)
    names = ("session start", "sessions/create", "tools/call whoami", "session end", "sessions/delete")
    assert {span.name: said(span, *WHO) for span in spans} == {name: ["ann", "192.0.2.7", "wire 1"] for name in names}


async def test_a_user_whom_the_application_does_not_name_is_not_on_the_span(
    spans: list[ReadableSpan], caplog: pytest.LogCaptureFixture
) -> None:
    """Nor is one of an anonymous caller, whose address and client are; by default nothing of it is written."""
    app = sessions(Server(), principal=user_of, user=user)
    await Client(app, client=("192.0.2.7", 4242)).send("tools/list", META)
    assert said(spans[-1], *WHO) == [None, "192.0.2.7", "wire 1"]
    for name in ("shy", "broken"):
        await Client(app).tool("whoami", by(name))
        assert said(spans[-1], *WHO) == [None, None, None]
    assert "cannot add the user to a span: LookupError" in caplog.text
    await Client(sessions(Server(), principal=user_of), client=("192.0.2.7", 4242)).tool("whoami", by("ann"))
    assert said(spans[-1], *WHO) == [None, None, None]


# --- sessions of the wrapped server ------------------------------------------------------------------


async def test_a_session_of_the_server_is_named_by_its_hash(spans: list[ReadableSpan]) -> None:
    """Without the bridge and with unchanged clients: from its `initialize` on, and labelled as the server's."""
    inner = Stateful()

    async def server(scope: Scope, receive: Receive, send: Send) -> None:
        trace.get_tracer("tests").start_span("work").end()
        await inner(scope, receive, send)

    client = Client(sessions(server), modern=False)
    own = (await client.send("initialize", INITIALIZE)).headers[b"Mcp-Session-Id"]
    await client.tool("whoami", (HEADER, own))
    ref = server_ref(own.decode())
    assert ref.startswith("srv_")
    for name in ("initialize", "tools/call whoami"):
        assert said(named(spans, name), *NAMES, "mcp_sessions.source") == [ref, ref, "server"]
    assert said([span for span in spans if span.name == "work"][-1], *NAMES) == [ref, ref]
    assert not any(own.decode() in span.to_json() for span in spans)
    with trace.get_tracer("tests").start_as_current_span("http", kind=SpanKind.SERVER):
        await call(client.app, http("DELETE", headers=[(HEADER, own)]))
    assert said(named(spans, "http"), *NAMES) == [ref, ref]


@pytest.mark.parametrize("server", [Stateful, Server])
async def test_an_id_that_the_server_has_not_named_is_not_a_session(spans: list[ReadableSpan], server: Any) -> None:
    """Whether the server refuses it or, stateless, looks at none; also in what we refuse, and without a message."""
    client = Client(sessions(server()), modern=False)
    await client.tool("whoami", (HEADER, b"made-up"))
    await client.send("sessions/delete", {}, (HEADER, b"made-up"))
    for method in ("GET", "DELETE"):
        with trace.get_tracer("tests").start_as_current_span("http", kind=SpanKind.SERVER):
            await call(client.app, http(method, headers=[(HEADER, b"made-up")]))
    assert len(spans) == 4
    assert [said(span, *NAMES) for span in spans] == [[None, None]] * 4


async def test_the_sessions_of_the_server_that_are_known_are_bounded(
    spans: list[ReadableSpan], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_attributes, "_MAX_SESSIONS", 2)
    client = Client(sessions(Stateful()), modern=False)

    async def begin() -> bytes:
        return (await client.send("initialize", INITIALIZE)).headers[b"Mcp-Session-Id"]

    async def is_named(own: bytes) -> bool:
        await client.tool("whoami", (HEADER, own))
        return said(spans[-1], *NAMES) == [server_ref(own.decode())] * 2

    first, second = await begin(), await begin()
    assert await is_named(first)
    await begin()
    assert [await is_named(first), await is_named(second)] == [True, False]
