"""Sessions in real observability tools: what Phoenix and MLflow themselves show of them, and what Logfire's SDK sends.

`python -m tests.tools.observe [TOOL ...]` installs each tool from PyPI into a virtual environment of its own, lets two
clients call a server that traces as `docs/tracing.md` shows, and asks the tool through its own API whether it shows
their sessions with the right requests in each, and what the page asks it. It ends with an error where it does not.
"""

import argparse
import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final
from urllib.parse import urlencode
from urllib.request import Request, urlopen

ROOT: Final = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "tests" / folder) for folder in ("", "support")]  # as pytest finds the tests' modules

import anyio
from programs import answering, free_port

PAGE: Final = (ROOT / "docs" / "tracing.md").read_text("utf-8")
BLOCKS: Final = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
PATIENCE: Final = 240  # seconds for a program to answer, on a machine that does other things too
SLOW: Final = 2.1  # seconds, which is more than the page calls slow
Shown = dict[str, list[str]]  # the requests of each session, each in a line as `turn` makes it

# --- the clients and their server ------------------------------------------------------------------


def turn(name: str, given: str | None, answer: str | None, *, failed: bool) -> str:
    """Return a request in a line: its name and status, and both sides, of a call the article and the answer's text."""
    sides = [_member(given, "article"), _member(answer, "content", 0, "text")]
    return ": ".join([name, *["failed"] * failed, *filter(None, sides)])


def _member(side: str | None, *path: str | int) -> str | None:
    """Return a member of a side that is a JSON object, or the side's text, which some tools quote."""
    try:
        found = json.loads(side or "")
    except ValueError:
        return side
    for step in path if isinstance(found, dict) else ():
        found = found[step]
    return str(found)


def buy(article: str) -> str:
    """Order an article, and return the ref of the session; there is no air, and a piano takes time."""
    from mcp_sessions import require_session

    if article == "air":
        raise ValueError(article)
    if article == "piano":
        time.sleep(SLOW)
    return require_session().ref


async def visit() -> Shown:
    """Let Alice and Erin call the official SDK's server, and Mallory use Alice's session."""
    from clients import RealClient, lifespan
    from mcp.server.mcpserver import MCPServer
    from opentelemetry.instrumentation.asgi import OpenTelemetryMiddleware

    from mcp_sessions import MCPSessionMiddleware, Telemetry

    mcp = MCPServer("shop")
    mcp.tool()(buy)
    app = MCPSessionMiddleware(
        mcp.streamable_http_app(stateless_http=True, json_response=True),
        keys="a secret of the observed shop, at least 32 bytes long",
        principal=lambda scope: dict(scope["headers"])[b"x-user"].decode(),
        telemetry=Telemetry(
            redact=lambda what, tool, value: value, user=lambda principal: principal.subject, openinference=True
        ),
    )
    traced = OpenTelemetryMiddleware(app, exclude_spans=["receive", "send"])
    shown: Shown = {}

    async def order(client: RealClient, held: dict[str, str], *articles: str) -> list[str]:
        lines = []
        for article in articles:
            given = {"article": article}
            answer = (await client.send("tools/call", {"name": "buy", "arguments": given}, session=held)).json
            result = answer.get("result", {"isError": True})
            text = json.dumps(result) if "content" in result else "refused: token_principal"
            lines.append(turn("POST tools/call buy", json.dumps(given), text, failed=result.get("isError", False)))
        return lines

    def request(method: str) -> str:
        return turn(f"POST {method}", method, "success", failed=False)

    async with lifespan(app):
        alice, mallory, erin = (
            RealClient(traced, modern=True, headers={"x-user": user}) for user in ("alice", "mallory", "erin")
        )
        first, other = await alice.create(), await erin.create()
        basket = "hat", "socks", "air"
        ref = await alice.call("buy", first, article="hat")
        shown[ref] = [request("sessions/create"), turn("POST tools/call buy", "hat", ref, failed=False)]
        shown[ref] += [*await order(alice, first, *basket, "piano"), *await order(mallory, first, "hat")]
        ref = await erin.call("buy", other, article="hat")
        shown[ref] = [request("sessions/create"), turn("POST tools/call buy", "hat", ref, failed=False)]
        shown[ref] += [*await order(erin, other, *basket), request("sessions/delete")]
        await erin.delete(other)
    return shown


def visited(endpoint: str, headers: str) -> Shown:
    """Make the visits in a process of their own, which has one tracer provider for its life."""
    sent = {"OTEL_EXPORTER_OTLP_ENDPOINT": endpoint, "OTEL_EXPORTER_OTLP_HEADERS": headers, "OTEL_SERVICE_NAME": "shop"}
    command = [sys.executable, __file__, "--visit"]
    done = subprocess.run(command, env={**os.environ, **sent}, stdout=subprocess.PIPE, timeout=PATIENCE, check=True)
    shown: Shown = json.loads(done.stdout)
    return shown


