"""`docs/tracing.md` says what is so: its code runs, and each recipe sends what its tool takes, to where it takes it.

A receiver of ours is in place of each tool. Queries for tools that cannot be had here are compared with what it gets.
"""

import json
import logging
import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import httpx
import pytest
from apps import Server, sessions
from browser import browsing
from clients import INITIALIZE, SECRET, Client
from environments import needs
from observe import TOOLS, asked
from otlp import Receiver, receiving
from pages import DOCS, blocks, run
from programs import answering, free_port

from mcp_sessions import MCPSessionMiddleware, Session
from mcp_sessions.telemetry import SessionSampler

PAGE = (DOCS / "tracing.md").read_text("utf-8")
TRACES, _LOGFIRE, OPTIONS, MOUNTED, SAMPLING, LOGS = blocks(PAGE)
"""The blocks, in their order. That of Logfire is run by `python -m tests.tools.observe`."""


def test_sampling() -> None:
    provider = run(SAMPLING)["provider"]
    assert provider.sampler.get_description() == SessionSampler(0.1).get_description()
    provider.shutdown()


async def test_logs(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> None:
    root = logging.getLogger()
    monkeypatch.setattr(root, "level", root.level)
    monkeypatch.setattr(root, "handlers", [])
    run(LOGS)
    (shown,) = re.findall(r"```\n(INFO \[ses_.*)\n```", PAGE)
    name, text = re.fullmatch(r"INFO \[ses_[a-z2-7]{24} [0-9a-f]{32}] (\w+): (.*)", shown).groups()  # type: ignore[union-attr]

    async def tool(session: Session | None, arguments: dict[str, Any]) -> str:
        logging.getLogger(name).info(text)
        return "-" if session is None else session.ref

    client = Client(sessions(Server(tool=tool)))
    held = await client.create()
    refs = [(await client.tool("tool", session=named)).result["content"] for named in (held, None)]
    logging.getLogger(name).info("later", extra={"session": "ses_named"})  # as a background job, which keeps its own
    lines = [re.sub(r" [0-9a-f]{32}]", " ...]", line) for line in capfd.readouterr().err.splitlines() if name in line]
    assert lines == [*(f"INFO [{ref} ...] {name}: {text}" for ref in refs), f"INFO [ses_named -] {name}: later"]


@needs("mcp>=2")
def test_options(monkeypatch: pytest.MonkeyPatch) -> None:
    """The server can be built, and the page's function lets one tool's query through, and nothing else."""
    monkeypatch.setenv("MCP_SESSIONS_KEYS", SECRET)
    names = run(OPTIONS)
    assert isinstance(names["app"], MCPSessionMiddleware)
    redact = names["redact"]
    assert redact("arguments", "search", {"query": "shoes", "card": "4111"}) == {"query": "shoes"}
    assert redact("result", "search", {"content": []}) is redact("arguments", "pay", {"card": "4111"}) is None


@needs("mcp>=2")
def test_a_server_with_a_mounted_inspector_stops_while_its_page_is_open(tmp_path: Path) -> None:
    """It answers calls and shows them, and nothing that the page holds open delays the stop."""
    (tmp_path / "server.py").write_text(MOUNTED, "utf-8")
    url = f"http://127.0.0.1:{(port := free_port())}"
    command = [sys.executable, *"-m uvicorn server:app --port".split(), str(port)]
    with browsing() as browser, answering(command, f"{url}/inspector/", tmp_path, MCP_SESSIONS_KEYS=SECRET):
        hello = {"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": INITIALIZE}
        accepted = {"accept": "application/json, text/event-stream"}
        assert httpx.post(f"{url}/mcp", json=hello, headers=accepted).status_code == 200
        browser.get(f"{url}/inspector/")
        browser.until("return document.querySelectorAll('.session').length === 1")
        stopped_at = time.monotonic()
    assert time.monotonic() - stopped_at < 10


# --- recipes -----------------------------------------------------------------------------------------

SHARED = dict(re.findall(r"^export (\w+)=(.*)$", PAGE, re.MULTILINE))
PLAIN = "SessionSpanProcessor()"
SPANS = ["sessions/create", "session start", *["tools/call buy", "in the tool"] * 2, "tools/call buy"]
SPANS += ["session end", "sessions/delete"]


class Recipe:
    """What the page says of one tool."""

    def __init__(self, name: str, text: str) -> None:
        self.name = name
        self.endpoint = urlsplit(re.findall(r"`(https?://[^`]+)`", text)[0]).path
        self.headers = "".join(re.findall(r"headers\s+`([^`]+)`", text))
        self.groups = "".join(re.findall(r'aliases=\["(.+?)"\]', text)) or "session.id"
        self.is_one_trace = 'trace="session"' in text
        self.code = TRACES.replace(PLAIN, (re.findall(r"`(SessionSpanProcessor\(.+?\))`", text) or [PLAIN])[0])

    def at(self, url: str) -> dict[str, object]:
        """What the program below is given, with a receiver in place of the tool."""
        sent = {"OTEL_EXPORTER_OTLP_ENDPOINT": url + self.endpoint, "OTEL_EXPORTER_OTLP_HEADERS": self.headers}
        patient = {"OTEL_EXPORTER_OTLP_TIMEOUT": "120"}  # seconds, on a machine that does other things, too
        options = {"trace": "session"} if self.is_one_trace else {}
        return {"code": self.code, "environment": {**SHARED, **patient, **sent}, "options": options}


FOUND = [Recipe(*one) for one in re.findall(r"^- \*\*(.+?)\*\*: (.*?)(?=^- |\n\n)", PAGE, re.MULTILINE | re.DOTALL)]

# A process has one tracer provider for its whole life, so each recipe has a child of its own: a fork, as quick as that.
PROGRAM = """
import json, os, sys
import anyio
from opentelemetry import trace
from opentelemetry.exporter.otlp.proto.http import trace_exporter
from apps import Server, sessions
from clients import Client, by, user_of

async def buy(session, arguments):
    trace.get_tracer("shop").start_span("in the tool").end()
    return session.ref

async def visit(options):
    client = Client(sessions(
        Server(buy=buy), principal=user_of, user=lambda principal: principal.subject, **options
    ))
    for held in [await client.create(by("alice")), await client.create(by("alice"))]:
        for who in ("alice", "alice", "mallory"):
            await client.tool("buy", by(who), session=held)
        await client.send("sessions/delete", None, by("alice"), session=held)

def follow(recipe):
    os.environ.update(recipe["environment"])
    names = {}
    exec(recipe["code"], names)
    anyio.run(visit, recipe["options"])
    names["provider"].shutdown()

for recipe in json.load(sys.stdin):
    child = os.fork()
    if child == 0:
        follow(recipe)
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0, recipe
"""


@pytest.fixture(scope="module")
def received() -> Iterator[dict[str, Receiver]]:
    with ExitStack() as stack:
        receivers = {recipe.name: stack.enter_context(receiving()) for recipe in FOUND}
        given = [recipe.at(receivers[recipe.name].url) for recipe in FOUND]
        done = subprocess.run(
            [sys.executable, "-c", PROGRAM],
            input=json.dumps(given),
            env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
            capture_output=True,
            text=True,
            check=False,
        )
        known = ('store="memory:" is lost', "refused ")
        warnings = [line for line in done.stderr.splitlines() if not line.startswith(known)]
        assert (done.returncode, warnings) == (0, [])
        yield receivers


def test_the_page_says_which_recipes_were_run() -> None:
    (run,) = re.findall(r"^(.*) are run by `python -m tests\.tools\.observe`", PAGE, re.MULTILINE)
    assert set(run.lower().split(" and ")) == set(TOOLS)


@pytest.mark.parametrize("recipe", FOUND, ids=lambda recipe: recipe.name)
def test_each_sessions_spans_are_sent_where_the_tool_takes_them_and_grouped_as_it_groups(
    recipe: Recipe, received: dict[str, Receiver]
) -> None:
    """Where the recipe has it so, a session is one trace, but for its creation, which is of its caller's."""
    sent = received[recipe.name]
    assert sent.paths == {f"{recipe.endpoint}/v1/traces"}
    for name, _, value in (one.partition("=") for one in recipe.headers.split(",") if one):
        assert sent.headers[name] == unquote(value)
    groups = {span.attributes[recipe.groups] for span in sent.spans}
    assert len(groups) == 2
    for group in groups:
        names = [span.name for span in sent.spans if span.attributes[recipe.groups] == group]
        assert sorted(names) == sorted(SPANS)
    traces = {span.trace for span in sent.spans if span.name != "sessions/create"}
    assert len(traces) == (2 if recipe.is_one_trace else 10)
    ((service, _),) = {(one.resource["service.name"], one.resource["service.instance.id"]) for one in sent.spans}
    assert service == "shop"


# --- on call ---------------------------------------------------------------------------------------


def wanted(query: str) -> dict[str, str | None]:
    """Return what a query wants of a span, with None where it is any value, and without how long it took."""
    found: dict[str, str | None] = dict.fromkeys(re.findall(r"(?:span|resource)\.([\w.]+)", query))
    given = r'([\w.]+)(?: = |=)(?:"([^"]+)"|([\w.-]+))|operation `([^`]+)`'
    for name, quoted, plain, operation in re.findall(given, query):
        found[name.removeprefix("span.") or "name"] = quoted or plain or operation
    return found


@pytest.mark.parametrize("tool", ["Tempo", "Jaeger"])
def test_a_query_of_on_call_asks_for_what_is_exported(tool: str, received: dict[str, Receiver]) -> None:
    """One span at least has all of it; Jaeger shows the worker with each span, without a query."""
    errors = {True: {"status": "error", "error": "true"}, False: dict[str, str]()}
    spans = [
        {**span.attributes, **span.resource, **errors[span.is_error], "name": span.name}
        for span in received["Jaeger"].spans
    ]
    asks = {question: wanted(query.replace("SES", spans[0]["session.id"])) for question, query in asked(tool).items()}
    assert [question for question in asks if not asks[question]] == ["Which worker served it"] * (tool == "Jaeger")
    for question, wants in asks.items():
        assert any(all(k in one and v in (None, one[k]) for k, v in wants.items()) for one in spans), (question, wants)
