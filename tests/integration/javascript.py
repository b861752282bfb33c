"""JavaScript clients for tests: the packages of `npm/`, with a Node of their own, installed once per machine.

The packages and their hashes come from `npm/package-lock.json`; install scripts never run. Without npm, which root
gets from Debian, the tests are skipped, and fail where `CI` is set. To move to newer packages, change
`npm/package.json` and run `npm install --package-lock-only` there.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import platform
import shutil
import subprocess
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Final

import anyio
from anyio.streams.buffered import BufferedByteReceiveStream
from environments import go_without

import debian

HERE: Final = Path(__file__).parent
CACHE: Final = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "mcp-sessions-tests"
MANIFEST: Final = ("package.json", "package-lock.json")
DEADLINE: Final = 180  # seconds after which a program that hangs fails its test


@cache
def packages(manifest: Path = HERE / "npm") -> Path:
    """Return the folder of a manifest's installed packages, or skip the test."""
    try:
        return install(manifest, CACHE)
    except debian.NotInstalled as missing:
        go_without("JavaScript programs", str(missing))


def install(manifest: Path, cache: Path) -> Path:
    """Install the packages of a manifest unless they are there, and return their folder.

    Args:
        manifest: The folder of a `package.json` and its `package-lock.json`.
        cache: Where installed packages are kept; several programs may install at once.

    Raises:
        debian.NotInstalled: npm is missing, or it failed.
    """
    folder = cache / f"{manifest.name}-{_fingerprint(manifest)}"
    if not folder.exists():
        npm = debian.install("npm")
        cache.mkdir(parents=True, exist_ok=True)
        with _one_at_a_time(cache):
            if not folder.exists():  # another process may have been faster
                _clean_install(npm, manifest, folder)
    return folder


def _fingerprint(manifest: Path) -> str:
    facts = [platform.system(), platform.machine(), *((manifest / name).read_text("utf-8") for name in MANIFEST)]
    return hashlib.sha256(repr(facts).encode()).hexdigest()[:16]


@contextmanager
def _one_at_a_time(cache: Path) -> Iterator[None]:
    with (cache / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _clean_install(npm: Path, manifest: Path, folder: Path) -> None:
    """Install beside the folder, and move the complete installation there."""
    command = [str(npm), "ci", "--ignore-scripts", "--no-audit", "--no-fund"]
    with tempfile.TemporaryDirectory(dir=folder.parent) as aside:
        made = shutil.copytree(manifest, Path(aside, "made"))
        done = subprocess.run(
            command, cwd=made, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False
        )
        if done.returncode != 0:
            raise debian.NotInstalled(f"npm did not install {manifest.name}:\n{done.stdout[-2000:]}")
        made.rename(folder)


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
class Failed:
    """A step that failed, with the client's message."""

    why: str


@dataclass(frozen=True)
class Visit:
    """What one client saw."""

    results: list[Any]  # of each step after the first
    exchanges: list[Exchange]  # in the order in which answers began
    troubles: list[str]  # other errors that the client reported

    def statuses(self, method: str) -> set[int]:
        """Return the statuses of the answers to an HTTP method."""
        return {exchange.status for exchange in self.exchanges if exchange.method == method}


async def visit(
    folder: Path, home: Path, client: str, url: str, *steps: Sequence[Any], wrapper: Path | None = None
) -> Visit:
    """Connect one client to a server and take some steps; clients and steps have the names of `clients.mjs`.

    Args:
        folder: The folder of the installed packages.
        home: The home directory of the process.
        client: Which client.
        url: The server's MCP endpoint.
        steps: The steps after connecting.
        wrapper: The module whose `withSessions` wraps the client's transport, or None for an unchanged client.
    """
    program = (HERE / "clients.mjs").read_text("utf-8")
    asked = json.dumps([["connect"], *steps])
    modules = [] if wrapper is None else [wrapper.as_uri()]
    # Passed by `--eval`: a program in a file looks for packages where it lies, this one where it runs.
    printed = await run(
        folder, home, "node", "--input-type=module", "--eval", program, "--", client, url, asked, *modules
    )
    lines = [json.loads(line) for line in printed.splitlines()]
    (connected, *results) = [
        Failed(line["error"]) if "error" in line else line["result"] for line in lines if "step" in line
    ]
    assert connected == "small"
    return Visit(
        results=results,
        exchanges=[Exchange(*line.values()) for line in lines if "http" in line],
        troubles=[line["trouble"] for line in lines if "trouble" in line],
    )
