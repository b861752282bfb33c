"""Real PostgreSQL servers for tests, each in a temporary folder with its Unix socket.

`shared()` is one for the whole run, in which each test has a schema of its own; a test that does harm starts its own
with `serving`. PostgreSQL does not run as root, who starts it as the package's user. Where the program is missing and
cannot be installed, the test is skipped, or fails where `CI` is set.
"""

import os
import shutil
import subprocess
from contextlib import AbstractContextManager
from functools import cache, partial
from pathlib import Path
from typing import Any

import environments
import psycopg
from programs import free_port
from servers import HOST, Process, make_certificate, running, until_exit

USER: dict[str, Any] = {"user": "postgres", "group": "postgres", "extra_groups": []} if os.geteuid() == 0 else {}
DOES_NO_HARM: dict[str, Any] = {"fsync": "off", "full_page_writes": "off", "synchronous_commit": "off"}


@cache
def program(name: str) -> str:
    """Return one of the server's programs, installed if need be."""
    return str(environments.program("postgres").resolve().with_name(name))


class Server(Process):
    """One server, with its configuration by the names in `postgresql.conf`.

    Args:
        tls: Whether it also listens on a port, for TLS alone.
    """

    starts_as = USER

    def __init__(self, folder: Path, *, tls: bool = False, **options: object) -> None:
        defaults = {"listen_addresses": "", "unix_socket_directories": folder, "shared_buffers": "32MB"}
        super().__init__(folder, **defaults | options)
        self.url = f"postgresql://postgres@/postgres?host={folder}"  # over the socket
        if tls:
            self.port = free_port()
            self.authority, pem = make_certificate(folder), folder / "server.pem"
            files = {"ssl_cert_file": pem, "ssl_key_file": pem}
            self.options |= {"listen_addresses": HOST, "port": self.port, "ssl": "on", **files}
            self.url += f"&port={self.port}"
        for path in (folder, *folder.iterdir()):
            path.chmod(0o700)
            shutil.chown(path, USER.get("user", os.geteuid()))
        words = "-U postgres --auth=trust --no-sync -E UTF8".split()
        initdb = [program("initdb"), "-D", str(folder / "data"), *words]
        subprocess.run(initdb, cwd=folder, stdout=subprocess.DEVNULL, check=True, **USER)

    def command_line(self) -> list[str]:
        words = [word for name, value in self.options.items() for word in ("-c", f"{name}={value}")]
        return [program("postgres"), "-D", str(self.folder / "data"), *words]

    def answers(self) -> bool:
        try:
            self.execute("SELECT")
        except psycopg.OperationalError:
            return False
        return True

    def execute(self, sql: str, *values: object) -> list[Any]:
        """Run a statement over a new connection and return its rows."""
        with psycopg.connect(self.url, autocommit=True) as connection:
            cursor = connection.execute(sql.encode(), values or None)
            return cursor.fetchall() if cursor.description else []


def serving(*, tls: bool = False, **options: Any) -> AbstractContextManager[Server]:
    """Run a server within the block, with its configuration by the names in `postgresql.conf`."""
    return running(partial(Server, tls=tls, **options))


@cache
def shared() -> Server:
    """Return the server of the whole run; keep to a schema of your own."""
    return until_exit(serving(max_connections=400, **DOES_NO_HARM))
