"""The tools: how each is installed and started, and how its sessions are queried.

Each tool listens on this machine alone, keeps its data in a temporary folder, and has its own telemetry off.
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .programs import Command, ask, free_port


@dataclass(frozen=True)
class Tool:
    """An observability tool.

    Args:
        name: Its name.
        package: Its package on PyPI.
        start: Returns the program for its environment's folder, its URL, and a folder of its own.
        health: The path that answers when it is ready.
        headers: The headers that its OTLP endpoint requires.
        ask: Returns the turns that it shows in each session: names, status, and whether there are both sides.
        pictures: Returns the pages to take pictures of, by file name.
    """

    name: str
    package: str
    start: Callable[[Path, str, Path], Command]
    health: str
    headers: list[str]
    ask: Callable[[Path, str], dict[str, list[str]]]
    pictures: Callable[[str, list[str]], dict[str, str]] | None = None


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


def ask_phoenix(_: Path, url: str) -> dict[str, list[str]]:
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
    status = ["failed"] if span["status_code"] == "ERROR" else []
    sides = [side for side in ("in", "out") if f"{side}put.value" in span["attributes"]]
    return ": ".join(filter(None, [span["name"], ", ".join([*status, *sides])]))


def picture_phoenix(url: str, refs: list[str]) -> dict[str, str]:
    """Return the list of sessions, and one of them."""
    (project,) = [one["id"] for one in ask(f"{url}/v1/projects")["data"] if one["name"] == "default"]
    found = ask(f"{url}/v1/projects/default/sessions?limit=100")["data"]
    session = next(one["id"] for one in found if one["session_id"] == refs[0])
    return {
        "phoenix-sessions.png": f"{url}/projects/{project}/sessions",
        "phoenix-session.png": f"{url}/projects/{project}/sessions/{session}",
    }


def start_mlflow(programs: Path, url: str, folder: Path) -> Command:
    """Start with a database of its own."""
    port = url.rpartition(":")[2]
    store = ["--backend-store-uri", f"sqlite:///{folder}/mlflow.db", "--workers", "1"]
    return Command([str(programs / "mlflow"), "server", "--host", "127.0.0.1", "--port", port, *store], {})


ASK_MLFLOW = """
import json, sys, mlflow
mlflow.set_tracking_uri(sys.argv[1])
found = {}
for trace in mlflow.search_traces(locations=["0"], return_type="list", max_results=500):
    session = trace.info.trace_metadata.get("mlflow.trace.session")
    if session is not None:
        (root,) = [span for span in trace.data.spans if span.parent_id is None]
        said = ["failed"] if trace.info.state == "ERROR" else []
        said += [side for side, value in (("in", root.inputs), ("out", root.outputs)) if value is not None]
        found.setdefault(session, []).append(": ".join(filter(None, [root.name, ", ".join(said)])))
print(json.dumps({session: sorted(turns) for session, turns in found.items()}))
"""


def ask_mlflow(python: Path, url: str) -> dict[str, list[str]]:
    """Ask by its own Python client for the traces of each session."""
    done = subprocess.run([str(python), "-c", ASK_MLFLOW, url], capture_output=True, text=True, check=True)
    found: dict[str, list[str]] = json.loads(done.stdout.splitlines()[-1])
    return found


TOOLS = {
    "phoenix": Tool("phoenix", "arize-phoenix", start_phoenix, "/healthz", [], ask_phoenix, picture_phoenix),
    "mlflow": Tool("mlflow", "mlflow", start_mlflow, "/health", ["x-mlflow-experiment-id=0"], ask_mlflow),
}
