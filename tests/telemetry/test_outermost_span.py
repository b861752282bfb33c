"""The span around a request, of an HTTP instrumentation, says what the request was, as tools show it for the whole."""

import json
from contextlib import nullcontext
from typing import Any

import pytest
from apps import Server, reply, sessions
from clients import Client, Clock, RealClient, by, call, http, lifespan, user_of
from environments import require
from recorded import messages, named, said

from mcp_sessions import Session
from mcp_sessions.telemetry._core import Content, Redact

require("opentelemetry-sdk>=1.28")

from opentelemetry import baggage, trace
from opentelemetry.instrumentation.asgi import OpenTelemetryMiddleware
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.trace import StatusCode
from starlette.types import ASGIApp, Receive, Scope, Send

from integration.servers import CELLS, bare

CELL = next(cell for cell in CELLS if cell.json and not cell.stateful)


def instrumented(app: ASGIApp) -> ASGIApp:
    return OpenTelemetryMiddleware(app, exclude_spans=["send", "receive"])


def outermost(spans: list[ReadableSpan]) -> ReadableSpan:
    """The span of the last request."""
    return [span for span in spans if (span.attributes or {}).get("http.method")][-1]


META = {"io.modelcontextprotocol/clientInfo": {"name": "wire", "version": "1"}}
WHAT = ("session.id", "mcp.method.name", "gen_ai.tool.name", "error.type")


@pytest.mark.parametrize("is_native", [False, True])
async def test_it_names_the_session_the_method_the_tool_and_the_error(
    is_native: bool, spans: list[ReadableSpan]
) -> None:
    """Also where a session is one trace: around a server that makes spans itself, and around one that does not."""
    app = sessions(bare(CELL) if is_native else Server(), trace="session", transport="off")
    async with lifespan(app) if is_native else nullcontext():
        client = RealClient(instrumented(app), modern=CELL.modern)
        held = await client.create()
        created = outermost(spans)
        await client.send("tools/call", {"name": "whoami", "arguments": {}}, session=held)
        called = outermost(spans)
        await client.send("no/such", session=held)
        failed = outermost(spans)
        await client.delete(held)
    start = named(spans, "session start")
    (ref,) = said(start, "session.id")
    assert said(created, *WHAT) == [ref, "sessions/create", None, None]
    assert said(called, *WHAT) == [ref, "tools/call", "whoami", None]
    assert said(failed, *WHAT) == [ref, "no/such", None, None]
    assert said(failed, "rpc.response.status_code") in (["-32601"], ["-32602"])  # as SDK 1.x has it
    assert said(outermost(spans), *WHAT) == [ref, "sessions/delete", None, None]
    assert (created.name, called.name) == ("POST sessions/create", "POST tools/call whoami")
    assert failed.name == "POST _OTHER"
    assert (called.status.status_code, failed.status.status_code) == (StatusCode.UNSET, StatusCode.UNSET)


async def test_it_is_the_only_span_of_a_message(spans: list[ReadableSpan]) -> None:
    """It has what a span of the middleware would have, with links to the caller and to the start of the session."""

    async def look(session: Session | None, arguments: dict[str, Any]) -> str:
        trace.get_tracer("tests").start_span("inner").end()
        return str(baggage.get_baggage("basket"))

    client = Client(instrumented(sessions(Server(look=look))), http_version="1.1")
    held = await client.create()
    spans.clear()
    caller = f"00-{0xCA:032x}-{0xCA:016x}-01"
    meta = {**META, "traceparent": caller, "baggage": "basket=7"}
    answer = await client.send("tools/call", {"name": "look", "arguments": {}, "_meta": meta}, session=held)
    inner, span = spans
    assert answer.result["content"] == "7"
    assert (span.name, inner.parent) == ("POST tools/call look", span.context)
    found = dict(span.attributes or {})
    assert found["session.id"] == found["mcp.session.id"] == found["gen_ai.conversation.id"]
    expected = {"mcp.method.name": "tools/call", "gen_ai.tool.name": "look", "gen_ai.operation.name": "execute_tool"}
    expected |= {"mcp.protocol.version": "2026-07-28", "jsonrpc.request.id": "1", "mcp_sessions.client": "wire 1"}
    assert {name: found.get(name) for name in expected} == expected
    roles = {(link.attributes or {})["mcp_sessions.link"]: link.context for link in span.links}
    assert set(roles) == {"caller", "start"}
    assert roles["caller"].span_id == 0xCA