def trace_visit() -> None:
    """Run the page's code, and print what is to be shown once all spans are sent."""
    names: dict[str, Any] = {}
    exec(compile(BLOCKS[0], "tracing.md", "exec"), names)
    shown = anyio.run(visit)
    names["provider"].shutdown()
    print(json.dumps(shown))


# --- programs --------------------------------------------------------------------------------------


def installed(name: str, *packages: str) -> Path:
    """Return the folder of a virtual environment's programs, made with these packages where it is missing."""
    programs = ROOT / f".venv-{name}" / "bin"
    subprocess.run([sys.executable, "-m", "venv", programs.parent], check=True)
    subprocess.run([programs / "python", "-m", "pip", "install", "--quiet", *packages], check=True)
    return programs


def ask(url: str, message: object = None) -> Any:
    """Send a request, and return its JSON answer."""
    body = None if message is None else json.dumps(message).encode()
    with urlopen(Request(url, body, {"content-type": "application/json"}), timeout=PATIENCE) as response:
        return json.load(response)


# --- the tools -------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Tool:
    """An observability tool, which listens on this machine alone."""

    package: str  # on PyPI
    program: str  # its name there, and its arguments; `PORT`, `OTHER` and `FOLDER` are replaced
    environment: dict[str, str]  # its settings, in which they are replaced, too
    health: str  # the path that answers when it is ready
    headers: str  # those that its OTLP endpoint requires
    ask: Callable[[str], Shown]  # returns what it shows of each session
    check: Callable[[str, Shown], None]  # asks it what the page asks it, and raises if it answers something else


def asked(tool: str) -> dict[str, str]:
    """Return what the page's queries ask a tool, by question."""
    questions = re.findall(r"^\*\*(.+)\?\*\*\n\n((?:- .+\n)+)", PAGE.partition("### Queries")[2], re.MULTILINE)
    return {
        question: "".join(found) for question, lines in questions if (found := re.findall(f"- {tool}: (.+)", lines))
    }


def ask_phoenix(url: str) -> Shown:
    """Ask the REST API for the sessions of the default project, and for the first span of each of their traces."""
    spans = ask(f"{url}/v1/projects/default/spans?limit=1000")["data"]
    turns = {
        span["context"]["trace_id"]: turn(
            span["name"],
            span["attributes"].get("input.value"),
            span["attributes"].get("output.value"),
            failed=span["status_code"] == "ERROR",
        )
        for span in spans
        if span["parent_id"] is None
    }
    return {
        session["session_id"]: sorted(turns.get(trace["trace_id"], "") for trace in session["traces"])
        for session in ask(f"{url}/v1/projects/default/sessions?limit=100")["data"]
    }


FILTER: Final = """query($project: ID!, $spans: String, $sessions: String) { node(id: $project) { ... on Project {
  spans(first: 1000, filterCondition: $spans) { edges { node { attributes } } }
  sessions(first: 1000, sessionFilterCondition: $sessions) { edges { node { sessionId } } }
} } }"""


def check_phoenix(url: str, shown: Shown) -> None:
    """Filter by each condition of the page, and compare the sessions that are found."""
    alice, erin = shown
    expected = {
        "What happened in a session": {erin},
        "Which session was slow": {alice},
        "Which tool failed, and why": {alice, erin},
        "When did it end, why, and who ended it": {erin},
        "Whose was it": {alice},
        "What was refused, and why": {alice},
    }
    queries = asked("Phoenix")
    assert queries.keys() == expected.keys(), queries
    (project,) = [one["id"] for one in ask(f"{url}/v1/projects")["data"] if one["name"] == "default"]
    for question, query in queries.items():
        condition = re.findall(r"`([^`]+)`", query)[0].replace("SES", erin)
        kind = "sessions" if "Sessions" in query else "spans"
        answer = ask(f"{url}/graphql", {"query": FILTER, "variables": {"project": project, kind: condition}})
        nodes = [edge["node"] for edge in answer["data"]["node"][kind]["edges"]]
        found = {node.get("sessionId") or json.loads(node["attributes"])["session"]["id"] for node in nodes}
        if question == "Which session was slow":
            found &= expected[question]  # any call may be, on a machine that does other things too
        assert found == expected[question], f"{condition} finds {found}, and should find {expected[question]}"


def mlflow_traces(url: str, condition: str = "") -> list[dict[str, Any]]:
    """Return the traces that a condition finds."""
    place = {"type": "MLFLOW_EXPERIMENT", "mlflow_experiment": {"experiment_id": "0"}}
    message = {"locations": [place], "max_results": 200, "filter": condition}
    found: list[dict[str, Any]] = ask(f"{url}/api/3.0/mlflow/traces/search", message).get("traces", [])
    return found


