"""JavaScript clients for tests: the packages of `npm/`, with a Node of their own, installed once per machine.

What is installed is what `npm/package-lock.json` says, checked by its hashes, and no package's install script runs.
npm itself is the machine's, or Debian's where root may install it. Where there is none the tests are skipped and say
so; with `CI` in the environment they fail. To move to newer packages, change `npm/package.json` and run
`npm install --package-lock-only` there.
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
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Final

import anyio
from environments import go_without

import debian

HERE: Final = Path(__file__).parent
CACHE: Final = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "mcp-sessions-tests"
MANIFEST: Final = ("package.json", "package-lock.json")
DEADLINE: Final = 60  # seconds after which a program that hangs fails its test


# --- installing ----------------------------------------------------------------------------------


@cache
def packages(manifest: Path = HERE / "npm") -> Path:
    """The folder in which the packages of a manifest are, installed if need be."""
    try:
        return install(manifest, CACHE)
    except debian.NotInstalled as missing:
        go_without("JavaScript programs", str(missing))


def install(manifest: Path, cache: Path) -> Path:
    """The folder in which the packages of a manifest are, after they have been installed if need be.

    Args:
        manifest: The folder of a `package.json` and its `package-lock.json`.
        cache: Where installed packages are kept. Several programs may install at once.

    Raises:
        debian.NotInstalled: There is no npm, or it failed.
    """
    folder = cache / f"{manifest.name}-{_fingerprint(manifest)}"
    if not folder.exists():
        npm = debian.install("npm")
        cache.mkdir(parents=True, exist_ok=True)
        with _one_at_a_time(cache):
            if not folder.exists():  # nobody else was faster
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
    """Install beside the folder, and move there what is whole."""
    command = [str(npm), "ci", "--ignore-scripts", "--no-audit", "--no-fund"]
    with tempfile.TemporaryDirectory(dir=folder.parent) as aside:
        made = shutil.copytree(manifest, Path(aside, "made"))
        done = subprocess.run(
            command, cwd=made, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False
        )
        if done.returncode != 0:
            raise debian.NotInstalled(f"npm did not install {manifest.name}:\n{done.stdout[-2000:]}")
        made.rename(folder)


# --- running -------------------------------------------------------------------------------------


async def run(folder: Path, home: Path, *command: str) -> str:
    """What a program of the packages prints, run with their Node.

    Args:
        folder: Where the packages are.
        home: Where it may keep files of its own.
        command: Its name and arguments.

    Raises:
        RuntimeError: It failed; the message holds what it said.
    """
    path = f"{folder / 'node_modules' / '.bin'}{os.pathsep}{os.environ['PATH']}"
    environment = {**os.environ, "PATH": path, "HOME": str(home)}
    with anyio.fail_after(DEADLINE):
        done = await anyio.run_process(command, check=False, cwd=folder, env=environment)
    if done.returncode == 0:
        return done.stdout.decode()
    raise RuntimeError(f"{command[0]} failed ({done.returncode}): {(done.stdout + done.stderr).decode()[-2000:]}")


@dataclass(frozen=True)
class Exchange:
    """One HTTP exchange as the client saw it.

    Args:
        method: The HTTP method.
        status: The HTTP status.
        sent: Which session id was sent, as a number that stands for it, or None.
        named: Which one was named in the answer, likewise.
    """

    method: str
    status: int
    sent: int | None
    named: int | None


@dataclass(frozen=True)
class Failed:
    """A step that failed, and what the client said of it."""

    why: str


@dataclass(frozen=True)
class Visit:
    """What one client saw.

    Args:
        said: What came of each step after the first, in order.
        exchanges: Every HTTP exchange, in the order in which answers began.
        troubles: What the client complained of beside that.
    """

    said: list[Any]
    exchanges: list[Exchange]
    troubles: list[str]

    def statuses(self, method: str) -> set[int]:
        """Those of the answers to an HTTP method."""
        return {exchange.status for exchange in self.exchanges if exchange.method == method}


async def visit(folder: Path, home: Path, client: str, url: str, *steps: Sequence[Any]) -> Visit:
    """Let one client connect to a server and take some steps.

    Args:
        folder: Where the packages are.
        home: Where the client may keep files.
        client: Which, as `clients.mjs` calls them.
        url: The MCP endpoint.
        steps: What it does once it is connected, as `clients.mjs` has them.
    """
    program = (HERE / "clients.mjs").read_text("utf-8")
    told = json.dumps([["connect"], *steps])
    # Not as a file: a program finds packages from where it lies, one that is handed over from where it runs.
    printed = await run(folder, home, "node", "--input-type=module", "--eval", program, "--", client, url, told)
    lines = [json.loads(line) for line in printed.splitlines()]
    (connected, *said) = [
        Failed(line["error"]) if "error" in line else line["said"] for line in lines if "step" in line
    ]
    assert connected == "small"
    return Visit(
        said=said,
        exchanges=[Exchange(*line.values()) for line in lines if "http" in line],
        troubles=[line["trouble"] for line in lines if "trouble" in line],
    )
