"""How many worker processes there are, and what they may not be given."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
from started import start

from mcp_sessions._server.placement import fault, workers

BIN = "/usr/local/bin/"


@pytest.mark.parametrize(
    ("command", "environ", "count"),
    [
        ("uvicorn main:app", {}, 1),
        ("uvicorn main:app --workers 4", {}, 4),
        ("uvicorn main:app --workers=4", {}, 4),
        ("uvicorn.exe main:app --workers=4", {}, 4),
        ("uvicorn/__main__.py main:app --workers 4", {}, 4),
        ("uvicorn main:app --workers 4 --workers 1", {}, 1),
        ("uvicorn main:app", {"WEB_CONCURRENCY": "3"}, 3),
        ("uvicorn main:app --workers 1", {"WEB_CONCURRENCY": "3"}, 1),
        ("uvicorn main:app", {"UVICORN_WORKERS": "2", "WEB_CONCURRENCY": "3"}, 2),
        ("uvicorn main:app --workers", {}, 1),
        ("uvicorn main:app --workers many", {}, 1),
        ("uvicorn main:app --reload", {"WEB_CONCURRENCY": "3"}, 1),
        ("uvicorn main:app --reload --workers 4", {}, 1),
        ("uvicorn main:app --workers 4", {"UVICORN_RELOAD": "true"}, 1),
        ("gunicorn main:app -w 4", {}, 4),
        ("gunicorn main:app -w4", {}, 4),
        ("gunicorn main:app -w=4", {}, 4),
        ("gunicorn main:app --worker-class x -w 4", {}, 4),
        ("gunicorn main:app --worker-class x", {}, 1),
        ("gunicorn main:app", {"GUNICORN_CMD_ARGS": "--bind '0.0.0.0:80' --workers=5"}, 5),
        ("gunicorn main:app -w 2", {"GUNICORN_CMD_ARGS": "--workers=5"}, 2),
        ("gunicorn main:app", {"GUNICORN_CMD_ARGS": "'", "WEB_CONCURRENCY": "3"}, 3),
        ("uvicorn main:app", {"GUNICORN_CMD_ARGS": "--workers=5"}, 1),
        ("hypercorn main:app -w 4", {"WEB_CONCURRENCY": "3"}, 4),
        ("hypercorn main:app", {"WEB_CONCURRENCY": "3"}, 1),
        ("fastapi run --workers 4", {}, 4),
        ("fastapi dev", {"WEB_CONCURRENCY": "3"}, 1),
        ("fastapi dev --no-reload", {"WEB_CONCURRENCY": "3"}, 3),
        ("fastapi run --reload", {"WEB_CONCURRENCY": "3"}, 1),
        ("main.py", {"WEB_CONCURRENCY": "3"}, 3),
        ("main.py", {"WEB_CONCURRENCY": ""}, 1),
        ("wc -w 4", {}, 1),
        ("", {}, 1),
    ],
)
def test_the_number_of_workers_is_what_the_server_makes_of_it(
    command: str, environ: dict[str, str], count: int
) -> None:
    """The command line comes before the environment, the last flag before the first; reloading means one process."""
    assert workers((BIN + command).split(), environ) == count


def test_no_command_line_is_one_worker() -> None:
    """An embedded interpreter may have none."""
    assert workers([], {}) == 1


ONE, MANY = ["uvicorn", "main:app"], ["gunicorn", "-w3"]


@pytest.mark.parametrize(
    ("argv", "given", "refused", "warned"),
    [
        (ONE, (True, True, True), [], []),
        (ONE, (False, False, True), [], []),
        (ONE, (False, True, True), [], ["at a restart", 'store="sqlite:']),
        (MANY, (False, False, True), [], []),
        (MANY, (True, True, True), ["3 worker processes", 'keys="env:MCP_SESSION_KEYS"'], []),
        (MANY, (False, True, True), ["3 worker processes", 'store="sqlite:', 'store="redis:', 'transport="off"'], []),
        (MANY, (False, True, False), [], ["3 worker processes", "a store that the workers share"]),
    ],
)
def test_what_workers_or_a_restart_would_lose_is_refused_or_a_warning(
    argv: list[str],
    given: tuple[bool, bool, bool],
    refused: list[str],
    warned: list[str],
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Refused is what gives a client nothing; a warning is what forgets that a session was deleted."""
    random_keys, memory_store, keeps_state = given
    reason = fault(random_keys=random_keys, memory_store=memory_store, keeps_state=keeps_state, argv=argv, environ={})
    logged = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
    assert (reason is not None, len(logged)) == (refused != [], int(warned != []))
    assert all(word in (reason or "") for word in refused)
    assert all(word in "".join(logged) for word in warned)


