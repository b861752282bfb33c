"""Real PostgreSQL servers for tests, each in a temporary folder with its Unix socket.

`shared()` is one for the whole run, in which each test has a schema of its own; a test that does harm starts its own
with `serving`. PostgreSQL does not run as root, who starts it as the package's user. Where the program is missing and
cannot be installed, the test is skipped, or fails where `CI` is set.
"""

import os
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path
from typing import Any

import environments
import psycopg
from programs import free_port
from redis_servers import make_certificate, until_exit, wait_for

HOST = "127.0.0.1"
USER: dict[str, Any] = {"user": "postgres", "group": "postgres", "extra_groups": []} if os.geteuid() == 0 else {}
DOES_NO_HARM: dict[str, Any] = {"fsync": "off", "full_page_writes": "off", "synchronous_commit": "off"}


@cache
def program(name: str) -> str:
    """Return one of the server's programs, installed if need be."""
    return str(environments.program("postgres").resolve().with_name(name))


class Server:
    """One server, and what may happen to it.

    Args:
        folder: Where it keeps its files and its socket.
        tls: Whether it also listens on a port, for TLS alone.
        options: Its configuration, by the names in `postgresql.conf`.
    """

    _process: subprocess.Popen[bytes]

    def __init__(self, folder: Path, *, tls: bool = False, **options: object) -> None:
        self.folder = folder
        self._runtime = {"listen_addresses": "", "unix_socket_directories": folder, "shared_buffers": "32MB", **options}
        self.url = f"postgresql://postgres@/postgres?host={folder}"  # over the socket
        if tls:
            self.port = free_port()
            self.authority, pem = make_certificate(folder), folder / "server.pem"
            files = {"ssl_cert_file": pem, "ssl_key_file": pem}
            self._runtime |= {"listen_addresses": HOST, "port": self.port, "ssl": "on", **files}
            self.url += f"&port={self.port}"
        for path in (folder, *folder.iterdir()):
            path.chmod(0o700)
            shutil.chown(path, USER.get("user", os.geteuid()))
        words = "-U postgres --auth=trust --no-sync -E UTF8".split()
        initdb = [program("initdb"), "-D", str(folder / "data"), *words]
        subprocess.run(initdb, cwd=folder, stdout=subprocess.DEVNULL, check=True, **USER)

    def start(self, **options: object) -> None:
        """Start the server, on the files that it has, and wait until it answers."""
        self._runtime |= options
        words = [word for name, value in self._runtime.items() for word in ("-c", f"{name}={value}")]
        command = [program("postgres"), "-D", str(self.folder / "data"), *words]

        def answers() -> bool:
            # It ends at once while something of the one before is left.
            self._process = self._process if self._process.poll() is None else self._started(command)
            try:
                self.execute("SELECT")
            except psycopg.OperationalError:
                return False
            return True

        self._process = self._started(command)
        wait_for(answers)

    def _started(self, command: list[str]) -> subprocess.Popen[bytes]:
        with (self.folder / "log").open("ab") as log:
            return subprocess.Popen(command, cwd=self.folder, stdout=log, stderr=log, **USER)

    def execute(self, sql: str, *values: object) -> list[Any]:
        """Run a statement over a new connection and return its rows."""
        with psycopg.connect(self.url, autocommit=True) as connection:
            cursor = connection.execute(sql.encode(), values or None)
            return cursor.fetchall() if cursor.description else []

    def stop(self) -> None:
        """End the server in order, at once: connections break."""
        self._process.send_signal(signal.SIGINT)
        self._process.wait()

    def kill9(self) -> None:
        """Kill every process of the server before it can write or answer anything."""
        if self._process.poll() is None:
            self._signal(signal.SIGKILL)
        self._process.wait()

    def pause(self) -> None:
        """Stop every process of the server where it stands: connections stay open, and nothing answers."""
        self._signal(signal.SIGSTOP)

    def resume(self) -> None:
        """Let a paused server go on."""
        self._signal(signal.SIGCONT)

    def _signal(self, number: signal.Signals) -> None:
        own = self._process.pid
        children = Path(f"/proc/{own}/task/{own}/children").read_text().split()
        for pid in (own, *map(int, children)):
            with suppress(ProcessLookupError):
                os.kill(pid, number)


@contextmanager
def serving(*, tls: bool = False, **options: object) -> Iterator[Server]:
    """Run a server within the block, with its configuration by the names in `postgresql.conf`."""
    with tempfile.TemporaryDirectory(prefix="mcp-sessions-postgres-", ignore_cleanup_errors=True) as folder:
        server = Server(Path(folder), tls=tls, **options)
        server.start()
        try:
            yield server
        finally:
            server.kill9()


@cache
def shared() -> Server:
    """Return the server of the whole run; keep to a schema of your own."""
    return until_exit(serving(max_connections=400, **DOES_NO_HARM))
