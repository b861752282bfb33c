"""What an OTLP receiver gets from four kinds of server, two replicas each, whose clients use both replicas in turn.

Each replica is a process of its own (`tests/support/fleet.py`). They share a Redis store and their keys.
"""

from __future__ import annotations

import json
import os
import secrets
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import cycle
from pathlib import Path
from typing import Any
from uuid import uuid4

import httpx
import pytest
import redis_servers
from apps import Server
from clients import LEGACY, MODERN, Client
from environments import needs
from otlp import Received, Receiver, receiving

from integration.servers import CELLS
from mcp_sessions import __version__
from mcp_sessions.telemetry._attributes import server_ref

TESTS = Path(__file__).resolve().parents[1]
KINDS = ("sdk", "fastmcp", "fastapi", "starlette")
HTTP = {"fastapi": "fastapi", "starlette": "opentelemetry.instrumentation.asgi"}  # what makes a span of a request
NEW = {"sdk", "fastapi"} if any(cell.modern for cell in CELLS) else set()  # whose clients are of the modern era
CLIENT_INFO = {"name": "kitchen", "version": "2"}
META = {"_meta": {"io.modelcontextprotocol/clientInfo": CLIENT_INFO}}
INITIALIZE = {"protocolVersion": LEGACY, "capabilities": {}, "clientInfo": CLIENT_INFO}
OURS = "mcp_sessions"
CALLER, HEADER = ("ca" * 16, "ca" * 8), ("8a" * 16, "8a" * 8)  # the traces and spans that a request brings


def traceparent(context: tuple[str, str]) -> str:
    return f"00-{context[0]}-{context[1]}-01"


class Visitor:
    """A client that sends each request to the next replica; the id of a message is the name of the step."""

    def __init__(self, http: httpx.Client, kind: str, ports: list[int]) -> None:
        path = "/api/mcp" if kind in HTTP else "/mcp"
        self._http = http
        self._urls = cycle([f"http://127.0.0.1:{port}{path}" for port in ports])
        self._client = Client(Server(), modern=kind in NEW)  # whose messages are taken

    def post(self, step: str, method: str, params: Any, session: Any = None, **more: str) -> httpx.Response:
        message = self._client.message(method, params, id=step, session=session)
        headers = {name.decode(): value.decode() for name, value in self._client.headers(method)}
        if "name" in params:
            headers["mcp-name"] = params["name"]
        return self._http.post(next(self._urls), json=message, headers={**headers, **more})

    def tool(self, step: str, session: Any, article: str | None = None, meta: Any = None, **more: str) -> None:
        call = (
            {"name": "look", "arguments": {}} if article is None else {"name": "buy", "arguments": {"article": article}}
        )
        self.post(step, "tools/call", {**call, "_meta": meta or {}}, session, **more)

    def initialize(self) -> str:
        """Begin a session of a client of today, and return its header."""
        self._client = Client(Server(), modern=False)
        return str(self.post("initialize", "initialize", INITIALIZE).headers["mcp-session-id"])

    def send(self, method: str, header: str) -> int:
        """Send a request without a message."""
        headers = {"mcp-session-id": header, "accept": "application/json, text/event-stream"}
        with self._http.stream(method, next(self._urls), headers=headers) as answer:
            return answer.status_code


@dataclass(frozen=True)
class Visit:
    """What one kind of server has sent, and the credentials that its client held."""

    kind: str
    sent: Receiver
    credentials: list[str]

    def trace(self, trace: str) -> list[Received]:
        return [span for span in self.sent.spans if span.trace == trace]

    def message(self, step: str) -> Received:
        """The span of a message, of its server's or of ours."""
        (span,) = [one for one in self.sent.spans if one.attributes.get("jsonrpc.request.id") == step]
        return span

    def outermost(self, step: str) -> Received:
        """The span of a request above which there is none here."""
        spans = self.trace(self.message(step).trace)
        (span,) = [one for one in spans if one.parent not in {other.id for other in spans}]
        return span

    def requests(self, method: str) -> list[Received]:
        """The spans of the requests without a message, by HTTP method."""
        names = ("http.method", "http.request.method")  # of earlier conventions, and of today's
        return [span for span in self.http if method in said(span, *names)]

    def named(self, name: str, ref: str) -> Received:
        """The one span of a name in a session."""
        (span,) = [one for one in self.sent.spans if one.name == name and one.attributes.get("session.id") == ref]
        return span

    @property
    def http(self) -> list[Received]:
        """The spans of an HTTP instrumentation."""
        return [span for span in self.sent.spans if span.scope == HTTP.get(self.kind)]

    @property
    def ref(self) -> str:
        """The session that the messages name."""
        return str(self.message("create").attributes["session.id"])

    @property
    def header_ref(self) -> str:
        """The session of the header."""
        (ref,) = {one.attributes.get("session.id") for one in self.sent.spans} - {None, self.ref}
        return str(ref)


