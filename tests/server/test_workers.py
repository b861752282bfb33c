"""How many worker processes there are, and what they may not be given."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import patch

import pytest
from starlette.applications import Starlette
from started import start

from mcp_sessions import ConfigurationError, MCPSessionMiddleware, Sessions, add_sessions, from_env
from mcp_sessions._server import startup_checks
from mcp_sessions._server.workers import workers


@pytest.mark.parametrize(
    ("count", "given", "refused", "warned"),
    [
        (1, (True, True, True), [], []),
        (1, (False, False, True), [], []),
        (1, (False, True, True), [], ["at a restart", 'store="sqlite:']),
        (3, (False, False, True), [], []),
        (3, (True, True, True), ["3 worker processes", 'keys="env:MCP_SESSIONS_KEYS"'], []),
        (3, (False, True, True), ["3 worker processes", 'store="sqlite:', 'store="redis:', 'transport="off"'], []),
        (3, (False, True, False), [], ["3 worker processes", "a store that all workers share"]),
    ],
)
def test_what_workers_or_a_restart_would_lose_is_refused_or_a_warning(
    count: int,
    given: tuple[bool, bool, bool],
    refused: list[str],
    warned: list[str],
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Refused is what gives a client nothing; a warning is what forgets that a session was deleted."""
    random_keys, memory_store, keeps_state = given
    app = MCPSessionMiddleware(
        Starlette(),
        keys=None if random_keys else "a secret of the worker tests, at least 32 bytes",
        store="memory:" if memory_store else "sqlite:sessions.db",
        transport="auto" if keeps_state else "off",
    )
    caplog.clear()
    with patch.object(startup_checks, "workers", lambda: count):
        reason = app.configuration_error
        if reason is None:
            startup_checks.log_memory(app._runtime, random_keys=random_keys)
    logged = caplog.messages
    assert (reason is not None, len(logged)) == (refused != [], int(warned != []))
    assert all(word in (reason or "") for word in refused)
    assert all(word in "".join(logged) for word in warned)


APPS = """
from starlette.applications import Starlette
from starlette.responses import PlainTextResponse
from starlette.routing import Route
from mcp_sessions import MCPSessionMiddleware, Sessions, add_sessions

async def answer(request):
    return PlainTextResponse("")

def bare():
    return Starlette(routes=[Route("/mcp", answer, methods=["POST"])])

wrapped = MCPSessionMiddleware(bare())
placed = add_sessions(bare(), path="/mcp")
"""


NO_DRIVER = f"import sys\nsys.modules['redis.asyncio.retry'] = None\n{APPS}\nSessions(store='redis://127.0.0.1')"


@pytest.mark.parametrize(
    ("app", "source", "remedy"),
    [
        *((app, APPS, 'keys="env:MCP_SESSIONS_KEYS"') for app in ("wrapped", "placed")),
        ("placed", NO_DRIVER, 'needs a driver: pip install "redis'),
    ],
    ids=["random keys", "random keys, placed", "a wrong option"],
)
def test_uvicorn_with_two_workers_stops(app: str, source: str, remedy: str, tmp_path: Path) -> None:
    """The parent, too, instead of starting workers for ever; the terminal shows the remedy."""
    ended = start(tmp_path, source, app, "--workers", "2")
    assert remedy in ended.stdout
    assert ("2 worker processes" in ended.stdout) is (source is APPS)
    assert ("Application startup complete" if source is APPS else "Traceback") not in ended.stdout
    assert "stopping the parent process" in ended.stdout or source is APPS


@pytest.mark.parametrize(
    "make",
    [
        lambda: MCPSessionMiddleware(Starlette(), keys="env:NOT_SET"),
        lambda: add_sessions(Starlette(), path="/mcp"),
        from_env,
        lambda: Sessions(store="memory:"),
    ],
)
def test_one_process_raises_the_error_and_several_end(
    make: Callable[[], object], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A traceback shows which line of the application to mend; once is enough."""
    monkeypatch.setenv("MCP_SESSIONS_LIFETIME", "soon")
    with pytest.raises(ConfigurationError) as raised:
        make()
    with patch("mcp_sessions._server.workers.workers", lambda: 2), pytest.raises(SystemExit, match="3"):
        make()
    assert caplog.messages == [str(raised.value)]


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
def test_the_settings_of_the_server_below_have_the_number(reloads: bool, count: int) -> None:
    """Whatever command line, file or variable gave it; with reloading there is one process."""
    worker = {"__name__": "gunicorn.workers.base", "workers": workers}
    exec("def init_process(self):\n    return workers()", worker)
    settings = SimpleNamespace(workers=3, should_reload=reloads)
    assert worker["init_process"](SimpleNamespace(cfg=settings)) == count  # type: ignore[operator]
    assert workers() == 1
