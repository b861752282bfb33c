"""JavaScript clients for tests: the packages of `npm/`, with a Node of their own, installed once per machine.

The packages and their hashes come from `npm/package-lock.json`; install scripts never run. Without npm, which root
gets from Debian, the tests are skipped, and fail where `CI` is set. To move to newer packages, change
`npm/package.json` and run `npm install --package-lock-only` there.
"""

import fcntl
import hashlib
import json
import os
import platform
import shutil
import subprocess
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Final

import anyio
from anyio.streams.buffered import BufferedByteReceiveStream
from environments import go_without, program

HERE: Final = Path(__file__).parent
CACHE: Final = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "mcp-sessions-tests"
DEADLINE: Final = 180  # seconds after which a program that hangs fails its test


@cache
def packages(manifest: Path = HERE / "npm") -> Path:
    """Return the folder of a manifest's packages, which are installed unless they are there, or skip the test."""
    texts = [(manifest / name).read_text("utf-8") for name in ("package.json", "package-lock.json")]
    facts = repr([platform.system(), platform.machine(), *texts])
    folder = CACHE / f"{manifest.name}-{hashlib.sha256(facts.encode()).hexdigest()[:16]}"
    if folder.exists():
        return folder
    command = [str(program("npm")), "ci", "--ignore-scripts", "--no-audit", "--no-fund"]
    CACHE.mkdir(parents=True, exist_ok=True)
    with (CACHE / "lock").open("w") as lock, tempfile.TemporaryDirectory(dir=CACHE) as aside:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not folder.exists():  # another process may have been faster
            made = shutil.copytree(manifest, Path(aside, "made"))
            done = subprocess.run(
                command, cwd=made, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False
            )
            if done.returncode != 0:
                go_without("JavaScript programs", f"npm did not install {manifest.name}:\n{done.stdout[-2000:]}")
            made.rename(folder)
    return folder


async def run(folder: Path, home: Path, *command: str) -> str:
    """Run a program of the packages with their Node, and return its output.

    Raises:
        RuntimeError: The program failed; the message holds its output.
    """
    with anyio.fail_after(DEADLINE):
        done = await anyio.run_process(command, check=False, cwd=folder, env=_environment(folder, home))
    if done.returncode == 0:
        return done.stdout.decode()
    raise RuntimeError(f"{command[0]} failed ({done.returncode}): {(done.stdout + done.stderr).decode()[-2000:]}")


@asynccontextmanager
async def serving(folder: Path, home: Path) -> AsyncIterator[tuple[str, Callable[[], Awaitable[str]]]]:
    """Run the server of `server.mjs` within the block, and yield its origin and what reads its next line."""
    program = (HERE / "server.mjs").read_text("utf-8")
    command = ["node", "--input-type=module", "--eval", program]
    async with await anyio.open_process(command, cwd=folder, env=_environment(folder, home)) as process:
        assert process.stdout is not None
        printed = BufferedByteReceiveStream(process.stdout)

        async def line() -> str:
            return (await printed.receive_until(b"\n", 100)).decode()

        try:
            with anyio.fail_after(DEADLINE):
                yield f"http://127.0.0.1:{await line()}", line
        finally:
            process.kill()


def _environment(folder: Path, home: Path) -> dict[str, str]:
    path = f"{folder / 'node_modules' / '.bin'}{os.pathsep}{os.environ['PATH']}"
    return {**os.environ, "PATH": path, "HOME": str(home)}


@dataclass(frozen=True)
class Exchange:
    """One HTTP exchange as the client saw it, with a number in place of each session id."""

    method: str
    status: int
    sent: int | None  # the session id in the request
    named: int | None  # the session id in the response


@dataclass(frozen=True)
class Visit:
    """What one client saw."""

    results: list[Any]  # of each step, or the client's message after "failed: "
    exchanges: list[Exchange]  # in the order in which answers began
    troubles: list[str]  # other errors that the client reported

    def statuses(self, method: str) -> set[int]:
        """Return the statuses of the answers to an HTTP method."""
        return {exchange.status for exchange in self.exchanges if exchange.method == method}


async def visits(
    folder: Path, home: Path, clients: Sequence[str], url: str, *steps: Sequence[Any], wrapper: Path | None = None
) -> list[Visit]:
    """Connect clients to a server at once and take some steps; clients and steps have the names of `clients.mjs`.

    Args:
        folder: The folder of the installed packages.
        home: The home directory of the process.
        clients: Which clients.
        url: The server's MCP endpoint.
        steps: The steps after connecting.
        wrapper: The module whose `withSessions` wraps the clients' transports, or None for unchanged clients.
    """
    program = (HERE / "clients.mjs").read_text("utf-8")
    arguments = [json.dumps(clients), url, json.dumps(steps), *([] if wrapper is None else [wrapper.as_uri()])]
    # Passed by `--eval`: a program in a file looks for packages where it lies, this one where it runs.
    printed = await run(folder, home, "node", "--input-type=module", "--eval", program, "--", *arguments)
    return [
        Visit(seen["results"], [Exchange(*exchange) for exchange in seen["exchanges"]], seen["troubles"])
        for seen in json.loads(printed)
    ]