def visit(visitor: Visitor, *, stateful: bool = False) -> list[str]:
    """Live two sessions, one by the message and one by the header, and return their credentials."""
    if stateful:
        header = visitor.initialize()
        visitor.tool("look", None, **{"mcp-session-id": header})
        return [header]
    held = visitor.post("create", "sessions/create", META).json()["result"]["session"]
    session = {"sessionId": held["sessionId"]}
    visitor.tool("look", session)
    visitor.tool("buy", session, "hat")
    visitor.tool("broken", session, "air")
    visitor.tool("header", session, traceparent=traceparent(HEADER))
    visitor.tool("both", session, meta={"traceparent": traceparent(CALLER)}, traceparent=traceparent(HEADER))
    visitor.tool("stolen", session, **{"x-user": "bob"})
    visitor.post("delete", "sessions/delete", {}, session)
    visitor.tool("ended", session)
    visitor.post("refused", "sessions/create", META, **{"x-banned": "yes"})
    header = visitor.initialize()
    assert [visitor.send(method, header) for method in ("GET", "DELETE", "DELETE")] == [405, 200, 404]
    return [held["sessionId"], header]


@pytest.fixture(scope="module")
def visits() -> Iterator[dict[str, Visit]]:
    """Start all replicas, visit them, and end them, which sends the last of their telemetry."""
    with ExitStack() as stack:
        receivers = {kind: stack.enter_context(receiving()) for kind in (*KINDS, "stateful")}
        environment = {
            **os.environ,
            "PYTHONPATH": os.pathsep.join(
                filter(None, [*map(str, (TESTS, TESTS / "support")), os.environ.get("PYTHONPATH")])
            ),
            "OTEL_SERVICE_NAME": "shop",
            "OTEL_EXPORTER_OTLP_TIMEOUT": "120",
            "MCP_SESSIONS_KEYS": secrets.token_urlsafe(32),
            "SHOP_REDIS": redis_servers.shared().url,
            "SHOP_PREFIX": f"{uuid4().hex}:",
        }
        endpoints = json.dumps({kind: received.url for kind, received in receivers.items()})
        command = [sys.executable, "-m", "fleet", endpoints]
        with (
            httpx.Client(timeout=60) as http,
            subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment) as fleet,
        ):
            assert fleet.stdin is not None
            assert fleet.stdout is not None
            try:
                ports = json.loads(fleet.stdout.readline())
                visitors = {kind: Visitor(http, kind, ports[kind][: 1 if kind == "stateful" else 2]) for kind in ports}
                held = {kind: visit(visitor, stateful=kind == "stateful") for kind, visitor in visitors.items()}
            finally:
                fleet.stdin.close()
            assert fleet.wait() == 0
        yield {kind: Visit(kind, received, held[kind]) for kind, received in receivers.items()}


@pytest.fixture(params=KINDS)
def one(request: pytest.FixtureRequest, visits: dict[str, Visit]) -> Visit:
    return visits[request.param]


def said(span: Received, *names: str) -> list[Any]:
    return [span.attributes.get(name) for name in names]


def test_the_replicas_of_each_kind_share_a_session(one: Visit) -> None:
    """Each names itself, and each has handled messages of the session."""
    within = [span.resource for span in one.sent.spans if said(span, "session.id") == [one.ref]]
    assert {resource["service.name"] for resource in within} == {"shop"}
    assert len({resource["service.instance.id"] for resource in within}) == 2