@pytest.mark.parametrize("options", [{"spans": "message"}, {"trace": "session"}])
async def test_a_message_has_two_spans_if_that_is_asked_for(options: dict[str, Any], spans: list[ReadableSpan]) -> None:
    """A session that is one trace needs one: the span around belongs to the trace of its caller."""
    client = Client(instrumented(sessions(Server(), **options)))
    held = await client.create()
    spans.clear()
    await client.tool(session=held)
    assert {span.name for span in spans} == {"tools/call whoami", "POST tools/call whoami"}


async def test_it_is_enriched_in_place_of_a_span_of_ours_where_that_is_asked_for(spans: list[ReadableSpan]) -> None:
    """With the session where there is one, and what is raised after an answer; else such a span may be of more."""

    async def late(scope: Scope, receive: Receive, send: Send) -> None:
        await Server()(scope, receive, send)
        if scope["mcp_session"] is not None:
            raise LookupError

    around = trace.get_tracer("tests").start_as_current_span
    client = Client(sessions(late, spans="enrich"))
    session = await client.create()
    await client.tool()
    with around("http"):
        await client.tool()
    with around("http"), pytest.raises(LookupError):
        await client.tool(session=session)
    with around("all"):
        await Client(sessions(Server())).tool(session=session)
    start, without, within, _, of_all = spans
    assert (start.name, without.name, within.name) == ("session start", "http", "http")
    assert said(without, *WHAT) == [None, "tools/call", "whoami", None]
    assert said(within, *WHAT) == [*said(start, "session.id"), "tools/call", "whoami", "LookupError"]
    assert (of_all.name, dict(of_all.attributes or {})) == ("all", {})


# --- refusals --------------------------------------------------------------------------------------


async def test_a_refusal_is_in_the_session_that_is_refused(spans: list[ReadableSpan]) -> None:
    """With a link to its start, and the client that the request itself names, or that of its owner's session."""
    clock = Clock()
    app = sessions(Server(), clock=clock, lifetime=60, principal=user_of, spans="message")
    client = Client(instrumented(app))
    thief = {"io.modelcontextprotocol/clientInfo": {"name": "thief", "version": "2"}}
    held = (await client.send("sessions/create", {"_meta": META}, by("ann"))).result["session"]
    for meta in (thief, {}):
        await client.send("tools/call", {"name": "whoami", "_meta": meta}, by("mallory"), session=held)
    clock.now += 60
    await client.tool("whoami", by("ann"), session=held)
    start = named(spans, "session start")
    (ref,) = said(start, "session.id")
    assert start.context is not None
    of_each = [("token_principal", "thief 2"), ("token_principal", None), ("expired", "wire 1")]
    for refused, (reason, name) in zip(messages(spans, "tools/call"), of_each, strict=True):
        assert said(refused, *WHAT, "mcp_sessions.client") == [ref, "tools/call", "whoami", "-32043", name]
        assert said(refused, "mcp_sessions.reason") == [reason]
        links = [(link.context.span_id, dict(link.attributes or {})) for link in refused.links]
        assert links == [(start.context.span_id, {"mcp_sessions.link": "start"})]
    assert said(outermost(spans), *WHAT, "mcp_sessions.reason") == [ref, "tools/call", "whoami", "-32043", "expired"]