def ask_mlflow(url: str) -> Shown:
    """Ask the REST API for the traces of each session, with their previews, and for the first span of each."""
    traces = mlflow_traces(url)
    query = urlencode({"trace_ids": [trace["trace_id"] for trace in traces]}, doseq=True)
    whole = ask(f"{url}/api/3.0/mlflow/traces/batchGet?{query}")["traces"] if traces else []
    names = {
        trace["trace_info"]["trace_id"]: span["name"]
        for trace in whole
        for span in trace["spans"]
        if not span.get("parent_span_id")
    }
    shown: Shown = {}
    for trace in traces:
        name, failed = names.get(trace["trace_id"], ""), trace["state"] == "ERROR"
        line = turn(name, trace.get("request_preview"), trace.get("response_preview"), failed=failed)
        shown.setdefault(trace["trace_metadata"]["mlflow.trace.session"], []).append(line)
    return {session: sorted(turns) for session, turns in shown.items()}


def check_mlflow(url: str, shown: Shown) -> None:
    """Search for each session as the page says."""
    (condition,) = re.findall(r"`` (metadata\..+ = 'ses_\.\.\.') ``", PAGE)
    for session, turns in shown.items():
        found = mlflow_traces(url, condition.replace("ses_...", session))
        assert len(found) == len(turns), f"{condition} finds {found}"


TOOLS: Final = {
    "phoenix": Tool(
        "arize-phoenix",
        "phoenix serve",
        {
            "PHOENIX_HOST": "127.0.0.1",
            "PHOENIX_PORT": "PORT",
            "PHOENIX_GRPC_PORT": "OTHER",
            "PHOENIX_WORKING_DIR": "FOLDER",
            "PHOENIX_TELEMETRY_ENABLED": "false",
            "PHOENIX_ALLOW_EXTERNAL_RESOURCES": "false",
        },
        "/healthz",
        "",
        ask_phoenix,
        check_phoenix,
    ),
    "mlflow": Tool(
        "mlflow",
        "mlflow server --host 127.0.0.1 --port PORT --backend-store-uri sqlite:///FOLDER/mlflow.db --workers 1",
        {"MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false", "MLFLOW_DISABLE_TELEMETRY": "true"},
        "/health",
        "x-mlflow-experiment-id=0",
        ask_mlflow,
        check_mlflow,
    ),
}


def observe(name: str) -> None:
    """Start a tool, let clients call, and check what it shows."""
    tool, programs, port = TOOLS[name], installed(name, TOOLS[name].package), str(free_port())
    with TemporaryDirectory() as folder:
        values = {"PORT": port, "OTHER": str(free_port()), "FOLDER": folder}

        def filled(text: str) -> str:
            return re.sub("|".join(values), lambda found: values[found[0]], text)

        program, *arguments = tool.program.split()
        settings = {variable: values.get(value, value) for variable, value in tool.environment.items()}
        url = f"http://127.0.0.1:{port}"
        with answering([programs / program, *map(filled, arguments)], url + tool.health, Path(folder), **settings):
            shown = visited(url, tool.headers)
            deadline = time.monotonic() + PATIENCE
            while (found := tool.ask(url)) != {session: sorted(turns) for session, turns in shown.items()}:
                if time.monotonic() > deadline:
                    raise SystemExit(f"{name} shows {found}, and should show {shown}")
                time.sleep(0.5)
            tool.check(url, shown)
    print(f"{name}: {len(shown)} sessions with {sum(map(len, shown.values()))} requests")


# --- Logfire, which cannot be started here ---------------------------------------------------------


def check_logfire() -> None:
    """Run in an environment with that SDK, and see what it sends to a receiver in place of the tool."""
    from apps import Server, sessions
    from clients import Client
    from otlp import receiving

    async def call() -> str:
        client = Client(sessions(Server()))
        return str((await client.tool("whoami", session=await client.create())).result["content"])

    (code,) = [block for block in BLOCKS if "import logfire" in block]
    with receiving() as received:
        os.environ.update(OTEL_SERVICE_NAME="shop", LOGFIRE_SEND_TO_LOGFIRE="false")
        os.environ.update(OTEL_EXPORTER_OTLP_ENDPOINT=received.url)
        names: dict[str, Any] = {}
        exec(compile(code, "tracing.md", "exec"), names)
        ref = anyio.run(call)
        assert names["logfire"].force_flush()
    workers = {(span.resource["service.name"], span.resource["service.instance.id"]) for span in received.spans}
    assert [service for service, worker in workers if worker] == ["shop"], f"its spans are of {workers}"
    named = {span.attributes.get("session.id") for span in received.spans}
    assert named == {ref}, f"its spans say {named} of the session {ref}"


def main() -> None:
    """Observe with the tools that the command line names."""
    parser = argparse.ArgumentParser(prog="python -m tests.tools.observe", description="See sessions in real tools.")
    parser.add_argument("tools", nargs="*", choices=[*TOOLS, "logfire", []], help="all, where none is named")
    for name in parser.parse_args().tools or [*TOOLS, "logfire"]:
        if name in TOOLS:
            observe(name)
        else:
            programs = installed("logfire", "logfire", "httpx", "pytest", "-e", str(ROOT))
            subprocess.run([programs / "python", __file__, "--logfire"], timeout=PATIENCE, check=True)
            print("logfire: its SDK names the session")


if __name__ == "__main__":
    {"--visit": trace_visit, "--logfire": check_logfire}.get("".join(sys.argv[1:2]), main)()