# --- refusals ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("step", "user", "reason", "severities"),
    [("stolen", "bob", "token_principal", [9, 13]), ("ended", "ann", "ended", [9])],
)
def test_a_refusal_is_in_its_session_and_so_are_its_lines(
    one: Visit, step: str, user: str, reason: str, severities: list[int]
) -> None:
    """With who sent it and a link to the session's start; its lines in the log have the same session and trace."""
    refused, start = one.message(step), one.named("session start", one.ref)
    assert said(refused, "session.id", "error.type", "mcp_sessions.reason") == [one.ref, "-32043", reason]
    assert said(refused, "user.id", "client.address", "mcp_sessions.client") == [user, "127.0.0.1", "kitchen 2"]
    assert (refused.kind, refused.is_error) == ("SERVER", True)
    assert refused.links == {start.id: {"mcp_sessions.link": "start"}}
    lines = [line for line in one.sent.logs if line.trace == refused.trace]
    assert [line.severity for line in lines] == severities
    for line in lines:
        assert line.span == refused.id
        assert reason in line.text
        assert [line.attributes[name] for name in ("session.id", "trace_id")] == [one.ref, refused.trace]


def test_of_a_creation_that_is_refused_there_is_no_session(one: Visit) -> None:
    """All that is sent is of the two sessions that began, or of none."""
    refused = one.trace(one.message("refused").trace)
    assert {span.attributes.get("session.id") for span in refused} == {None}
    assert said(one.message("refused"), "error.type", "mcp_sessions.reason") == ["-31045", "create_refused"]
    refs = {span.attributes.get("session.id") for span in one.sent.spans}
    refs |= {line.attributes.get("session.id") for line in one.sent.logs}
    assert refs == {None, one.ref, one.header_ref}


# --- spans of requests -------------------------------------------------------------------------------

STEPS = {
    "create": ("sessions/create", None, None),
    "look": ("tools/call", "look", None),
    "buy": ("tools/call", "buy", None),
    "broken": ("tools/call", "buy", "tool_error"),
    "stolen": ("tools/call", "look", "-32043"),
    "delete": ("sessions/delete", None, None),
    "ended": ("tools/call", "look", "-32043"),
}
MESSAGES = {*STEPS, "header", "both", "refused", "initialize"}


def test_the_outermost_span_says_what_the_request_was(one: Visit) -> None:
    for step, (method, tool, error) in STEPS.items():
        outer = one.outermost(step)
        assert said(outer, "mcp.method.name", "gen_ai.tool.name", "error.type") == [method, tool, error], step
        assert said(outer, "session.id") == [one.ref], step
        assert outer.name == " ".join(filter(None, ["POST" if one.http else None, method, tool]))
        assert (outer.kind, outer.is_error) == ("SERVER", error is not None)


@pytest.mark.parametrize("kind", HTTP)
@pytest.mark.parametrize(("method", "errors"), [("GET", [None]), ("DELETE", [None, "-32043"])])
def test_so_does_that_of_a_request_without_a_message(
    visits: dict[str, Visit], kind: str, method: str, errors: list[str | None]
) -> None:
    one = visits[kind]
    assert {said(span, "error.type")[0] for span in one.requests(method)} == {*errors}
    assert [said(span, "session.id", "user.id") for span in one.requests(method)] == [[one.header_ref, "ann"]] * len(
        errors
    )


def test_nothing_of_our_own_plumbing_is_sent(one: Visit) -> None:
    """No command of the store, of which there are many more than of the shop, and no second span of a request."""
    redis = [span for span in one.sent.spans if span.scope == "opentelemetry.instrumentation.redis"]
    assert [(span.name, *said(span, "session.id")) for span in redis] == [("PING", one.ref)] * 2
    servers = [span for span in one.sent.spans if span.kind == "SERVER"]
    assert len(servers) == len(MESSAGES) + len(one.http)
    assert len(one.http) == (len(MESSAGES) + 3 if one.kind in HTTP else 0)
    roots = [span for span in one.sent.spans if span.scope == OURS and not span.parent]
    assert not (one.http and roots)
    apart = {span.name for span in roots if "mcp.method.name" not in span.attributes}
    assert apart <= {"session end"}


def test_every_span_says_who_sent_the_request(one: Visit) -> None:
    """Ours and the server's, also those of a session's start and end, however it ends."""
    spans = [span for span in one.sent.spans if span.scope == OURS or span.kind == "SERVER"]
    stolen = one.message("stolen").trace
    for span in spans:
        assert said(span, "user.id", "client.address") == ["bob" if span.trace == stolen else "ann", "127.0.0.1"], span
        assert span in one.http or said(span, "mcp_sessions.client") == ["kitchen 2"], span


# --- sessions ----------------------------------------------------------------------------------------


