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
from functools import partial
from importlib.metadata import requires
from itertools import cycle
from pathlib import Path
from typing import Any
from uuid import uuid4

import httpx
import pytest
import redis_servers
from apps import Server
from clients import LEGACY, Client
from otlp import Received, Receiver, receiving

from integration.servers import CELLS, FRAMEWORKS

TESTS = Path(__file__).resolve().parents[1]
KINDS = ("sdk", "fastmcp", "fastapi", "starlette")
HTTP = {"starlette": "opentelemetry.instrumentation.asgi"}  # what makes spans of HTTP requests
if any(needed.startswith("opentelemetry-api") for needed in requires("fastapi") or ()):  # pragma: no branch
    HTTP["fastapi"] = "fastapi"  # as its newer versions do themselves
NEW = {"sdk", "fastapi"} if any(cell.modern for cell in CELLS) else set()  # whose clients are of the modern era
SILENT = {"fastmcp"} if FRAMEWORKS[1] == "fastmcp3" else set()  # which make no span of an `initialize`
OURS = "mcp_sessions"

CLIENT_INFO = {"name": "kitchen", "version": "2"}
NAMED = {"_meta": {"io.modelcontextprotocol/clientInfo": CLIENT_INFO}}
INITIALIZE = {"protocolVersion": LEGACY, "capabilities": {}, "clientInfo": CLIENT_INFO}
CALL, LOOK = "tools/call", {"name": "look", "arguments": {}}
# What is sent in a session, by the name of the step, which is the message's id: its method, params and headers.
STEPS: dict[str, tuple[str, dict[str, Any], dict[str, str]]] = {
    "look": (CALL, LOOK, {}),
    "look again": (CALL, LOOK, {}),  # at the other replica, which knows the tool from then on
    "buy": (CALL, {"name": "buy", "arguments": {"article": "hat"}}, {}),
    "broken": (CALL, {"name": "buy", "arguments": {"article": "air"}}, {}),
    "stolen": (CALL, LOOK, {"x-user": "bob"}),
    "delete": ("sessions/delete", {}, {}),
    "ended": (CALL, LOOK, {}),
}
MESSAGES = {*STEPS, "create", "initialize", "first"}
LISTS = "tools/list"  # which FastMCP 3 asks itself before its first call


def visit(http: httpx.Client, kind: str, ports: list[int]) -> list[str]:
    """Live two sessions, one by messages and one by the header, each request at the next replica; return their ids."""
    path = "/api/mcp" if kind in {"fastapi", "starlette"} else "/mcp"
    urls = cycle([f"http://127.0.0.1:{port}{path}" for port in ports])

    def post(
        modern: bool, step: str, method: str, params: dict[str, Any], headers: dict[str, str], **session: Any
    ) -> httpx.Response:
        client = Client(Server(), modern=modern)  # whose messages are taken
        usual = {name.decode(): value.decode() for name, value in client.headers(method)}
        named = {"mcp-name": params["name"]} if "name" in params else {}
        message = client.message(method, params, id=step, **session)
        return http.post(next(urls), json=message, headers={**usual, **named, **headers})

    send = partial(post, kind in NEW)
    held = send("create", "sessions/create", NAMED, {}).json()["result"]["session"]["sessionId"]
    for step, (method, params, headers) in STEPS.items():
        send(step, method, params, headers, session={"sessionId": held})
    header: str = post(False, "initialize", "initialize", INITIALIZE, {}).headers["mcp-session-id"]
    post(False, "first", CALL, LOOK, {"mcp-session-id": header})
    without_message = [
        http.request(method, next(urls), headers={"mcp-session-id": header}).status_code
        for method in ("GET", "DELETE", "DELETE")
    ]
    assert without_message == [405, 200, 404]
    return [held, header]


@dataclass(frozen=True)
class Visit:
    """What one kind of server has sent, and the session ids that its client held."""

    kind: str
    sent: Receiver
    held: list[str]

    @property
    def ref(self) -> str:
        """The session of the messages."""
        return str(self.message("create").attributes["session.id"])

    @property
    def header_ref(self) -> str:
        """The session of the header."""
        (ref,) = {span.attributes.get("session.id") for span in self.sent.spans} - {None, self.ref}
        return str(ref)

    @property
    def http(self) -> list[Received]:
        """The spans of an HTTP instrumentation."""
        return [span for span in self.sent.spans if span.scope == HTTP.get(self.kind)]

    def message(self, step: str) -> Received:
        """The span of a message, of its server's or of ours."""
        (span,) = [one for one in self.sent.spans if one.attributes.get("jsonrpc.request.id") == step]
        return span

    def trace(self, step: str) -> list[Received]:
        """The spans of a message's trace, the outermost first."""
        spans = [one for one in self.sent.spans if one.trace == self.message(step).trace]
        return sorted(spans, key=lambda one: one.parent in {other.id for other in spans})

    def named(self, name: str, ref: str) -> Received:
        """The one span of a name in a session."""
        (span,) = [one for one in self.sent.spans if one.name == name and one.attributes.get("session.id") == ref]
        return span

    def link(self, ref: str) -> dict[str, dict[str, Any]]:
        """The link to the start of a session."""
        return {self.named("session start", ref).id: {"mcp_sessions.link": "start"}}


