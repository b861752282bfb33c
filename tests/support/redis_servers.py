"""Real Redis servers for tests, each in a temporary folder and on a free port of this machine.

`shared()` and `shared_cluster()` are one server each for the whole run; a test that does harm starts its own with
`serving`. `MCP_SESSIONS_REDIS_SERVER` names another program, such as `valkey-server`. Where the program is missing and
cannot be installed, the test is skipped, or fails where `CI` is set.
"""

import os
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import cache, partial
from pathlib import Path
from typing import Any

import redis
from environments import program
from programs import free_port
from redis.backoff import NoBackoff
from redis.retry import Retry
from servers import HOST, Process, make_certificate, running, until_exit, wait_for

PROGRAM = "MCP_SESSIONS_REDIS_SERVER"


class Server(Process):
    """One server, with its configuration by the names in `redis.conf`, with underscores.

    Args:
        tls: Whether it speaks TLS alone.
        file: A configuration file, which a Sentinel must have.
    """

    def __init__(self, folder: Path, *, tls: bool = False, file: Path | None = None, **options: object) -> None:
        super().__init__(folder, dir=folder, bind=HOST, save="", loglevel="warning", **options)
        self._file = [] if file is None else [str(file), "--sentinel"]
        self._authority = make_certificate(folder) if tls else None
        self._has_answered = False
        if tls:
            pem = folder / "server.pem"
            self.options |= {"tls_auth_clients": "no", "tls_ca_cert_file": self._authority}
            self.options |= {"tls_cert_file": pem, "tls_key_file": pem}

    @property
    def url(self) -> str:
        """The URL for a client without a password."""
        if self._authority is not None:
            return f"rediss://{HOST}:{self.port}?ssl_ca_certs={self._authority}"
        return f"redis://{HOST}:{self.port}"

    @property
    def cluster_url(self) -> str:
        return f"redis+cluster://{HOST}:{self.port}"

    def command_line(self) -> list[str]:
        if not self._has_answered:
            port = free_port()
            self.port = port if port < 55_000 else port - 20_000  # a cluster's node also needs the one 10,000 above it
        ports = {"port": self.port} if self._authority is None else {"port": 0, "tls_port": self.port}
        command = [str(program(os.environ.get(PROGRAM) or "redis-server")), *self._file]
        for name, value in (ports | self.options).items():
            command += ["--" + name.replace("_", "-"), *str(value).split(" ")]
        return command

    def answers(self) -> bool:
        """Whether it has read its files."""
        try:
            self.command("PING")
        except redis.RedisError as error:
            if not isinstance(error, redis.AuthenticationError):
                return False
        self._has_answered = True
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

    def connections(self) -> int:
        """Return how many connections it has ever had, with that of the question."""
        return int(self.command("INFO", "stats").split(b"total_connections_received:")[1].split()[0])

    def wait_for_slots(self) -> None:
        """Wait until a node serves its slots: after a start it first listens for others."""
        wait_for(lambda: b"cluster_state:ok" in self.command("CLUSTER", "INFO"))


@contextmanager
def serving(*, tls: bool = False, cluster: bool = False, **options: object) -> Iterator[Server]:
    """Run a server within the block, or a cluster of one node, which refuses commands that cross slots."""
    given: dict[str, Any] = {**({"cluster_enabled": "yes"} if cluster else {}), **options}
    with running(partial(Server, tls=tls, **given)) as server:
        if cluster:
            server.command("CLUSTER", "ADDSLOTSRANGE", 0, 16383)
            server.wait_for_slots()
        yield server


def watching(primary: Server) -> AbstractContextManager[Server]:
    """Run a Sentinel that fails over when it is asked to: by itself a busy machine would do, too."""

    def make(folder: Path) -> Server:
        config = folder / "sentinel.conf"
        lines = f"sentinel monitor sessions {HOST} {primary.port} 1", "sentinel down-after-milliseconds sessions 60000"
        config.write_text("\n".join(lines) + "\n")
        return Server(folder, file=config)

    return running(make)


@cache
def shared() -> Server:
    """Return the server of the whole run; keep to a prefix of your own."""
    return until_exit(serving())


@cache
def shared_cluster() -> Server:
    """Return the one-node cluster of the whole run; keep to a prefix of your own."""
    return until_exit(serving(cluster=True))
