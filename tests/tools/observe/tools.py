"""The tools: how each is installed and started, and how its sessions are queried.

Each tool listens on this machine alone, keeps its data in a temporary folder, and has its own telemetry off.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

from .programs import ROOT, Command, ask, free_port
from .traffic import Visit, turn


@dataclass(frozen=True)
class Tool:
    """An observability tool.

    Args:
        name: Its name.
        package: Its package on PyPI.
        start: Returns the program for its environment's folder, its URL, and a folder of its own.
        health: The path that answers when it is ready.
        headers: The headers that its OTLP endpoint requires.
        ask: Returns the turns that it shows in each session: names, status, and both sides.
        check: Asks it what the documentation asks it, and raises if it answers something else.
        pictures: Returns the pages to take pictures of, by file name, each with a script that is true once it is shown.
    """

    name: str
    package: str
    start: Callable[[Path, str, Path], Command]
    health: str
    headers: list[str]
    ask: Callable[[str], dict[str, list[str]]]
    check: Callable[[str, list[Visit]], None]
    pictures: Callable[[str, list[Visit]], dict[str, tuple[str, str]]]


def asked(tool: str) -> dict[str, str]:
    """Return what *On call* asks a tool, by question."""
    text = (ROOT / "docs" / "tracing.md").read_text("utf-8").partition("### Queries")[2]
    questions = re.findall(r"^\*\*(.+)\?\*\*\n\n((?:- .+\n)+)", text, re.MULTILINE)
    return {
        question: "".join(found) for question, lines in questions if (found := re.findall(f"- {tool}: (.+)", lines))
    }


# --- Arize Phoenix ---------------------------------------------------------------------------------


def start_phoenix(programs: Path, url: str, folder: Path) -> Command:
    """Start on ports of its own, without telemetry."""
    environment = {
        "PHOENIX_HOST": "127.0.0.1",
        "PHOENIX_PORT": url.rpartition(":")[2],
        "PHOENIX_GRPC_PORT": str(free_port()),
        "PHOENIX_WORKING_DIR": str(folder),
        "PHOENIX_TELEMETRY_ENABLED": "false",
        "PHOENIX_ALLOW_EXTERNAL_RESOURCES": "false",
    }
    return Command([str(programs / "phoenix"), "serve"], environment)


def ask_phoenix(url: str) -> dict[str, list[str]]:
    """Ask the REST API for the sessions of the default project, and for the first span of each of their traces."""
    found = ask(f"{url}/v1/projects/default/sessions?limit=100")["data"]
    spans = ask(f"{url}/v1/projects/default/spans?limit=1000")["data"]
    turns = {span["context"]["trace_id"]: turn_in_phoenix(span) for span in spans if span["parent_id"] is None}
    return {
        session["session_id"]: sorted(turns.get(trace["trace_id"], "") for trace in session["traces"])
        for session in found
    }


def turn_in_phoenix(span: dict[str, Any]) -> str:
    """Return the first span of a trace in a line."""
    given, answer = (span["attributes"].get(f"{side}put.value") for side in ("in", "out"))
    return turn(span["name"], given, answer, failed=span["status_code"] == "ERROR")


FILTER = """query($project: ID!, $spans: String, $sessions: String) { node(id: $project) { ... on Project {
  spans(first: 1000, filterCondition: $spans) { edges { node { attributes } } }
  sessions(first: 1000, sessionFilterCondition: $sessions) { edges { node { sessionId } } }
} } }"""


def check_phoenix(url: str, visits: list[Visit]) -> None:
    """Filter by each condition of the page *On call*, and compare the sessions that are found."""
    first, *_, last = visits
    everyone = {visit.ref for visit in visits}
    expected = {
        "What happened in a session": {last.ref},
        "Which session was slow": {first.ref},
        "Which tool failed, and why": everyone,
        "When did it end, and why": {last.ref},
        "Whose was it": {first.ref},
        "What was refused, and why": {first.ref},
    }
    cells = {question: re.findall(r"`([^`]+)`", cell) for question, cell in asked("Phoenix").items()}
    conditions = {question: found[0].replace("SES", last.ref) for question, found in cells.items() if found}
    assert conditions.keys() == expected.keys(), conditions
    for question, condition in conditions.items():
        found = sessions_in_phoenix(url, condition, "Sessions" in asked("Phoenix")[question])
        if question == "Which session was slow":
            found -= everyone - expected[question]  # any call is, on a machine that does other things too
        if found != expected[question]:
            raise SystemExit(f"{condition} finds {found}, and should find {expected[question]}")


def sessions_in_phoenix(url: str, condition: str, is_of_sessions: bool) -> set[str]:
    """Return the sessions that a condition finds, among sessions or among spans."""
    variables = {"project": project(url), "sessions" if is_of_sessions else "spans": condition}
    answer = ask(f"{url}/graphql", {"query": FILTER, "variables": variables})
    if answer.get("errors"):
        raise SystemExit(f"{condition} is refused: {answer['errors']}")
    found = answer["data"]["node"]
    if is_of_sessions:
        return {one["node"]["sessionId"] for one in found["sessions"]["edges"]}
    return {json.loads(one["node"]["attributes"])["session"]["id"] for one in found["spans"]["edges"]}


def project(url: str) -> str:
    """Return the id of the default project."""
    (found,) = [one["id"] for one in ask(f"{url}/v1/projects")["data"] if one["name"] == "default"]
    return str(found)


def picture_phoenix(url: str, visits: list[Visit]) -> dict[str, tuple[str, str]]:
    """Return the list of sessions, one of them, and the waterfall of one that is a single trace."""
    found = ask(f"{url}/v1/projects/default/sessions?limit=100")["data"]
    sessions = {one["session_id"]: one for one in found}
    (whole,) = (visit for visit in visits if len(visit.turns) == 1)
    (trace,) = sessions[whole.ref]["traces"]
    pages = f"{url}/projects/{project(url)}"
    shown = "return document.body.innerText.includes('{}')"
    return {
        "phoenix-sessions.png": (f"{pages}/sessions", shown.format(visits[0].ref)),
        "phoenix-session.png": (f"{pages}/sessions/{sessions[visits[0].ref]['id']}", shown.format("tools/call buy")),
        "phoenix-trace.png": (f"{pages}/traces/{trace['trace_id']}", shown.format("INSERT")),
    }


# --- MLflow ----------------------------------------------------------------------------------------


def start_mlflow(programs: Path, url: str, folder: Path) -> Command:
    """Start with a database of its own, and without jobs, which take the time of what is asked here."""
    port = url.rpartition(":")[2]
    store = ["--backend-store-uri", f"sqlite:///{folder}/mlflow.db", "--workers", "1"]
    environment = {"MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false", "MLFLOW_DISABLE_TELEMETRY": "true"}
    return Command([str(programs / "mlflow"), "server", "--host", "127.0.0.1", "--port", port, *store], environment)


def ask_mlflow(url: str) -> dict[str, list[str]]:
    """Ask the REST API for the traces of each session, with their previews, and for the first span of each."""
    found: dict[str, list[str]] = {}
    traces = traces_in_mlflow(url)
    names = first_spans(url, [trace["trace_id"] for trace in traces]) if traces else {}
    for trace in traces:
        line = turn(
            names[trace["trace_id"]],
            trace.get("request_preview"),
            trace.get("response_preview"),
            failed=trace["state"] == "ERROR",
        )
        found.setdefault(trace["trace_metadata"]["mlflow.trace.session"], []).append(line)
    return {session: sorted(turns) for session, turns in found.items()}


def traces_in_mlflow(url: str, condition: str = "") -> list[dict[str, Any]]:
    """Return the traces that a condition finds."""
    place = {"type": "MLFLOW_EXPERIMENT", "mlflow_experiment": {"experiment_id": "0"}}
    message = {"locations": [place], "max_results": 200, "filter": condition}
    found: list[dict[str, Any]] = ask(f"{url}/api/3.0/mlflow/traces/search", message).get("traces", [])
    return found


def first_spans(url: str, traces: list[str]) -> dict[str, str]:
    """Return the name of the first span of each trace, empty while it is on its way."""
    query = urlencode({"trace_ids": traces}, doseq=True)
    found = ask(f"{url}/api/3.0/mlflow/traces/batchGet?{query}")["traces"]
    return dict.fromkeys(traces, "") | {
        trace["trace_info"]["trace_id"]: span["name"]
        for trace in found
        for span in trace["spans"]
        if not span.get("parent_span_id")
    }


def check_mlflow(url: str, visits: list[Visit]) -> None:
    """Search for each session as the page *Tracing* says."""
    page = (ROOT / "docs" / "tracing.md").read_text("utf-8")
    (condition,) = re.findall(r"`` (metadata\..+ = 'ses_\.\.\.') ``", page)
    for visit in visits:
        found = traces_in_mlflow(url, condition.replace("ses_...", visit.ref))
        assert len(found) == len(visit.turns), f"{condition} finds {found}"


def picture_mlflow(url: str, visits: list[Visit]) -> dict[str, tuple[str, str]]:
    """Return the traces by session, one of which is open, once nothing is in front of them."""
    script = SHOWN.replace("REF", visits[1].ref)
    return {"mlflow-sessions.png": (f"{url}/#/experiments/0/traces?groupBy=session", script)}


SHOWN = """
const selectors = [
  '[data-component-id="mlflow.assistant.chat_panel.close"]',
  '[data-component-id="mlflow.detect_issues.guidance.got_it"]',
  '[aria-label="Expand session REF"]',
];
const button = selectors.map(one => document.querySelector(one)).find(one => one);
button?.click();
return !button && document.body.innerText.includes('"air"');
"""

TOOLS = {
    tool.name: tool
    for tool in (
        Tool(
            "phoenix",
            "arize-phoenix",
            start_phoenix,
            "/healthz",
            [],
            ask_phoenix,
            check_phoenix,
            picture_phoenix,
        ),
        Tool(
            "mlflow",
            "mlflow",
            start_mlflow,
            "/health",
            ["x-mlflow-experiment-id=0"],
            ask_mlflow,
            check_mlflow,
            picture_mlflow,
        ),
    )
}