def test_what_runs_for_a_session_is_in_it(one: Visit) -> None:
    """Its hooks, also where the header or an HTTP request without a message ends it, and a thread of a tool."""
    for ref, first, last in ((one.ref, "create", "delete"), (one.header_ref, "initialize", None)):
        trace = one.message(first).trace
        assert {one.named(name, ref).trace for name in ("session start", "in on_create")} == {trace}
        end, start = one.named("session end", ref), one.named("session start", ref)
        assert end.links == {start.id: {"mcp_sessions.link": "start"}}
        assert said(end, "mcp_sessions.reason") == ["deleted"]
        assert 0 <= end.attributes["mcp_sessions.duration"] < 600
        one.named("in on_end", ref)
        assert last is None or end.trace == one.message(last).trace
        (created,) = [line for line in one.sent.logs if line.text == f"session {ref} created"]
        assert (created.trace, created.attributes["session.id"]) == (trace, ref)
    threads = [(span.parent, *said(span, "session.id")) for span in one.sent.spans if span.name == "in a thread"]
    assert sorted(threads) == sorted((one.message(step).id, one.ref) for step in ("buy", "broken"))


def test_the_caller_s_trace_context_is_the_parent_and_the_other_is_linked(one: Visit) -> None:
    """That of the HTTP headers, by way of an HTTP instrumentation where there is one."""
    start = {one.named("session start", one.ref).id: {"mcp_sessions.link": "start"}}
    by_header, by_both = one.message("header"), one.message("both")
    around = [span for span in one.http if span.trace == HEADER[0]]
    assert {span.parent for span in around} == ({HEADER[1]} if one.http else set())
    first, second = [span.id for span in around] or [HEADER[1]] * 2
    transport = second if by_header.parent == first else first
    assert (by_header.trace, by_header.links) == (HEADER[0], start)
    assert by_header.parent in {first, second}
    assert (by_both.trace, by_both.parent) == CALLER
    assert by_both.links == {transport: {"mcp_sessions.link": "transport"}, **start}


@pytest.mark.parametrize("kind", ["stateful"])
def test_a_session_of_the_server_s_own_is_named_by_its_hash(visits: dict[str, Visit], kind: str) -> None:
    """For a client of today, without the bridge."""
    look = visits[kind].message("look")
    ref = server_ref(*visits[kind].credentials)
    assert said(look, "session.id", "mcp.session.id", "mcp_sessions.source") == [ref, ref, "server"]
    assert said(look, "user.id", "client.address", "mcp_sessions.client") == ["ann", "127.0.0.1", "kitchen 2"]


@pytest.mark.parametrize("kind", [*KINDS, "stateful"])
def test_no_credential_is_sent(visits: dict[str, Visit], kind: str) -> None:
    for credential in visits[kind].credentials:
        secret = credential.rpartition(".")[2].encode()
        assert not any(secret in body for body in visits[kind].sent.bodies)


# --- attributes ----------------------------------------------------------------------------------------


def test_spans_have_what_the_conventions_ask_for(one: Visit) -> None:
    """Also that of an `initialize`; with an HTTP instrumentation, what is of the network is on the span of that."""
    ours = {(span.version, span.schema) for span in one.sent.spans if span.scope == OURS}
    assert ours == {(__version__, "https://opentelemetry.io/schemas/1.44.0")}
    version = MODERN if one.kind in NEW else LEGACY
    for step, spoken, operation in (("look", version, "execute_tool"), ("initialize", LEGACY, None)):
        span = one.message(step)
        assert said(span, "mcp.protocol.version", "gen_ai.operation.name") == [spoken, operation]
        network = said(span, "network.transport", "network.protocol.name", "network.protocol.version")
        assert network == ([None] * 3 if one.http else ["tcp", "http", "1.1"])
        assert span.attributes["client.port"] > 0


MAX_SPANS, MAX_BYTES = 2, 900
TWICE = {"session.id", "mcp.method.name", "gen_ai.tool.name", "user.id", "client.address", "client.port"}


@needs("mcp>=2")
def test_a_call_takes_few_spans_and_bytes(one: Visit) -> None:
    """Without what an HTTP instrumentation writes itself; of what is ours, little is on both spans."""
    spans = one.trace(one.message("look").trace)
    assert len(spans) == (2 if one.http else 1) <= MAX_SPANS
    theirs = sum(span.sizes[name] for span in spans[1:] for name in span.sizes.keys() - TWICE)
    assert sum(span.size for span in spans) - theirs <= MAX_BYTES
    assert not one.http or set.intersection(*(set(span.sizes) for span in spans)) == TWICE
