"""Keys rolled under load: two worker processes, one key file, and no false refusal.

Each phase is written to the file while clients go on calling, and the next one begins when both workers show that
they have read it.
"""

from __future__ import annotations

import http.client
import json
import os
import re
import secrets
import signal
import subprocess
import sys
import threading
import time
from base64 import urlsafe_b64decode
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any, cast

import pytest

from mcp_sessions._session.claims import Claims
from mcp_sessions._tokens.jwt import Tokens
from mcp_sessions._tokens.keys import KeyRing

from .wire import SESSION_KEY, Held

OLD = "the old key of the rotation: Xo7sLd5cHf9aGe2ivB1kTn0R"
NEW = "the new key of the rotation: zJmYwq3uXo7sLd5cHf9aGe2i"
NOT_FOUND = -32043

SERVED = """
import sys
from apps import Server
from mcp_sessions import MCPSessionMiddleware

async def count(session, arguments):
    session.state["n"] = session.state.get("n", 0) + 1
    return session.state["n"]

app = MCPSessionMiddleware(Server(count=count), keys="file:" + {keys!r})
"""


FORKED = """
import os
import signal
import sys

import apps, mcp_sessions, mcp_sessions.stores._redis, mcp_sessions.stores._sqlite, redis.asyncio  # once for all
import uvicorn

for _ in range({count}):
    if os.fork() == 0:
        uvicorn.run("served:app", port=0, access_log=False)
        sys.exit()
for _ in range({count}):
    if os.WIFEXITED(os.wait()[1]):
        os.killpg(0, signal.SIGTERM)  # it ended by itself, so all end
"""


def kid(held: Held) -> str:
    header = json.loads(urlsafe_b64decode(held.id.split(".", 1)[0] + "=="))
    return cast("str", header["kid"])


def kid_of(secret: str) -> str:
    return KeyRing([secret]).signing.kid


@dataclass
class Worker:
    """One worker process, called over HTTP."""

    port: int

    def request(self, method: str, held: Held | None = None, **params: Any) -> dict[str, Any]:
        """Send one request, keep the session metadata of its answer, and return the answer."""
        if held is not None:
            params["_meta"] = {SESSION_KEY: held.sent()}
        body = json.dumps({"jsonrpc": "2.0", "id": 1, "method": method, "params": params})
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=30)
        try:
            connection.request("POST", "/mcp", body, {"Content-Type": "application/json"})
            answer: dict[str, Any] = json.loads(connection.getresponse().read())
        finally:
            connection.close()
        if held is not None and "result" in answer:
            held.learn(answer["result"]["_meta"][SESSION_KEY])
        return answer

    def create(self) -> Held:
        return Held(self.request("sessions/create")["result"]["session"])

    def count(self, held: Held) -> dict[str, Any]:
        return self.request("tools/call", held, name="count")


