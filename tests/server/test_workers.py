"""How many worker processes there are, and what they may not be given."""

from __future__ import annotations

import logging
import os
import sys
from pathlib import Path

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


@pytest.mark.parametrize("command", ["uvicorn main:app", "uvicorn main:app --workers 1"])
def test_one_worker_may_have_anything(command: str, caplog: pytest.LogCaptureFixture) -> None:
    """With one process there is nothing to share, and nothing to be said."""
    assert fault(random_keys=True, memory_store=True, argv=command.split(), environ={}) is None
    assert caplog.records == []


def test_random_keys_are_refused_where_workers_would_differ() -> None:
    """The message says how many there are, and the remedy."""
    reason = fault(random_keys=True, memory_store=True, argv=["uvicorn", "--workers", "3"], environ={})
    assert reason is not None
    assert "3 worker processes" in reason
    assert 'keys="env:MCP_SESSION_KEYS"' in reason


def test_a_store_in_memory_is_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    """Sessions work; deleting one is not seen everywhere, and the log says so with the remedy."""
    assert fault(random_keys=False, memory_store=True, argv=["gunicorn", "-w3"], environ={}) is None
    (record,) = caplog.records
    assert record.levelno == logging.WARNING
    assert "3 worker processes" in record.getMessage()
    assert "a store that the workers share" in record.getMessage()


def test_shared_keys_and_a_shared_store_are_fine(caplog: pytest.LogCaptureFixture) -> None:
    """What the workers share is as good as with one of them."""
    assert fault(random_keys=False, memory_store=False, argv=["gunicorn", "-w3"], environ={}) is None
    assert caplog.records == []


def test_what_is_not_given_is_this_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["gunicorn", "-w", "2"])
    monkeypatch.setattr(os, "environ", {})
    assert fault(random_keys=True, memory_store=False) is not None


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
