"""`make observe`: see sessions in real tools. Two servers, three clients, and what the tools themselves say of it.

Arize Phoenix and MLflow are installed from PyPI, each into a virtual environment of its own. For each, two servers
share nothing but their keys, and three clients call them in turns; then the tool is asked through its own API whether
it shows three sessions with the right traces in each. The first thing that is not so makes the exit status non-zero.
With Chromium, pictures of Phoenix are taken into `docs/images`. At the end the tools are left open until Enter is
pressed. It is no part of `make check`: installing the tools alone takes minutes.

    python docs/observe.py [--only phoenix|mlflow] [--no-pictures] [--no-wait]
"""

from __future__ import annotations

import argparse
import json
import os
import secrets
import shutil
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
IMAGES = ROOT / "docs" / "images"
EXPORTER = ROOT / ".venv-otlp"  # not an environment: the exporter's packages alone, which the tests do without
SESSION_KEY = "io.modelcontextprotocol/session"
CALLS = 4  # of each client
PATIENCE = 120  # seconds for a program to answer, on a machine that does other things too
ARTICLES = ("shoes", "socks", "hat")


def main() -> int:
    """Run it; the exit status."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", choices=list(TOOLS))
    parser.add_argument("--no-pictures", action="store_true")
    parser.add_argument("--no-wait", action="store_true")
    asked = parser.parse_args()
    pip(Path(sys.executable), "--target", str(EXPORTER), "opentelemetry-exporter-otlp-proto-http", into=EXPORTER)
    with ExitStack() as stack:
        opened = [observe(TOOLS[name], stack, asked) for name in ([asked.only] if asked.only else TOOLS)]
        if not asked.no_wait:
            print(f"Open {' and '.join(opened)}; press Enter to stop.")
            sys.stdin.readline()
    return 0


def observe(tool: Tool, stack: ExitStack, asked: argparse.Namespace) -> str:
    """Start a tool, let clients call, and ask it what it saw; where it is open."""
    began = time.monotonic()
    python = environment(tool.name, tool.package)
    print(f"{tool.name}: installed after {time.monotonic() - began:.0f} s")
    folder = Path(stack.enter_context(TemporaryDirectory()))
    url = f"http://127.0.0.1:{free_port()}"
    stack.enter_context(running(tool.start(python.parent, url, folder), url + tool.health, folder))
    print(f"{tool.name}: ready after {time.monotonic() - began:.0f} s, at {url}")
    with traffic(url + "/v1/traces", tool.headers) as sessions:
        expected = dict.fromkeys(sessions, CALLS)
    seen = until(lambda: tool.ask(python, url), expected)
    print(f"{tool.name}: {len(seen)} sessions with {CALLS} calls each, as it should be")
    if tool.pictures and not asked.no_pictures:
        picture(tool.pictures(url, sorted(expected)))
    return url


# --- what is observed ----------------------------------------------------------------------------


@contextmanager
def traffic(endpoint: str, headers: list[str]) -> Iterator[set[str]]:
    """Two servers and three clients, each of which calls both in turns; the sessions by their refs."""
    ports = [free_port(), free_port()]
    paths = os.pathsep.join(filter(None, [str(EXPORTER), os.environ.get("PYTHONPATH")]))
    keys = {"MCP_SESSION_KEYS": secrets.token_urlsafe(32), "PYTHONPATH": paths}
    with ExitStack() as stack:
        folder = Path(stack.enter_context(TemporaryDirectory()))
        for number, port in enumerate(ports):
            program = [sys.executable, str(ROOT / "docs" / "observed_shop.py"), str(port), f"shop-{number}"]
            command = Command([*program, endpoint, *headers], keys)
            stack.enter_context(running(command, f"http://127.0.0.1:{port}/mcp", folder))
        held = [call(ports[0], "sessions/create")["session"] for _ in ARTICLES]
        refs: list[set[str]] = [set() for _ in held]
        for number in range(CALLS):
            for session, said, article in zip(held, refs, ARTICLES, strict=True):
                result = call(ports[number % 2], "tools/call", session, name="buy", arguments={"article": article})
                said.add(result["content"][0]["text"])
        assert [len(said) for said in refs] == [1] * len(held), "a session went by two names"
        yield set().union(*refs)


def call(port: int, method: str, session: dict[str, Any] | None = None, **params: Any) -> Any:
    """One request, as a client of the modern era sends it; its result."""
    meta: dict[str, Any] = {
        "io.modelcontextprotocol/protocolVersion": "2026-07-28",
        "io.modelcontextprotocol/clientCapabilities": {},
        "io.modelcontextprotocol/clientInfo": {"name": "observer", "version": "1"},
    }
    if session is not None:
        meta[SESSION_KEY] = {"sessionId": session["sessionId"]}
    message = {"jsonrpc": "2.0", "id": 1, "method": method, "params": {**params, "_meta": meta}}
    headers = {"accept": "application/json, text/event-stream", "mcp-protocol-version": "2026-07-28"}
    named = {"mcp-name": params["name"]} if "name" in params else {}
    answer = ask(f"http://127.0.0.1:{port}/mcp", message, {**headers, **named, "mcp-method": method})
    assert "result" in answer, answer
    return answer["result"]


# --- the tools -----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Command:
    """A program to start, and what it finds in its environment."""

    line: list[str]
    environment: dict[str, str]


@dataclass(frozen=True)
class Tool:
    """An observability tool.

    Args:
        name: What it is called.
        package: What is asked of PyPI.
        start: The program, from its environment's folder, where it is to be open, and a folder of its own.
        health: The path that answers when it is ready.
        headers: What its OTLP endpoint asks for.
        ask: How many calls of the tool it shows in each session.
        pictures: Which pages are taken as pictures, by the picture's name.
    """

    name: str
    package: str
    start: Callable[[Path, str, Path], Command]
    health: str
    headers: list[str]
    ask: Callable[[Path, str], dict[str, int]]
    pictures: Callable[[str, list[str]], dict[str, str]] | None = None


def start_phoenix(programs: Path, url: str, folder: Path) -> Command:
    """On ports of its own, and with nothing that leaves this machine."""
    environment = {
        "PHOENIX_HOST": "127.0.0.1",
        "PHOENIX_PORT": url.rpartition(":")[2],
        "PHOENIX_GRPC_PORT": str(free_port()),
        "PHOENIX_WORKING_DIR": str(folder),
        "PHOENIX_TELEMETRY_ENABLED": "false",
        "PHOENIX_ALLOW_EXTERNAL_RESOURCES": "false",
    }
    return Command([str(programs / "phoenix"), "serve"], environment)


def ask_phoenix(_: Path, url: str) -> dict[str, int]:
    """By its REST API: the sessions of the default project, and the spans of each one's traces."""
    found = ask(f"{url}/v1/projects/default/sessions?limit=100")["data"]
    spans = ask(f"{url}/v1/projects/default/spans?limit=1000")["data"]
    calls = {span["context"]["trace_id"] for span in spans if span["name"] == "tools/call buy"}
    return {session["session_id"]: len({trace["trace_id"] for trace in session["traces"]} & calls) for session in found}