@contextmanager
def working(folder: Path, count: int) -> Iterator[list[Worker]]:
    (folder / "forked.py").write_text(FORKED.format(count=count), "utf-8")
    environ = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[1] / "support")}
    with subprocess.Popen(
        [sys.executable, "forked.py"],
        cwd=folder,
        env=environ,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as process:
        assert process.stderr is not None
        try:
            lines = (re.search(r"running on http://127\.0\.0\.1:(\d+)", line) for line in process.stderr)
            workers = [Worker(int(found[1])) for found in islice(filter(None, lines), count)]
            assert len(workers) == count, "a worker ended before it served"
            yield workers
        finally:
            os.killpg(process.pid, signal.SIGTERM)
            process.communicate()


@dataclass
class Load:
    """Clients that go on calling with their sessions and with new ones, on both workers in turn."""

    workers: list[Worker]  # in turns
    held: list[Held]
    failures: list[str] = field(default_factory=list)
    answered: int = 0

    def __post_init__(self) -> None:
        self._stop = threading.Event()
        self.workers = list(self.workers)
        self._counts = {held.id: 0 for held in self.held}

    def run(self) -> None:
        while True:
            stopping = self._stop.is_set()
            one, other = self.workers
            self.workers.reverse()
            for held in self.held:
                self._count(one, held)
            fresh = one.create()
            self._counts[fresh.id] = 0
            self._count(other, fresh)
            self._count(one, fresh)
            if stopping:
                return

    def _count(self, worker: Worker, held: Held) -> None:
        answer = worker.count(held)
        self._counts[held.id] += 1
        self.answered += 1
        if answer.get("result", {}).get("content") != self._counts[held.id]:
            self.failures.append(f"call {self.answered}, session under {kid(held)}: {answer}")

    @contextmanager
    def going_on(self) -> Iterator[None]:
        thread = threading.Thread(target=self.run)
        thread.start()
        try:
            yield
        finally:
            self._stop.set()
            thread.join()


def write(keys: Path, *contents: str) -> None:
    """Replace the key file atomically, as an operator should."""
    fresh = keys.with_suffix(".new")
    fresh.write_text("\n".join(contents), "utf-8")
    fresh.replace(keys)


@pytest.fixture
def keys(tmp_path: Path) -> Path:
    """A key file, and beside it the application that reads it."""
    path = tmp_path / "keys"
    write(path, OLD)
    (tmp_path / "served.py").write_text(SERVED.format(keys=str(path)), "utf-8")
    return path


@pytest.fixture
def workers(keys: Path) -> Iterator[list[Worker]]:
    with working(keys.parent, 2) as both:
        yield both


def minted(secret: str) -> Held:
    """Mint a session as a worker does that already signs with this key."""
    ring, now = KeyRing([secret]), int(time.time())
    claims = Claims(
        kind="session", kid=ring.signing.kid, jti=secrets.token_urlsafe(16), issued_at=now, expires_at=now + 600
    )
    return Held({"sessionId": Tokens(issuer="mcp-sessions", audience="mcp-sessions").mint(ring, claims)})


def answers(worker: Worker, held: Held) -> Iterator[dict[str, Any]]:
    while True:
        yield worker.count(held)


def until_accepted(held: Held, workers: list[Worker]) -> None:
    for worker in workers:
        next(answer for answer in answers(worker, held) if "result" in answer)


def until_signed_with(secret: str, workers: list[Worker]) -> list[Held]:
    """Create sessions until each worker signs with a key, and return the first of each."""
    return [next(held for held in iter(worker.create, None) if kid(held) == kid_of(secret)) for worker in workers]


def until_refused(held: Held, workers: list[Worker]) -> None:
    for worker in workers:
        refused = next(answer for answer in answers(worker, held) if "error" in answer)
        assert refused["error"]["code"] == NOT_FOUND


def test_keys_are_rolled_without_a_false_refusal(keys: Path, workers: list[Worker]) -> None:
    """With `[old]`, `[old, new]` and `[new, old]` every session goes on; with `[new]` those of the old key end."""
    under_old = [worker.create() for worker in workers]
    before = Load(workers, under_old)
    with before.going_on():
        write(keys, OLD, NEW)
        until_accepted(minted(NEW), workers)
        write(keys, NEW, OLD)
        under_new = until_signed_with(NEW, workers)
    assert before.failures == []
    assert before.answered >= 6

    after = Load(workers, under_new)
    with after.going_on():
        write(keys, NEW)
        until_refused(under_old[0], workers)
    assert after.failures == []
    assert {kid(held) for held in under_old} == {kid_of(OLD)}
    refused = [worker.count(held)["error"] for held in under_old for worker in workers]
    assert [error["code"] for error in refused] == [NOT_FOUND] * 4
    assert not any("reason" in error["data"] for error in refused)


def test_a_phase_that_is_left_out_would_be_seen(keys: Path, workers: list[Worker]) -> None:
    """A step from `[old]` to `[new]` at once refuses live sessions, which the load reports."""
    under_old = [worker.create() for worker in workers]
    load = Load(workers, under_old)
    with load.going_on():
        write(keys, NEW)
        until_signed_with(NEW, workers)
    assert load.failures
