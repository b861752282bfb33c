"""Real Redis servers for tests, each in a temporary folder and on a free port of this machine.

`shared()` and `shared_cluster()` are one server each for the whole run; a test that does harm starts its own with
`serving`. `MCP_SESSIONS_REDIS_SERVER` names another program, such as `valkey-server`. Where the program is missing and
cannot be installed, the test is skipped, or fails where `CI` is set.
"""

from __future__ import annotations

import atexit
import os
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from functools import cache
from pathlib import Path
from typing import Any

import anyio
import redis
from environments import go_without
from redis.backoff import NoBackoff
from redis.retry import Retry

import debian
from mcp_sessions._errors import StoreUnavailable

HOST = "127.0.0.1"
PATIENCE = 20  # seconds for a server to come up
PROGRAM = "MCP_SESSIONS_REDIS_SERVER"


class DidNotStart(Exception):
    """The program ended at once, as it does where another took its port."""


@cache
def program() -> str:
    """Return the server's program, installed if need be."""
    try:
        return str(debian.install(os.environ.get(PROGRAM) or "redis-server"))
    except debian.NotInstalled as missing:
        go_without("Redis", str(missing))


class Server:
    """One server, and what may happen to it.

    Args:
        folder: Where it keeps its files.
        tls: Whether it speaks TLS alone.
        file: A configuration file, which a Sentinel must have.
        options: Its configuration, by the names in `redis.conf`, with underscores.
    """

    def __init__(self, folder: Path, *, tls: bool = False, file: Path | None = None, **options: object) -> None:
        self.folder = folder
        self.port = _free_port()
        self._file = [] if file is None else [str(file), "--sentinel"]
        self._runtime = {"bind": HOST, "save": "", "loglevel": "warning", **options}
        self.certificates = Certificates(folder) if tls else None
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        """The URL for a client without a password."""
        if self.certificates is not None:
            return f"rediss://{HOST}:{self.port}?ssl_ca_certs={self.certificates.authority}"
        return f"redis://{HOST}:{self.port}"

    @property
    def cluster_url(self) -> str:
        return f"redis+cluster://{HOST}:{self.port}"

    def start(self) -> None:
        """Start the server, and wait until it answers and has read its files."""
        command = [program(), *self._file, *self._arguments()]
        with (self.folder / "log").open("ab") as log:
            self._process = subprocess.Popen(command, cwd=self.folder, stdout=log, stderr=log)
        wait_for(lambda: self._ended() or self._answers())
        if self._ended():
            raise DidNotStart((self.folder / "log").read_text("utf-8", "replace")[-2000:])

    def _arguments(self) -> Iterator[str]:
        ports: dict[str, object] = {"port": self.port}
        if self.certificates is not None:
            ports = {"port": 0, "tls_port": self.port, **self.certificates.options}
        for name, value in {**ports, "dir": self.folder, **self._runtime}.items():
            yield from ("--" + name.replace("_", "-"), *str(value).split(" "))

    def _ended(self) -> bool:
        assert self._process is not None
        return self._process.poll() is not None

    def _answers(self) -> bool:
        try:
            self.command("PING")
        except redis.AuthenticationError:
            return True
        except redis.RedisError:
            return False
        return True

    def command(self, *words: Any, user: str | None = None, password: str | None = None) -> Any:
        """Run a command over a new connection and return its raw result."""
        options: dict[str, Any] = {
            "username": user,
            "password": password,
            "protocol": 2,
            "retry": Retry(NoBackoff(), 0),
        }
        with redis.Redis.from_url(self.url, **options) as client:
            client.response_callbacks.clear()
            return client.execute_command(*words)

    def did(self, *words: Any) -> bool:
        """Whether a command succeeded: nodes need a while to find each other."""
        try:
            self.command(*words)
        except redis.ResponseError:
            return False
        return True

    def wait_for_slots(self) -> None:
        """Wait until a node serves its slots: after a start it first listens for others."""
        wait_for(lambda: b"cluster_state:ok" in self.command("CLUSTER", "INFO"))

    def stop(self) -> None:
        """Freeze the server: connections stay open without an answer."""
        self._signal(signal.SIGSTOP)

    def cont(self) -> None:
        """Resume a frozen server."""
        self._signal(signal.SIGCONT)

    def kill9(self) -> None:
        """Kill the server before it can write anything."""
        self._signal(signal.SIGKILL)
        assert self._process is not None
        self._process.wait()

    def restart(self, **options: object) -> None:
        """Start the server again with its files, and with changed options."""
        self._runtime.update(options)
        self.start()

    def _signal(self, number: signal.Signals) -> None:
        assert self._process is not None
        self._process.send_signal(number)