def picture_phoenix(url: str, refs: list[str]) -> dict[str, str]:
    """The list of sessions, and one of them."""
    (project,) = [one["id"] for one in ask(f"{url}/v1/projects")["data"] if one["name"] == "default"]
    found = ask(f"{url}/v1/projects/default/sessions?limit=100")["data"]
    session = next(one["id"] for one in found if one["session_id"] == refs[0])
    return {
        "phoenix-sessions.png": f"{url}/projects/{project}/sessions",
        "phoenix-session.png": f"{url}/projects/{project}/sessions/{session}",
    }


def start_mlflow(programs: Path, url: str, folder: Path) -> Command:
    """With a database of its own."""
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
        found[session] = found.get(session, 0) + any(span.name == "tools/call buy" for span in trace.data.spans)
print(json.dumps(found))
"""


def ask_mlflow(python: Path, url: str) -> dict[str, int]:
    """By its own Python client: the traces that it gives to each session."""
    done = subprocess.run([str(python), "-c", ASK_MLFLOW, url], capture_output=True, text=True, check=True)
    found: dict[str, int] = json.loads(done.stdout.splitlines()[-1])
    return found


TOOLS = {
    "phoenix": Tool("phoenix", "arize-phoenix", start_phoenix, "/healthz", [], ask_phoenix, picture_phoenix),
    "mlflow": Tool("mlflow", "mlflow", start_mlflow, "/health", ["x-mlflow-experiment-id=0"], ask_mlflow),
}


def picture(pages: dict[str, str]) -> None:
    """Take pictures of pages, where Chromium is."""
    program = shutil.which("chromium") or shutil.which("chromium-browser")
    if program is None:
        print("no pictures: chromium is not installed (apt-get install chromium)")
        return
    IMAGES.mkdir(exist_ok=True)
    for name, url in pages.items():
        flags = ["--headless=new", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--window-size=1400,800"]
        late = ["--virtual-time-budget=20000", "--run-all-compositor-stages-before-draw"]
        target = f"--screenshot={IMAGES / name}"
        subprocess.run([program, *flags, *late, target, url], capture_output=True, timeout=PATIENCE, check=True)
        print(f"docs/images/{name}: {(IMAGES / name).stat().st_size:,} bytes")


# --- processes and requests ----------------------------------------------------------------------


def environment(name: str, package: str) -> Path:
    """The interpreter of a virtual environment of the tool's own, made where there is none."""
    folder = ROOT / f".venv-{name}"
    python = folder / "bin" / "python"
    if not python.exists():
        subprocess.run([sys.executable, "-m", "venv", str(folder)], check=True)
    pip(python, package, into=folder)
    return python


