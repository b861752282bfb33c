"""Systems without the owners and modes of POSIX, such as Windows: what needs those is refused with the remedy.

None runs here, so a test takes away what they lack.
"""

import os
import socket
import subprocess
import sys
from collections.abc import Callable

import pytest
from apps import Server, sessions

from mcp_sessions._errors import ConfigurationError
from mcp_sessions.client import FileStorage
from mcp_sessions.stores import RedisStore, SQLiteStore

IMPORTS = """
import asyncio, importlib, multiprocessing, os, pkgutil, socket, sys, pytest
import mcp, opentelemetry.sdk.trace, psycopg, redis.asyncio, starlette, uvicorn
for name in ("fcntl", "grp", "pwd", "resource", "syslog", "termios"):
    sys.modules[name] = None
for name in ("chown", "fchmod", "fork", "geteuid", "getuid", "killpg", "register_at_fork"):
    delattr(os, name)
del socket.AF_UNIX
import mcp_sessions
for found in pkgutil.walk_packages(mcp_sessions.__path__, "mcp_sessions."):
    if not found.name.endswith("__main__"):
        importlib.import_module(found.name)
"""
USES = {
    "the SQLite store of a URL": (
        lambda: sessions(Server(), store="sqlite:sessions.db"),
        "use store='memory:', 'redis://...' or 'postgresql://...'",
    ),
    "an SQLite store": (lambda: SQLiteStore("sessions.db"), "use store='memory:', 'redis://...' or 'postgresql://...'"),
    "a key file": (lambda: sessions(Server(), keys="file:keys"), 'use keys="env:NAME"'),
    "a list with a key file": (lambda: sessions(Server(), keys=["env:KEYS", "file:keys"]), 'use keys="env:NAME"'),
    "the client's file": (lambda: FileStorage("sessions.db"), "use MemoryStorage() or a SessionStorage of your own"),
}


def test_every_module_can_be_imported_without_posix() -> None:
    """What a system lacks is an error of what needs it alone, and an `AttributeError` of none."""
    done = subprocess.run([sys.executable, "-c", IMPORTS], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize(("use", "remedy"), USES.values(), ids=USES)
def test_private_files_need_posix(use: Callable[[], object], remedy: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Elsewhere neither owner nor mode says who else can write to a file that is trusted."""
    monkeypatch.setenv("KEYS", "k" * 43)
    with monkeypatch.context() as windows:
        windows.setattr(os, "name", "nt")
        with pytest.raises(ConfigurationError) as refused:
            use()
    assert "Windows" in str(refused.value)
    assert str(refused.value).endswith(remedy)


def test_a_redis_socket_needs_a_system_with_such_sockets(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(socket, "AF_UNIX")
    with pytest.raises(ConfigurationError, match=r"no Unix sockets.*redis://HOST:PORT"):
        RedisStore("unix:///run/redis.sock")