@contextmanager
def serving(*, tls: bool = False, cluster: bool = False, **options: object) -> Iterator[Server]:
    """Run a server within the block.

    Args:
        tls: Whether it speaks TLS alone.
        cluster: Whether it is a cluster of one node, which refuses commands that cross slots.
        options: Its configuration, by the names in `redis.conf`, with underscores.
    """
    if cluster:
        options = {"cluster_enabled": "yes", **options}
    with tempfile.TemporaryDirectory(prefix="mcp-sessions-redis-") as folder:
        server = _started(Path(folder), tls=tls, **options)
        try:
            if cluster:
                server.command("CLUSTER", "ADDSLOTSRANGE", 0, 16383)
                server.wait_for_slots()
            yield server
        finally:
            server.kill9()


def _started(folder: Path, **options: Any) -> Server:
    server = Server(folder, **options)
    try:
        server.start()
    except DidNotStart:  # another process may have taken the port first
        server = Server(folder, **options)
        server.start()
    return server


def _free_port() -> int:
    """Return a port that is free now; a cluster's node also needs the one 10,000 above it."""
    with socket.socket() as taken:
        taken.bind((HOST, 0))
        port: int = taken.getsockname()[1]
    return port if port < 55_000 else port - 20_000


def wait_for(happens: Callable[[], object]) -> None:
    """Wait until something of a server happens, which nothing announces."""
    deadline = time.monotonic() + PATIENCE
    while not happens():
        assert time.monotonic() < deadline, "what was waited for did not happen"
        time.sleep(0.005)


async def until(happens: Callable[[], object]) -> None:
    """Wait as `wait_for`, while others run."""
    await anyio.to_thread.run_sync(wait_for, happens)


async def patiently(ask: Callable[[], Awaitable[Any]]) -> Any:
    """Ask until the store answers."""
    deadline = time.monotonic() + PATIENCE
    while True:
        try:
            return await ask()
        except StoreUnavailable:  # pragma: no cover  # where it was too early
            assert time.monotonic() < deadline, "the store did not come back"
            await anyio.sleep(0.1)


def offset(server: Server) -> int:
    """Return how much of what was changed a primary has made, or a replica has heard of."""
    text = server.command("INFO", "replication")
    name = b"master_repl_offset:" if b"role:master" in text else b"slave_repl_offset:"
    return int(text.partition(name)[2].partition(b"\r")[0])


@contextmanager
def watching(primary: Server) -> Iterator[Server]:
    """Run a Sentinel that fails over when it is asked to: by itself a busy machine would do, too."""
    with tempfile.TemporaryDirectory() as folder:
        config = Path(folder, "sentinel.conf")
        lines = f"sentinel monitor sessions {HOST} {primary.port} 1", "sentinel down-after-milliseconds sessions 60000"
        config.write_text("\n".join(lines) + "\n")
        sentinel = Server(Path(folder), file=config)
        sentinel.start()
        try:
            yield sentinel
        finally:
            sentinel.kill9()


@cache
def shared() -> Server:
    """Return the server of the whole run; keep to a prefix of your own."""
    return _until_exit(serving())


@cache
def shared_cluster() -> Server:
    """Return the one-node cluster of the whole run; keep to a prefix of your own."""
    return _until_exit(serving(cluster=True))


def _until_exit(server: AbstractContextManager[Server]) -> Server:
    stack = ExitStack()
    entered = stack.enter_context(server)
    atexit.register(stack.close)
    return entered


class Certificates:
    """This machine's certificate, which is its own authority."""

    def __init__(self, folder: Path) -> None:
        self.authority, file = folder / "ca.pem", folder / "server.pem"
        extensions = f"subjectAltName=IP:{HOST}", "keyUsage=critical,keyCertSign,digitalSignature"
        command = [str(debian.install("openssl")), "req", "-x509", "-nodes"]
        command += ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1"]
        command += ["-days", "1", "-subj", "/CN=tests"]
        command += [word for extension in extensions for word in ("-addext", extension)]
        command += ["-keyout", str(file), "-out", str(self.authority)]
        subprocess.run(command, check=True, stderr=subprocess.DEVNULL)
        file.write_bytes(self.authority.read_bytes() + file.read_bytes())
        self.options: dict[str, object] = {
            "tls_cert_file": file,
            "tls_key_file": file,
            "tls_ca_cert_file": self.authority,
            "tls_auth_clients": "no",
        }