def test_what_is_not_given_is_this_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["gunicorn", "-w", "2"])
    monkeypatch.setattr(os, "environ", {})
    assert fault(random_keys=True, memory_store=False, keeps_state=True) is not None


APPS = """
from starlette.applications import Starlette
from starlette.responses import PlainTextResponse
from starlette.routing import Route
from mcp_sessions import MCPSessionMiddleware, add_sessions

async def answer(request):
    return PlainTextResponse("")

def bare():
    return Starlette(routes=[Route("/mcp", answer, methods=["POST"])])

wrapped = MCPSessionMiddleware(bare())
placed = add_sessions(bare(), path="/mcp")
"""


@pytest.mark.parametrize("app", ["wrapped", "placed"])
def test_uvicorn_with_two_workers_stops_over_random_keys(app: str, tmp_path: Path) -> None:
    """The parent stops, too, instead of starting workers for ever, and the terminal shows the remedy."""
    ended = start(tmp_path, APPS, app, "--workers", "2")
    assert "2 worker processes" in ended.stdout
    assert 'keys="env:MCP_SESSION_KEYS"' in ended.stdout
    assert "Application startup complete" not in ended.stdout


IN_CODE = {
    "uvicorn": "import uvicorn; uvicorn.run('served:app', workers=2, port=0)",
    "hypercorn": (
        "from hypercorn.config import Config; from hypercorn.run import run; c = Config(); c.workers = 2; "
        "c.application_path = 'served:app'; c.bind = ['127.0.0.1:0']; run(c)"
    ),
}
"""Servers that are started by code, so that no command line has the number of workers."""


@pytest.mark.parametrize("server", IN_CODE)
def test_workers_that_code_asks_for_are_seen_too(server: str, tmp_path: Path) -> None:
    (tmp_path / "served.py").write_text(
        APPS + "app = MCPSessionMiddleware(bare(), keys='a secret of the worker tests, at least 32 bytes')\n",
        encoding="utf-8",
    )
    (tmp_path / "main.py").write_text(f"if __name__ == '__main__':\n    {IN_CODE[server]}\n", encoding="utf-8")
    ended = subprocess.run(
        [sys.executable, "main.py"], cwd=tmp_path, capture_output=True, encoding="utf-8", timeout=60, check=False
    )
    assert "2 worker processes" in ended.stdout + ended.stderr
    assert 'store="sqlite:' in ended.stdout + ended.stderr


@pytest.mark.parametrize(("reloads", "count"), [(False, 3), (True, 1)])
def test_the_settings_of_the_server_below_come_before_the_command_line(reloads: bool, count: int) -> None:
    """Gunicorn's files of settings, for one; with reloading there is one process."""
    worker = {"__name__": "gunicorn.workers.base", "workers": workers}
    exec("def init_process(self):\n    return workers(['main.py'], {'WEB_CONCURRENCY': '9'})", worker)
    settings = SimpleNamespace(workers=3, should_reload=reloads)
    assert worker["init_process"](SimpleNamespace(cfg=settings)) == count  # type: ignore[operator]
