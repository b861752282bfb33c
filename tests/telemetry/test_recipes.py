"""The recipes of `docs/tracing.md`, from the server's side: what each tool is sent, where to, and with which headers.

Each is set up as the page says, in a process of its own, but for the host, which is a receiver of ours. Two sessions
make two calls each; then every span of theirs must have the attribute by which the tool groups.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest
from observe.tools import TOOLS
from otlp import Receiver, receiving

TESTS = Path(__file__).resolve().parents[1]
PAGE = (TESTS.parent / "docs" / "tracing.md").read_text("utf-8")
_, _, RECIPES = PAGE.partition("\n## Recipes\n")
RECIPES, _, _ = RECIPES.partition("\n## ")
(CODE,) = re.findall(r"```python\n(.*?)```", RECIPES.partition("\n### ")[0], re.DOTALL)
PLAIN = "SessionSpanProcessor()"
TABLE = re.findall(r"^\| ([A-Z]\w+(?: \w+)?) \|", PAGE, re.MULTILINE)
SPANS = {"sessions/create", "session start", "tools/call tool", "in the tool"}


@dataclass(frozen=True)
class Recipe:
    """What the page says of one tool."""

    name: str
    text: str

    @property
    def environment(self) -> dict[str, str]:
        return dict(re.findall(r"^export (\w+)=(.*)$", self.text, re.MULTILINE))

    @property
    def endpoint(self) -> str:
        """Where it is sent to."""
        return self.environment["OTEL_EXPORTER_OTLP_ENDPOINT"]

    @property
    def groups(self) -> str:
        (found,) = re.findall(r"^Groups by `([\w.]+)`", self.text, re.MULTILINE)
        return str(found)

    @property
    def code(self) -> str:
        others = re.findall(r"`(SessionSpanProcessor\(.+?\))`", self.text)
        return str(CODE).replace(PLAIN, others[0] if others else PLAIN)

    def at(self, url: str) -> dict[str, object]:
        """What the program below is given, with a receiver in place of the tool."""
        path = urlsplit(self.endpoint).path
        patient = {"OTEL_EXPORTER_OTLP_TIMEOUT": "120"}  # seconds, on a machine that does other things, too
        environment = {**self.environment, **patient, "OTEL_EXPORTER_OTLP_ENDPOINT": url + path}
        return {"code": self.code, "environment": environment, "is_one": 'trace="session"' in self.text}


FOUND = [Recipe(*one) for one in re.findall(r"^### (.+?)\n(.*?)(?=^### |\Z)", RECIPES, re.MULTILINE | re.DOTALL)]

# A process has one tracer provider for its whole life, so each recipe has a child of its own: a fork, as quick as that.
PROGRAM = """
import json, os, sys
import anyio
from opentelemetry import trace
from opentelemetry.exporter.otlp.proto.http import trace_exporter
from apps import Server, sessions
from clients import Client

async def tool(session, arguments):
    trace.get_tracer("shop").start_span("in the tool").end()
    return session.ref

async def visit(options):
    client = Client(sessions(Server(tool=tool), **options))
    for held in [await client.create(), await client.create()]:
        for _ in range(2):
            await client.tool("tool", session=held)

def follow(recipe):
    os.environ.update(recipe["environment"])
    names = {}
    exec(recipe["code"], names)
    anyio.run(visit, {"trace": "session"} if recipe["is_one"] else {})
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
        given = json.dumps([recipe.at(receivers[recipe.name].url) for recipe in FOUND])
        program = [sys.executable, "-c", PROGRAM]
        environ = {
            **os.environ,
            "PYTHONPATH": os.pathsep.join(filter(None, [str(TESTS / "support"), os.environ.get("PYTHONPATH")])),
        }
        done = subprocess.run(program, input=given, env=environ, capture_output=True, text=True, check=False)
        warnings = [line for line in done.stderr.splitlines() if not line.startswith('store="memory:" is lost')]
        assert (done.returncode, warnings) == (0, [])
        yield receivers


def test_every_tool_of_the_table_has_a_recipe() -> None:
    assert sorted(recipe.name for recipe in FOUND) == sorted(TABLE)


def test_what_was_not_run_is_marked_so() -> None:
    """Of every tool but those that `make observe` starts, whose pictures the page shows."""
    rows = re.findall(r"^\| ([A-Z]\w+(?: \w+)?) \|.*\| ([^|]*) \|$", PAGE, re.MULTILINE)
    run = {name for name, status in rows if not status.startswith("not run here")}
    assert {name.lower().removeprefix("arize ") for name in run} == set(TOOLS)
    for picture in re.findall(r"\((images/phoenix-[\w.]+)\)", PAGE):
        assert (TESTS.parent / "docs" / picture).read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize("recipe", FOUND, ids=lambda recipe: recipe.name)
def test_each_sessions_spans_have_the_attribute_by_which_the_tool_groups(
    recipe: Recipe, received: dict[str, Receiver]
) -> None:
    """Those of the middleware and those of the tool, in both sessions, which differ."""
    spans = received[recipe.name].spans
    groups = {span.attributes[recipe.groups] for span in spans}
    assert len(groups) == 2
    for group in groups:
        names = [span.name for span in spans if span.attributes[recipe.groups] == group]
        assert sorted(names) == sorted([*SPANS, "tools/call tool", "in the tool"])


@pytest.mark.parametrize("recipe", FOUND, ids=lambda recipe: recipe.name)
def test_it_is_sent_where_the_tool_takes_it(recipe: Recipe, received: dict[str, Receiver]) -> None:
    sent = received[recipe.name]
    assert sent.paths == {urlsplit(recipe.endpoint).path + "/v1/traces"}
    headers = recipe.environment.get("OTEL_EXPORTER_OTLP_HEADERS", "")
    for name, _, value in (one.partition("=") for one in headers.split(",") if one):
        assert sent.headers[name] == unquote(value)


@pytest.mark.parametrize("recipe", FOUND, ids=lambda recipe: recipe.name)
def test_where_the_recipe_has_it_so_a_session_is_one_trace(recipe: Recipe, received: dict[str, Receiver]) -> None:
    """All but its creation, which is of its caller's; elsewhere each call is a trace of its own."""
    spans = [span for span in received[recipe.name].spans if span.name != "sessions/create"]
    traces = {span.trace for span in spans}
    assert len(traces) == (2 if 'trace="session"' in recipe.text else 6)
