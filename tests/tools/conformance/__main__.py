"""`python -m tests.tools.conformance`: the suite's outcomes with the middleware must be those of the bare server.

The suite is an npm package of a fixed version with a Node of its own, checked by its hashes. It runs against the same
server bare, within the middleware, with a session in every request, and behind the bridge.
"""

import argparse
import json
import os
import re
import sys
import tempfile
import warnings
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

TESTS: Final = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(TESTS / folder) for folder in ("", "support")]  # as pytest finds the tests' modules
warnings.filterwarnings("ignore", message=".*deprecated as of 2026-07-28")  # the older requirement set asks for it

import anyio
from apps import grouped, read
from clients import SESSION_KEY, RealClient
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from integration import javascript
from integration.serving import serving
from mcp_sessions import MCPSessionMiddleware

from .server import everything

SETS: Final = ("2025-11-25", "2026-07-28")
TRIES: Final = 3  # of a set: the suite has timeouts of half a second
DEADLINE: Final = 180  # seconds for one set
STATUSES: Final = {"SUCCESS", "FAILURE", "WARNING", "SKIPPED"}  # others are the suite's own notes
Checks = dict[str, "Counter[str]"]  # each with its status, by scenario

# --- the servers -----------------------------------------------------------------------------------


def within(**options: Any) -> ASGIApp:
    """Wrap the server in the middleware."""
    key = "a secret of the conformance run, at least 32 bytes long"
    return MCPSessionMiddleware(everything(), keys=key, **grouped(**options))


def carried() -> ASGIApp:
    """Write one session into each request and notification, as a client sends that always names its session."""
    app, session = within(require="always"), dict[str, str]()

    async def carrying(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["method"] != "POST":
            await app(scope, receive, send)
            return
        if not session:
            session.update(await RealClient(within(admission="own")).create())
        body = await read(receive)
        message = json.loads(body)
        if "method" in message:  # and not a response to the server's own request
            params = message.setdefault("params", {})
            params.setdefault("_meta", {})[SESSION_KEY] = session
            body = json.dumps(message).encode()
        headers = [(name, value) for name, value in scope["headers"] if name != b"content-length"]
        headers.append((b"content-length", b"%d" % len(body)))
        whole: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]

        async def replay() -> Message:
            return whole.pop() if whole else await receive()

        await app({**scope, "headers": headers}, replay, send)

    return carrying


ECHOED: Final = "a session in every request"
SERVERS: Final[dict[str, Callable[[], ASGIApp]]] = {
    "bare": everything,
    "with the middleware": within,
    ECHOED: carried,
    "behind the bridge": lambda: within(bridge=True),
}
BY_DESIGN: Final = {("ping", ECHOED): {"ping FAILURE"}, ("logging-set-level", ECHOED): {"logging-set-level FAILURE"}}
"""The suite wants these two results to be empty objects; the draft wants the session in every result."""

# --- the suite -------------------------------------------------------------------------------------


async def run(url: str, requirements: str) -> Checks:
    """Run a requirement set, and return the outcome of each scenario; a failed check is a result like any other."""
    folder = javascript.packages(Path(__file__).parent / "npm")
    path = f"{folder / 'node_modules' / '.bin'}{os.pathsep}{os.environ['PATH']}"
    with tempfile.TemporaryDirectory() as records, anyio.fail_after(DEADLINE):
        command = ["conformance", "server", "--url", url, "--requirements", requirements, "--output-dir", records]
        done = await anyio.run_process(command, check=False, cwd=records, env={**os.environ, "PATH": path})
        found = recorded(Path(records))
    assert found, done.stdout.decode()[-2000:]
    return found


def recorded(folder: Path) -> Checks:
    """Read every scenario's checks from the folders that the suite left."""
    found: Checks = {}
    for record in sorted(folder.glob("server-*/checks.json"), key=lambda record: record.stat().st_mtime_ns):
        scenario = re.sub(r"^server-|-\d{4}-\d\d-\d\dT.*", "", record.parent.name)
        checks = json.loads(record.read_text("utf-8"))
        found[scenario] = Counter(f"{check['id']} {check['status']}" for check in checks if check["status"] in STATUSES)
    return found


def differences(bare: Checks, found: Checks, server: str) -> list[str]:
    """Describe every scenario that differs from the bare server's, except those that do so by design."""
    return [
        f"{scenario}, {server}: {', '.join(sorted(changed)) or 'checks are missing'}"
        for scenario in {**bare, **found}
        for was, now in [(bare.get(scenario), found.get(scenario))]
        for changed in [set((now or Counter()) - (was or Counter()))]
        if was != now and changed != BY_DESIGN.get((scenario, server))
    ]


async def steadily(url: str, requirements: str, bare: dict[str, Checks], server: str) -> tuple[Checks, list[str]]:
    """Run a set until it comes out as expected, at most `TRIES` times; the first result is the bare server's."""
    tries = 0
    while True:
        found = await run(url, requirements)
        different = differences(bare.setdefault(requirements, found), found, server)
        tries += 1
        if not different or tries == TRIES:
            return found, different


async def compare(sets: list[str]) -> int:
    """Run the sets against every server in turn, and return 1 where one differs from the first."""
    bare: dict[str, Checks] = {}
    failed = False
    for server, make in SERVERS.items():
        async with serving(make()) as url:
            for requirements in sets:
                found, different = await steadily(url, requirements, bare, server)
                counts = Counter(check.split()[-1].lower() for checks in found.values() for check in checks.elements())
                shown = ", ".join(f"{number} {status}" for status, number in counts.items())
                print(f"{requirements}, {server}: {shown}", *different, sep="\n  ", flush=True)
                failed = failed or bool(different)
    return int(failed)


parser = argparse.ArgumentParser(prog="python -m tests.tools.conformance", description=__doc__)
parser.add_argument("--set", action="append", choices=SETS, help="only this one")
sys.exit(anyio.run(compare, parser.parse_args().set or list(SETS)))
