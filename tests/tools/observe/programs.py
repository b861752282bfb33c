"""Observability programs: each is installed into an environment of its own, started, queried and stopped.

A program that starts is polled until it answers, up to a generous deadline.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from http.client import HTTPException
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[3]
PATIENCE = 240  # seconds for a program to answer, on a machine that does other things too
PORTS = range(20_000, 30_000)  # below those that a system gives to outgoing connections while a program starts


def module(python: Path | str, name: str, *arguments: str) -> Command:
    """Return the command that runs a module of this folder, which imports what tests share."""
    folders = [str(ROOT / "tests" / folder) for folder in ("", "support", "tools")]
    paths = os.pathsep.join([*folders, *filter(None, [os.environ.get("PYTHONPATH")])])
    return Command([str(python), "-m", f"observe.{name}", *arguments], {"PYTHONPATH": paths})


@dataclass(frozen=True)
class Command:
    """A program to start, and what it finds in its environment."""

    line: list[str]
    environment: dict[str, str]


def installed(name: str, *packages: str) -> Path:
    """Return the interpreter of a virtual environment with these packages, made where it is missing.

    Raises:
        SystemExit: The packages cannot be installed here, with the reason.
    """
    folder = ROOT / f".venv-{name}"
    python, mark = folder / "bin" / "python", folder / "installed"
    if mark.exists() and mark.read_text("utf-8") == repr(packages):
        return python
    try:
        subprocess.run([sys.executable, "-m", "venv", "--clear", folder], check=True)
        subprocess.run([*_install(python), "--quiet", *packages], check=True)
    except subprocess.CalledProcessError as why:
        raise SystemExit(f"{name} cannot be installed here, so nothing was observed with it: {why}") from None
    mark.write_text(repr(packages), "utf-8")
    return python


def _install(python: Path) -> list[str]:
    """Return the install command of uv where `make setup` brought it, which takes seconds, or else of pip."""
    uv = Path(sys.executable).with_name("uv")
    return (
        [str(uv), "pip", "install", "--python", str(python)] if uv.exists() else [str(python), "-m", "pip", "install"]
    )


@contextmanager
def running(command: Command, health: str, folder: Path) -> Iterator[None]:
    """Run a program that answers within the block; its output is shown where it never answers."""
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
            process.wait(PATIENCE)


def answers(url: str) -> bool:
    """Whether a server answers there, whatever the answer."""
    try:
        urllib.request.urlopen(url, timeout=PATIENCE).close()
    except urllib.error.HTTPError:
        return True
    except (OSError, HTTPException):
        return False
    return True


def ask(url: str, message: object = None, headers: dict[str, str] | None = None) -> Any:
    """Send a request, and return its JSON answer."""
    body = None if message is None else json.dumps(message).encode()
    request = urllib.request.Request(url, body, {"content-type": "application/json", **(headers or {})})
    with urllib.request.urlopen(request, timeout=PATIENCE) as response:
        return json.load(response)


def free_port() -> int:
    """Return an unused port of this machine, another one each time."""
    for port in _ports:
        with socket.socket() as listener:
            try:
                listener.bind(("127.0.0.1", port))
            except OSError:
                continue
            return port
    raise SystemExit("no port is free")


_ports = iter(PORTS[os.getpid() % 5_000 :])