@pytest.fixture(scope="module")
def visits() -> Iterator[dict[str, Visit]]:
    """Start all replicas, visit them, and end them, which sends the last of their telemetry."""
    with ExitStack() as stack:
        receivers = {kind: stack.enter_context(receiving()) for kind in KINDS}
        environment = {
            **os.environ,
            "PYTHONPATH": os.pathsep.join([str(TESTS), str(TESTS / "support"), os.environ.get("PYTHONPATH", "")]),
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
                held = {kind: visit(http, kind, ports[kind]) for kind in KINDS}
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
    within = [span.resource for span in one.sent.spans if said(span, "session.id") == [one.ref]]
    assert {resource["service.name"] for resource in within} == {"shop"}
    assert len({resource["service.instance.id"] for resource in within}) == 2


# --- refusals ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("step", "caller", "reason", "severities"),
    [("stolen", ["bob", None], "token_principal", [9, 13]), ("ended", ["ann", "kitchen 2"], "ended", [9])],
)
def test_a_refusal_is_in_its_session_and_so_are_its_lines(
    one: Visit, step: str, caller: list[str | None], reason: str, severities: list[int]
) -> None:
    """With who sent it, which for a thief is not the owner's client, and a link to the session's start.

    Its lines in the log have the same session and trace.
    """
    refused = one.message(step)
    assert said(refused, "session.id", "error.type", "mcp_sessions.reason") == [one.ref, "-32043", reason]
    assert said(refused, "user.id", "mcp_sessions.client", "client.address") == [*caller, "127.0.0.1"]
    assert (refused.kind, refused.is_error, refused.links) == ("SERVER", True, one.link(one.ref))
    lines = [line for line in one.sent.logs if line.trace == refused.trace]
    assert [line.severity for line in lines] == severities
    for line in lines:
        assert reason in line.text
        assert line.span == refused.id
        assert line.attributes["session.id"] == one.ref
        assert not {"trace_id", "span_id", "session"} & line.attributes.keys()  # each id stands there once


# --- spans of requests -------------------------------------------------------------------------------

ERRORS = {"broken": "tool_error", "stolen": "-32043", "ended": "-32043"}


def test_the_outermost_span_says_what_the_request_was(one: Visit) -> None:
    for step, (method, params, _) in STEPS.items():
        outer, error = one.trace(step)[0], ERRORS.get(step)
        name = " ".join(filter(None, ["POST" if one.http else "", method, params.get("name", "")]))
        # Before its first success or its answer, a tool that fails may not exist.
        assert outer.name in {name, name.replace("buy", "_OTHER") if step == "broken" else name}
        assert (outer.kind, outer.is_error) == ("SERVER", error is not None)
        assert said(outer, "mcp.method.name", "gen_ai.tool.name") == [method, params.get("name")]
        assert said(outer, "session.id", "error.type") == [one.ref, error]
    assert said(one.trace("create")[0], "mcp.method.name", "session.id") == ["sessions/create", one.ref]


def test_nothing_of_our_own_plumbing_is_sent(one: Visit) -> None:
    """No command of the store, of which there are many more than of the shop, and no second span of a request."""
    redis = [span for span in one.sent.spans if span.scope == "opentelemetry.instrumentation.redis"]
    assert [(span.name, *said(span, "session.id")) for span in redis] == [("PING", one.ref)] * 2
    servers = [span for span in one.sent.spans if span.kind == "SERVER" and span.name != LISTS]
    assert len(servers) == len(MESSAGES) - (one.kind in SILENT) + len(one.http)
    assert len(one.http) == (len(MESSAGES) + 3 if one.kind in HTTP else 0)
    roots = [span for span in one.sent.spans if span.scope == OURS and not span.parent]
    assert not (one.http and roots)
    apart = {span.name for span in roots if "mcp.method.name" not in span.attributes}
    assert apart <= {"session end", *([] if one.kind in HTTP else ["session start"])}


def test_every_span_says_who_sent_the_request(one: Visit) -> None:
    spans = [span for span in one.sent.spans if span.scope == OURS or (span.kind == "SERVER" and span.name != LISTS)]
    for span in spans:
        user, client = ("bob", None) if span in one.trace("stolen") else ("ann", "kitchen 2")
        assert said(span, "user.id", "client.address") == [user, "127.0.0.1"], span
        assert span in one.http or said(span, "mcp_sessions.client") == [client], span


# --- sessions ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("is_header", [False, True])
def test_what_runs_for_a_session_is_in_it(one: Visit, is_header: bool) -> None:
    """Its hooks, and what says that it begins and ends, in the trace of the request that does it."""
    ref, first = (one.header_ref, "initialize") if is_header else (one.ref, "create")
    start, end = one.named("session start", ref), one.named("session end", ref)
    began, ended = one.named("in on_create", ref), one.named("in on_end", ref)
    (created,) = [line for line in one.sent.logs if line.text == f"session {ref} created"]
    assert created.attributes["session.id"] == ref
    assert began.parent == created.span == start.id
    if not (is_header and one.kind in SILENT):
        assert (start.parent, start.links) == (one.message(first).id, {})
    if not is_header or one.http:  # else nothing is around
        assert ended.trace == end.trace
        assert is_header or end.parent == one.message("delete").id
    assert end.links == one.link(ref)
    assert said(end, "mcp_sessions.reason") == ["deleted"]
    assert 0 <= end.attributes["mcp_sessions.duration"] < 600


def test_a_thread_of_a_tool_is_in_the_session(one: Visit) -> None:
    threads = [(span.parent, *said(span, "session.id")) for span in one.sent.spans if span.name == "in a thread"]
    assert sorted(threads) == sorted((one.message(step).id, one.ref) for step in ("buy", "broken"))


def test_no_session_id_is_sent(one: Visit) -> None:
    for held in one.held:
        secret = held.rpartition(".")[2].encode()
        assert not any(secret in body for body in one.sent.bodies)