async def test_a_request_without_a_message_says_whose_it_is(spans: list[ReadableSpan]) -> None:
    """And who sent it: a stolen id is in its session, a forged one in none. An odd body says why it is refused."""
    app = sessions(Server(), principal=user_of, user=lambda principal: principal.subject)
    client = Client(instrumented(app), modern=False, client=("192.0.2.7", 4242))
    name, own = await client.initialize()
    for method, status in (("GET", 405), ("DELETE", 404)):
        for session_id, who in ((own[:-8] + b"AAAAAAAA", "ann"), (own, "bob")):
            headers = [(name, session_id), by(who)]
            answer = await call(client.app, http(method, headers=headers, **client.scope))
            assert answer.status == status
    assert (await call(client.app, http("GET", headers=[(name, own)]))).body == b""
    (ref,) = said(named(spans, "session start"), "session.id")
    found = [span for span in spans if said(span, "http.method") != ["POST"] and said(span, "http.method") != [None]]
    says = [said(span, "session.id", "mcp_sessions.reason", "user.id", "client.address") for span in found]
    refused = [[None, "token_signature", "ann", "192.0.2.7"], [ref, "token_principal", "bob", "192.0.2.7"]]
    assert says == [*refused, *refused, [ref, None, None, None]]
    await call(client.app, http(), b"[")
    assert said(outermost(spans), "rpc.response.status_code", "mcp_sessions.reason") == ["-32700", "not_json"]


async def test_of_two_sessions_that_a_request_names_the_refused_one_counts(spans: list[ReadableSpan]) -> None:
    """The message's, if it is none; else the header's, which has ended."""
    client = Client(sessions(Server()), modern=False)
    header, held = await client.initialize(), await client.create()
    await call(client.app, http("DELETE", headers=[header]))
    forged = {**held, "sessionId": held["sessionId"][:-8] + "AAAAAAAA"}
    for session in (held, forged):
        await client.tool("whoami", header, session=session)
    (ended,) = said(named(spans, "session end"), "session.id")
    found = [said(span, "session.id", "mcp_sessions.reason") for span in messages(spans, "tools/call")]
    assert found == [[ended, "ended"], [None, "token_signature"]]


async def test_without_spans_such_requests_are_served_all_the_same(spans: list[ReadableSpan]) -> None:
    client = Client(sessions(Server(), spans="off", inspector="127.0.0.1:8787"), modern=False)
    header = await client.initialize()
    assert [(await call(client.app, http("DELETE", headers=[header]))).status for _ in range(2)] == [200, 404]
    assert (await call(client.app, http(), b"[")).status == 400
    assert spans == []


# --- arguments and results ---------------------------------------------------------------------------


def whole(what: Content, tool: str, value: Any) -> Any:
    return value


SIDES = ("input.value", "output.value", "gen_ai.tool.call.arguments", "gen_ai.tool.call.result")


async def test_both_sides_of_a_call_are_on_its_span(spans: list[ReadableSpan]) -> None:
    """A call may have no arguments, a list has none worth the name, and what is strange is left to the server."""
    client = Client(sessions(Server(), redact=whole))
    await client.tool(card="4111")
    await client.send("tools/list")
    for params in ({}, {"arguments": [1]}):
        await client.send("tools/call", {"name": "whoami", **params})
    assert said(spans[0], *SIDES) == [None, None, '{"card": "4111"}', given := '{"content": "nobody"}']
    assert [said(span, *SIDES[2:]) for span in spans[1:]] == [[None, None], [None, given], ["[1]", given]]


@pytest.mark.parametrize("makes", ["auto", "message"])
async def test_phoenix_and_mlflow_find_both_sides_on_the_outermost_span(makes: str, spans: list[ReadableSpan]) -> None:
    """OpenInference's names are there only if they are asked for; OpenTelemetry's are on the message's own span."""
    app = sessions(Server(), redact=whole, openinference=True, spans=makes)
    await Client(instrumented(app)).tool(card="4111")
    both = ['{"card": "4111"}', '{"content": "nobody"}']
    outermost, *others = sorted(spans, key=lambda span: span.parent is not None)
    assert said(outermost, *SIDES) == [*both, *(both if makes == "auto" else [None, None])]
    assert [said(span, *SIDES) for span in others] == ([] if makes == "auto" else [[None, None, *both]])


async def test_without_redact_both_sides_are_the_tool_and_the_outcome(spans: list[ReadableSpan]) -> None:
    await Client(sessions(Server(), openinference=True)).tool(card="4111")
    (span,) = spans
    assert said(span, *SIDES) == ["tools/call whoami", "success", None, None]


