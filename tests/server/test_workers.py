"""How many worker processes there are, and what they may not be given."""

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from subprocess import PIPE, STDOUT
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import anyio
import pytest
from fleet import begun, fleet
from starlette.applications import Starlette

from mcp_sessions import ConfigurationError, MCPSessionMiddleware, Sessions, add_sessions, from_env
from mcp_sessions._server import startup_checks
from mcp_sessions._server.workers import workers

KEYS = {"keys": "a secret of the worker tests, at least 32 bytes"}
FILE = {"store": "sqlite:sessions.db"}
THREE = "3 worker processes"


@pytest.mark.parametrize(
    ("count", "options", "refused", "warned"),
    [
        (1, {}, [], []),
        (1, KEYS | FILE, [], []),
        (1, KEYS, [], ["at a restart", 'store="sqlite:']),
        (3, KEYS | FILE, [], []),
        (3, {}, [THREE, 'keys="env:MCP_SESSIONS_KEYS"'], []),
        (3, KEYS, [THREE, 'store="sqlite:', 'store="redis:', 'transport="off"'], []),
        (3, KEYS | {"transport": "off"}, [], [THREE, "a store that all workers share"]),
    ],
)
def test_what_workers_or_a_restart_would_lose_is_refused_or_a_warning(
    count: int, options: Any, refused: list[str], warned: list[str], caplog: pytest.LogCaptureFixture
) -> None:
    """Refused is what gives a client nothing; a warning is what forgets that a session was deleted."""
    app = MCPSessionMiddleware(Starlette(), **options)
    caplog.clear()
    with patch.object(startup_checks, "workers", lambda: count):
        reason = app.configuration_error
        if reason is None:
            startup_checks.log_memory(app._runtime, random_keys="keys" not in options)
    assert (reason is not None, len(caplog.messages)) == (refused != [], int(warned != []))
    assert all(word in (reason or "") for word in refused)
    assert all(word in caplog.text for word in warned)


APP = """
from starlette.applications import Starlette
from mcp_sessions import MCPSessionMiddleware, Sessions, add_sessions

app = MCPSessionMiddleware(Starlette()%s)
"""
NO_DRIVER = f"import sys\nsys.modules['redis.asyncio.retry'] = None\n{APP % ''}\nSessions(store='redis://127.0.0.1')"


def printed(folder: Path, source: str, *command: str) -> str:
    """Return all that a server of `app` in a module `served` prints until it ends by itself."""
    (folder / "served.py").write_text(source, "utf-8")
    return subprocess.run(
        [sys.executable, *command], cwd=folder, stdout=PIPE, stderr=STDOUT, encoding="utf-8", timeout=300, check=False
    ).stdout


@pytest.mark.parametrize(
    ("source", "remedy", "end"),
    [
        (APP % "", 'keys="env:MCP_SESSIONS_KEYS"', "2 worker processes"),
        (NO_DRIVER, 'needs a driver: pip install "redis', "stopping the parent process"),
    ],
    ids=["random keys", "a wrong option"],
)
def test_uvicorn_with_two_workers_stops(source: str, remedy: str, end: str, tmp_path: Path) -> None:
    """The parent, too, instead of starting workers for ever; the terminal shows the remedy."""
    lines = printed(tmp_path, source, "-m", "uvicorn", "served:app", "--port", "0", "--workers", "2")
    assert remedy in lines
    assert end in lines
    assert ("Application startup complete" if source is not NO_DRIVER else "Traceback") not in lines


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


HYPERCORN = """
from hypercorn.config import Config
from hypercorn.run import run

if __name__ == "__main__":
    config = Config()
    config.workers, config.application_path, config.bind = 2, "served:app", ["127.0.0.1:0"]
    run(config)
"""


def test_workers_that_code_asks_for_are_seen_too(tmp_path: Path) -> None:
    """No command line has their number."""
    (tmp_path / "main.py").write_text(HYPERCORN, "utf-8")
    lines = printed(tmp_path, APP % f", keys={KEYS['keys']!r}", "main.py")
    assert "2 worker processes" in lines
    assert 'store="sqlite:' in lines


@pytest.mark.parametrize(("reloads", "count"), [(False, 3), (True, 1)])
def test_the_settings_of_the_server_below_have_the_number(reloads: bool, count: int) -> None:
    """Whatever command line, file or variable gave it; with reloading there is one process."""
    worker = {"__name__": "gunicorn.workers.base", "workers": workers}
    exec("def init_process(self):\n    return workers()", worker)
    settings = SimpleNamespace(workers=3, should_reload=reloads)
    assert worker["init_process"](SimpleNamespace(cfg=settings)) == count  # type: ignore[operator]
    assert workers() == 1


def test_on_trio_a_session_stays_with_its_worker(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """One warning says so, for each worker."""

    async def serve() -> None:
        async with fleet(tmp_path) as workers:
            ours = await begun(workers)
            assert (await workers.client(0).send("tools/call", None, ours)).result["content"] == 1
            assert workers.apps[0].affinity is None

    anyio.run(serve, backend="trio")
    assert caplog.text.count("workers reach each other on asyncio only") == 2