def pip(python: Path, *packages: str, into: Path) -> None:
    """Install what is not there yet."""
    mark = into / "installed"
    if mark.exists() and mark.read_text("utf-8") == repr(packages):
        return
    subprocess.run([str(python), "-m", "pip", "install", "-q", *packages], stderr=subprocess.DEVNULL, check=True)
    mark.write_text(repr(packages), "utf-8")


@contextmanager
def running(command: Command, health: str, folder: Path) -> Iterator[None]:
    """A program that answers, for as long as the block lasts. What it writes is shown where it never does."""
    deadline = time.monotonic() + PATIENCE
    with (folder / f"{time.monotonic_ns()}.log").open("w+") as log:
        process = subprocess.Popen(
            command.line, env={**os.environ, **command.environment}, cwd=folder, stdout=log, stderr=subprocess.STDOUT
        )
        try:
            while not answers(health):
                if process.poll() is not None or time.monotonic() > deadline:
                    log.seek(0)
                    raise SystemExit(f"{command.line[0]} did not start:\n{log.read()[-4000:]}")
                time.sleep(0.2)
            yield
        finally:
            process.terminate()
            process.wait(30)


def answers(url: str) -> bool:
    """Whether anybody answers there, whatever the answer."""
    try:
        urllib.request.urlopen(url, timeout=5).close()
    except urllib.error.HTTPError:
        return True
    except OSError:
        return False
    return True


def ask(url: str, message: object = None, headers: dict[str, str] | None = None) -> Any:
    """A JSON answer."""
    body = None if message is None else json.dumps(message).encode()
    request = urllib.request.Request(url, body, {"content-type": "application/json", **(headers or {})})
    with urllib.request.urlopen(request, timeout=30) as response:
        return json.load(response)


def until(look: Callable[[], dict[str, int]], expected: dict[str, int]) -> dict[str, int]:
    """What is seen, once it is what is expected: tools take in what they are sent at their own pace."""
    for _ in range(30):
        seen = look()
        if seen == expected:
            return seen
        time.sleep(1)
    raise SystemExit(f"it shows {seen}, and should show {expected}")


def free_port() -> int:
    """A port of this machine that nobody listens on."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port: int = listener.getsockname()[1]
        return port


if __name__ == "__main__":
    sys.exit(main())