@pytest.mark.parametrize("is_instrumented", [True, False])
async def test_both_sides_are_recorded_around_a_server_that_makes_spans(
    is_instrumented: bool, spans: list[ReadableSpan]
) -> None:
    """The server's own span ends before its answer leaves, so one of the middleware is around it if nothing else is."""
    app = sessions(bare(CELL), transport="off", redact=whole)
    async with lifespan(app):
        await RealClient(instrumented(app) if is_instrumented else app, modern=CELL.modern).call("whoami")
    (outer,) = [span for span in spans if span.parent is None]
    assert len(spans) <= 2
    assert said(outer, *SIDES)[:3] == [None, None, "{}"]
    assert "nobody" in said(outer, SIDES[3])[0]
    assert all(span.parent.span_id == outer.context.span_id for span in spans if span.parent and outer.context)


async def test_the_error_of_a_call_is_on_its_span_as_redact_allows(spans: list[ReadableSpan]) -> None:
    """A JSON-RPC error has a message of its own, which may quote a client."""

    async def broken(scope: Scope, receive: Receive, send: Send) -> None:
        await reply(send, b'{"error":{"code":-32603,"message":"no stock for 4111"}}')

    def cause(what: Content, tool: str, value: Any) -> Any:
        return value["message"].partition(" for")[0] if what == "error" else None

    for redact in (cause, None):
        await Client(sessions(broken, redact=redact)).tool(card="4111")
    assert [said(span, "error.type", "error.message") for span in spans] == [["-32603", "no stock"], ["-32603", None]]


async def test_users_can_be_grouped_without_their_names(spans: list[ReadableSpan]) -> None:
    client = Client(sessions(Server(), principal=user_of))
    for user in ("ann@shop", "ann@shop", "bob@shop"):
        held = await client.create(by(user))
        await client.tool("whoami", by(user), session=held)
    ann, again, bob = [said(span, "enduser.pseudo.id")[0] for span in messages(spans, "tools/call")]
    assert ann == again != bob
    assert len(ann) == 16
    assert not [span for span in spans if "@shop" in span.to_json()]


async def test_a_server_that_answers_no_question_is_no_error(spans: list[ReadableSpan]) -> None:
    """Asked whether it admits the caller, it returns without a word: so does the request."""

    async def silent(scope: Scope, receive: Receive, send: Send) -> None:
        pass

    client = Client(sessions(silent))
    message = json.dumps(client.message("sessions/create")).encode()
    answer = await call(client.app, http(headers=client.headers("sessions/create")), message)
    assert answer.messages == []


# --- what the application lets through ---------------------------------------------------------------


def some(what: Content, tool: str, value: Any) -> Any:
    return f"{tool}: {len(value)}" if what == "arguments" else None


def broken(what: Content, tool: str, value: Any) -> Any:
    raise LookupError(str(value))


def later(what: Content, tool: str, value: Any) -> Any:
    """An async function, as a decorator may hide it."""

    async def redacted() -> Any:
        return value

    return redacted()


@pytest.mark.parametrize(
    ("redact", "expected"),
    [
        (whole, ['{"card": "4111"}', '{"content": {"card": "4111"}}']),
        (some, ["remember: 1", None]),
        (broken, [None, None]),
        (later, [None, None]),
    ],
)
async def test_what_the_function_gives_is_written(
    redact: Redact, expected: list[str | None], spans: list[ReadableSpan], caplog: pytest.LogCaptureFixture
) -> None:
    """Never with a session in it; a function that fails writes nothing, and the call goes on."""
    client = Client(sessions(Server(), redact=redact))
    held = await client.create()
    await client.tool("remember", session=held, card="4111")
    span = named(spans, "tools/call remember")
    assert said(span, *SIDES[2:]) == expected
    assert held["sessionId"] not in span.to_json()
    assert "io.modelcontextprotocol" not in span.to_json()
    warnings = [text for text in caplog.messages if text.startswith("cannot record")]
    assert len(warnings) == (2 if redact in {broken, later} else 0)
    assert "4111" not in caplog.text
