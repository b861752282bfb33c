"""Real Redis servers for tests, each in a temporary folder and on a free port of this machine.

`shared()` and `shared_cluster()` are one server each for the whole run; a test that does harm starts its own with
`serving`. `MCP_SESSIONS_REDIS_SERVER` names another program, such as `valkey-server`. Where the program is missing and
cannot be installed, the test is skipped, or fails where `CI` is set.
"""

import atexit
import os
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

import anyio
import redis
from environments import program
from redis.backoff import NoBackoff
from redis.retry import Retry

T = TypeVar("T")
HOST = "127.0.0.1"
PATIENCE = 20  # seconds for a server to come up
PROGRAM = "MCP_SESSIONS_REDIS_SERVER"


class DidNotStart(Exception):
    """The program ended at once, as it does where another took its port."""


class Server:
    """One server, and what may happen to it.

    Args:
        folder: Where it keeps its files.
        tls: Whether it speaks TLS alone.
        file: A configuration file, which a Sentinel must have.
        options: Its configuration, by the names in `redis.conf`, with underscores.
    """

    _process: subprocess.Popen[bytes]

    def __init__(self, folder: Path, *, tls: bool = False, file: Path | None = None, **options: object) -> None:
        self.folder, self.port = folder, _free_port()
        self._file = [] if file is None else [str(file), "--sentinel"]
        self._options = {"port": self.port, "dir": folder, "bind": HOST, "save": "", "loglevel": "warning", **options}
        self._authority = make_certificate(folder) if tls else None
        if tls:
            pem = folder / "server.pem"
            self._options |= {"port": 0, "tls_port": self.port, "tls_auth_clients": "no"}
            self._options |= {"tls_cert_file": pem, "tls_key_file": pem, "tls_ca_cert_file": self._authority}

    @property
    def url(self) -> str:
        """The URL for a client without a password."""
        if self._authority is not None:
            return f"rediss://{HOST}:{self.port}?ssl_ca_certs={self._authority}"
        return f"redis://{HOST}:{self.port}"

    @property
    def cluster_url(self) -> str:
        return f"redis+cluster://{HOST}:{self.port}"

    def start(self) -> None:
        """Start the server, and wait until it answers and has read its files."""
        command = [str(program(os.environ.get(PROGRAM) or "redis-server")), *self._file]
        for name, value in self._options.items():
            command += ["--" + name.replace("_", "-"), *str(value).split(" ")]
        with (self.folder / "log").open("ab") as log:
            self._process = subprocess.Popen(command, cwd=self.folder, stdout=log, stderr=log)
        wait_for(self._answers)

    def _answers(self) -> bool:
        if self._process.poll() is not None:
            raise DidNotStart((self.folder / "log").read_text("utf-8", "replace")[-2000:])
        try:
            self.command("PING")
        except redis.RedisError as error:
            return isinstance(error, redis.AuthenticationError)
        return True

    def command(self, *words: Any, user: str | None = None, password: str | None = None) -> Any:
        """Run a command over a new connection and return its raw result."""
        options: dict[str, Any] = {"username": user, "password": password, "protocol": 2}
        with redis.Redis.from_url(self.url, retry=Retry(NoBackoff(), 0), **options) as client:
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
        self._process.send_signal(signal.SIGSTOP)

    def cont(self) -> None:
        """Resume a frozen server."""
        self._process.send_signal(signal.SIGCONT)

    def kill9(self) -> None:
        """Kill the server before it can write anything."""
        self._process.kill()
        self._process.wait()

    def restart(self, **options: object) -> None:
        """Start the server again with its files, and with changed options."""
        self._options.update(options)
        self.start()


@contextmanager
def serving(*, tls: bool = False, cluster: bool = False, **options: object) -> Iterator[Server]:
    """Run a server within the block.

    Args:
        tls: Whether it speaks TLS alone.
        cluster: Whether it is a cluster of one node, which refuses commands that cross slots.
        options: Its configuration, by the names in `redis.conf`, with underscores.
    """
    given: dict[str, Any] = {**({"cluster_enabled": "yes"} if cluster else {}), **options}
    with tempfile.TemporaryDirectory(prefix="mcp-sessions-redis-") as folder:
        server = Server(Path(folder), tls=tls, **given)
        try:
            server.start()
        except DidNotStart:  # another process may have taken the port first
            server = Server(Path(folder), tls=tls, **given)
            server.start()
        try:
            if cluster:
                server.command("CLUSTER", "ADDSLOTSRANGE", 0, 16383)
                server.wait_for_slots()
            yield server
        finally:
            server.kill9()


def _free_port() -> int:
    """Return a port that is free now; a cluster's node also needs the one 10,000 above it."""
    with socket.create_server((HOST, 0)) as taken:
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
    return until_exit(serving())


@cache
def shared_cluster() -> Server:
    """Return the one-node cluster of the whole run; keep to a prefix of your own."""
    return until_exit(serving(cluster=True))


def until_exit(server: AbstractContextManager[T]) -> T:
    """Enter a context for the whole run."""
    stack = ExitStack()
    atexit.register(stack.close)
    return stack.enter_context(server)


def make_certificate(folder: Path) -> Path:
    """Make this machine's certificate, `server.pem` with its key, and return it alone: it is its own authority."""
    authority, file = folder / "ca.pem", folder / "server.pem"
    extensions = f"subjectAltName=IP:{HOST}", "keyUsage=critical,keyCertSign,digitalSignature"
    command = [str(program("openssl")), *"req -x509 -nodes -newkey ec -pkeyopt ec_paramgen_curve:prime256v1".split()]
    command += ["-days", "1", "-subj", "/CN=tests", "-keyout", str(file), "-out", str(authority)]
    command += [word for extension in extensions for word in ("-addext", extension)]
    subprocess.run(command, check=True, stderr=subprocess.DEVNULL)
    file.write_bytes(authority.read_bytes() + file.read_bytes())
    return authority
