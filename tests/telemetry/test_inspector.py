"""`Inspector`: the page is served to who opens it, shows all workers, and ends a session; nobody else gets anywhere."""

from __future__ import annotations

import base64
import json
import logging
import os
import socket
import tempfile
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import anyio
import anyio.abc
import anyio.lowlevel
import anyio.streams.buffered
import pytest
from apps import Server, sessions
from clients import Client
from failing import Failing

from mcp_sessions import ConfigurationError, MCPSessionMiddleware
from mcp_sessions._server import operator
from mcp_sessions.stores._memory import MemoryStore
from mcp_sessions.telemetry import _inspector as inspecting
from mcp_sessions.telemetry._feed import Began, Feed

TOKEN = "a-token-of-the-operator"
SECONDS = 60  # after which a test that hangs fails


@pytest.fixture
def port() -> int:
    """A port that is free."""
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        number: int = found.getsockname()[1]
        return number


@pytest.fixture(autouse=True)
def short_path(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder for feeds with room for a long name: the path of a socket has some 100 characters."""
    monkeypatch.setattr(inspecting, "_RETRY", 0.01)
    monkeypatch.setattr(inspecting, "_INTERVAL", 0.01)
    monkeypatch.setattr(inspecting, "_ROSTER_INTERVAL", 0.01)
    with tempfile.TemporaryDirectory() as folder:
        monkeypatch.setattr(tempfile, "tempdir", folder)
        yield Path(folder)


async def connected(port: int) -> anyio.abc.SocketStream:
    """A connection, as soon as the port is open."""
    with anyio.fail_after(SECONDS):
        while True:
            try:
                return await anyio.connect_tcp("127.0.0.1", port)
            except OSError:
                await anyio.sleep(0.01)


async def exchange(port: int, request: bytes) -> tuple[int, bytes]:
    """Send a request, and return the status of the answer and all of it; 0 where there is none."""
    answer = b""
    async with await connected(port) as stream:
        await stream.send(request)
        with anyio.fail_after(SECONDS):
            try:
                while True:
                    answer += await stream.receive()
            except (anyio.EndOfStream, anyio.BrokenResourceError):
                return int(answer[9:12] or b"0"), answer


def get(port: int, target: str = "/", *lines: str, host: str | None = None, method: str = "GET") -> bytes:
    return "\r\n".join([f"{method} {target} HTTP/1.1", f"Host: {host or f'127.0.0.1:{port}'}", *lines, "", ""]).encode()


class Page:
    """The events that the page gets."""

    def __init__(self, stream: anyio.abc.SocketStream, port: int) -> None:
        self._stream = anyio.streams.buffered.BufferedByteReceiveStream(stream)
        self._port = port
        self.token = ""

    async def head(self) -> bytes:
        return await self._stream.receive_until(b"\r\n\r\n", 4096)

    async def until(self, event: str, **members: Any) -> Any:
        """The next event of a kind, with these members."""
        with anyio.fail_after(SECONDS):
            while True:
                line = await self._stream.receive_until(b"\n\n", 1 << 20)
                found = json.loads(line.removeprefix(b"data: "))
                if found["event"] == event and all(found[name] == value for name, value in members.items()):
                    return found

    async def end(self, ref: str, **changes: str) -> tuple[int, bytes]:
        """Ask to end a session, as the page does."""
        headers = {
            "Host": f"127.0.0.1:{self._port}",
            "Origin": f"http://127.0.0.1:{self._port}",
            "X-Inspector-Token": self.token,
            "Content-Length": str(len(ref)),
            **{name.replace("_", "-"): value for name, value in changes.items()},
        }
        lines = "".join(f"{name}: {value}\r\n" for name, value in headers.items() if value)
        status, answer = await exchange(self._port, f"POST /end HTTP/1.1\r\n{lines}\r\n{ref}".encode())
        return status, answer.partition(b"\r\n\r\n")[2]


@asynccontextmanager
async def opened(port: int) -> AsyncIterator[Page]:
    """The page's stream of events, for as long as the block lasts."""
    async with await connected(port) as stream:
        await stream.send(get(port, "/events"))
        page = Page(stream, port)
        assert b"Content-Type: text/event-stream" in await page.head()
        page.token = (await page.until("hello"))["token"]
        yield page


@asynccontextmanager
async def serving(port: int, host: str = "127.0.0.1", **options: Any) -> AsyncIterator[MCPSessionMiddleware]:
    """An application with an inspector, for as long as the block lasts."""
    app = sessions(options.pop("server", Server()), inspector=f"{host}:{port}", spans="off", **options)
    app.services.started()
    try:
        yield app
    finally:
        await app.services.stopping()
        await anyio.lowlevel.checkpoint()


async def test_the_page_comes_with_a_policy_that_lets_nothing_in(port: int) -> None:
    """It names its own script and style by their hashes; nothing is fetched from elsewhere."""
    async with serving(port):
        status, answer = await exchange(port, get(port))
    head, _, body = answer.partition(b"\r\n\r\n")
    assert status == 200
    assert body == inspecting.PAGE.read_bytes()
    assert b"default-src 'none'; connect-src 'self'; img-src data:; style-src 'sha256-" in head
    assert b"frame-ancestors 'none'; require-trusted-types-for 'script'; trusted-types 'none'" in head
    assert {b"Cache-Control: no-store", b"X-Content-Type-Options: nosniff"} <= {*head.split(b"\r\n")}
    assert not [word for word in (b"http://", b"https://", b"src=", b"innerHTML", b"@import") if word in body]


@pytest.mark.parametrize(
    ("status", "request_"),
    [
        (400, b"GET / HTTP/1.0\r\nHost: a\r\n\r\n"),
        (400, b"GET / HTTP/1.1\r\n\r\n"),
        (400, b"get / HTTP/1.1\r\nHost: a\r\n\r\n"),
        (400, b"GET http://a/ HTTP/1.1\r\nHost: a\r\n\r\n"),
        (400, b"GET / HTTP/1.1\r\nHost: a\r\nHost: a\r\n\r\n"),
        (400, b"GET / HTTP/1.1\r\nHost : a\r\n\r\n"),
        (400, b"GET / HTTP/1.1\r\nHost: a\r\n b\r\n\r\n"),
        (400, b"GET / HTTP/1.1\r\nHost: a\x00\r\n\r\n"),
        (400, b"POST /end HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n"),
        (400, b"POST /end HTTP/1.1\r\nHost: a\r\nContent-Length: 257\r\n\r\n"),
        (400, b"POST /end HTTP/1.1\r\nHost: a\r\nContent-Length: -1\r\n\r\n"),
        (400, b"GET / HTTP/1.1\r\nCookie: " + b"a" * 20_000),
        (421, b"GET / HTTP/1.1\r\nHost: evil.example:%d\r\n\r\n"),
        (421, b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n"),
        (421, b"GET /events HTTP/1.1\r\nHost: evil.example:%d\r\n\r\n"),
        (403, b"GET /events HTTP/1.1\r\nHost: 127.0.0.1:%d\r\nSec-Fetch-Site: cross-site\r\n\r\n"),
        (404, b"GET /favicon.ico HTTP/1.1\r\nHost: localhost:%d\r\n\r\n"),
        (405, b"GET /end HTTP/1.1\r\nHost: localhost:%d\r\n\r\n"),
        (405, b"HEAD / HTTP/1.1\r\nHost: localhost:%d\r\n\r\n"),
        (405, b"OPTIONS /end HTTP/1.1\r\nHost: localhost:%d\r\n\r\n"),
        (403, b"POST /end HTTP/1.1\r\nHost: localhost:%d\r\n\r\n"),
    ],
)
async def test_what_the_page_does_not_ask_is_refused(port: int, status: int, request_: bytes) -> None:
    """Other sites that a browser shows, names that lead here by DNS, and messages that two readers could read twice."""
    async with serving(port):
        found, answer = await exchange(port, request_.replace(b"%d", b"%d" % port))
        assert (found, b"text/plain" in answer) == (status, True)
        assert (await exchange(port, get(port)))[0] == 200


async def test_a_request_that_breaks_off_is_refused(port: int) -> None:
    async with serving(port):
        for request in (b"GET / HT", b"POST /end HTTP/1.1\r\nHost: a\r\nContent-Length: 9\r\n\r\nses"):
            async with await connected(port) as stream:
                await stream.send(request)
                await stream.send_eof()
                assert (await stream.receive()).startswith(b"HTTP/1.1 400")


async def test_a_connection_that_says_nothing_is_closed(port: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inspecting, "_PATIENCE", 0.01)
    async with serving(port):
        assert await exchange(port, b"") == (0, b"")


async def test_connections_have_a_bound(port: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inspecting, "_MAX_CONNECTIONS", 1)
    async with serving(port), opened(port):
        assert await exchange(port, get(port)) == (0, b"")


async def test_a_server_that_stops_at_once_serves_no_page(port: int) -> None:
    async with serving(port):
        pass  # which leaves no time for the port to be opened
    await anyio.wait_all_tasks_blocked()
    with pytest.raises(OSError, match="All connection attempts failed"):
        await anyio.connect_tcp("127.0.0.1", port)


async def test_a_fault_ends_one_connection_alone(port: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Here that the page's file is gone, as while a package is installed anew."""
    async with serving(port):
        with monkeypatch.context() as patch:
            patch.setattr(inspecting, "PAGE", Path("/nowhere"))
            assert await exchange(port, get(port)) == (0, b"")
        assert (await exchange(port, get(port)))[0] == 200


async def test_a_page_that_does_not_read_is_disconnected(
    port: int, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """As in a tab that sleeps: it would hold what it has not read. It comes back by itself."""
    caplog.set_level(logging.DEBUG, "mcp_sessions")
    feed = Feed(f"127.0.0.1:{port}", lambda: 0)
    feed.open()
    async with serving(port), opened(port) as page:
        await page.until("worker", worker=feed.worker)
        monkeypatch.setattr(inspecting, "_PATIENCE", 0.05)
        for number in range(400):  # far more than systems hold on the way
            feed.send(Began(worker=feed.worker, call=f"{number}", ref=None, at=0, name="n" * 60_000))
        with anyio.fail_after(SECONDS):
            while "a page was closed, or stopped reading" not in caplog.text:
                await anyio.lowlevel.checkpoint()
    feed.close()


async def test_a_session_is_shown_and_ended(port: int, caplog: pytest.LogCaptureFixture) -> None:
    """One that is not recorded: its client is refused from then on, and the log says who ended it."""
    caplog.set_level(logging.INFO, "mcp_sessions")
    async with serving(port) as app, opened(port) as page:
        client = Client(app)
        held = await client.create()
        ref = (await page.until("created"))["ref"]
        await client.tool(session=held)
        assert (await page.until("call"))["ref"] == ref
        assert await page.end(ref) == (200, b"ended")
        assert (await page.until("ended", ref=ref))["reason"] == "inspector"
        assert (await client.tool(session=held)).error["code"] == -32043
        assert (await page.until("call"))["reason"] == "ended"
        assert await page.end(ref) == (200, b"not found")
    assert f"the inspector ended session {ref}" in caplog.text
    assert f"session {ref} ended: inspector" in caplog.text


async def test_a_recorded_session_is_shown_and_ended(port: int) -> None:
    """Also one that no worker has seen: the store knows it."""
    store = MemoryStore()
    held = await Client(sessions(Server(), store=store, tracked=True)).create()
    async with serving(port, store=store, tracked=True) as app, opened(port) as page:
        roster = await page.until("roster", complete=True)
        (ref,) = [session["ref"] for session in roster["sessions"]]
        assert await page.end(ref) == (200, b"ended")
        assert (await page.until("roster", sessions=[]))["complete"]
        assert (await Client(app).tool(session=held)).error["code"] == -32043


async def test_the_roster_has_a_bound(port: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(operator, "PAGE", 2)
    monkeypatch.setattr(operator, "MAX_LISTED", 3)
    async with serving(port, tracked=True) as app, opened(port) as page:
        for _ in range(5):
            await Client(app).create()
        assert len((await page.until("roster", complete=False))["sessions"]) < 5


@pytest.mark.parametrize("tracked", [True, False])
async def test_a_store_that_does_not_answer_ends_nothing(port: int, tracked: bool) -> None:
    store = Failing()
    async with serving(port, store=store, tracked=tracked) as app, opened(port) as page:
        held = await Client(app).create()
        ref = (await page.until("created"))["ref"]
        store.failing = {"revoke", "get", "list_sessions"}
        assert (await page.end(ref))[0] == 503
        store.failing = set()
        assert (await Client(app).tool(session=held)).result["content"] == ref


async def test_while_the_store_does_not_answer_there_is_no_list() -> None:
    unshown = SimpleNamespace(inspector=None, inspector_token=None)
    options: Any = SimpleNamespace(audience="shop", tracked=True, telemetry=unshown)
    terminator: Any = SimpleNamespace(store=Failing("list_sessions"))
    feed: Any = None
    assert await operator.Watched(options, feed, terminator).recorded() is None


@pytest.mark.parametrize(
    ("status", "changes"),
    [
        (403, {"Origin": "http://evil.example"}),
        (403, {"Origin": ""}),
        (403, {"Origin": "null"}),
        (403, {"X_Inspector_Token": "guessed"}),
        (403, {"X_Inspector_Token": ""}),
        (403, {"Sec_Fetch_Site": "same-site"}),
        (421, {"Host": "evil.example"}),
    ],
)
async def test_no_other_site_ends_a_session(port: int, status: int, changes: dict[str, str]) -> None:
    async with serving(port) as app, opened(port) as page:
        held = await Client(app).create()
        ref = (await page.until("created"))["ref"]
        assert (await page.end(ref, **changes))[0] == status
        assert (await Client(app).tool(session=held)).result["content"] == ref


async def test_only_a_session_that_is_shown_can_be_ended(port: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inspecting, "_MAX_KNOWN", 1)
    async with serving(port) as app, opened(port) as page:
        assert (await page.end("ses_" + "a" * 24))[0] == 404
        assert (await page.end("../../etc"))[0] == 400
        for _ in range(2):
            await Client(app).create()
        first, second = [(await page.until("created"))["ref"] for _ in range(2)]
        assert [(await page.end(ref))[0] for ref in (first, second)] == [404, 200]


async def test_the_page_shows_all_workers_of_the_machine(port: int, short_path: Path) -> None:
    """The first serves it, the others feed it; when the first is gone, another serves it."""
    async with serving(port) as first, opened(port) as page:
        await page.until("worker")
        async with serving(port) as second:
            await page.until("worker")
            await Client(second).create()
            await page.until("created")
            await first.services.stopping()
            with suppress(anyio.IncompleteRead, anyio.BrokenResourceError):
                await page.until("end of the stream")
            await anyio.wait_all_tasks_blocked()  # the port of the first is closed
            async with opened(port) as again:
                await again.until("session")


async def test_a_worker_that_was_killed_is_taken_away(port: int, short_path: Path) -> None:
    """And one that stops is gone."""
    folder = short_path / f"mcp-sessions-{os.geteuid()}-127.0.0.1:{port}"
    async with serving(port), opened(port) as page:
        await page.until("worker")
        with socket.socket(socket.AF_UNIX) as dead:
            dead.bind(str(folder / "1-dead.sock"))
        with socket.socket(socket.AF_UNIX) as other:
            other.bind(str(folder / "2-other.new"))
            other.listen()
            await anyio.Path(folder / "2-other.new").rename(folder / "2-other.sock")
            connection, _ = await anyio.to_thread.run_sync(other.accept)
            connection.sendall(b'{}\n{"event":"worker","worker":"other:2"}\n')
            await page.until("worker", worker="other:2")
            connection.close()
            await page.until("gone", worker="other:2")
        assert not (folder / "1-dead.sock").exists()


async def test_elsewhere_a_token_is_needed(port: int) -> None:
    """For an address that other machines reach, and as the password of whoever opens the page, by any name."""
    with pytest.raises(ConfigurationError, match="can be reached from other machines"):
        sessions(Server(), inspector=f"0.0.0.0:{port}")
    async with serving(port, "0.0.0.0", inspector_token=TOKEN) as app:
        assert TOKEN not in repr(app)
        right = base64.b64encode(f"me:{TOKEN}".encode()).decode()
        wrong = base64.b64encode(b"me:guessed").decode()
        for given in (f"Basic {wrong}", "Basic ?", f"Bearer {TOKEN}", ""):
            status, answer = await exchange(port, get(port, "/", f"Authorization: {given}"))
            assert (status, b"WWW-Authenticate: Basic" in answer) == (401, True)
        host = "sessions.example"
        assert (await exchange(port, get(port, "/", f"Authorization: Basic {right}", host=host)))[0] == 200


async def test_an_address_that_is_not_here_is_logged(port: int, caplog: pytest.LogCaptureFixture) -> None:
    """The server serves all the same."""
    async with serving(port, "192.0.2.1", inspector_token=TOKEN) as app:
        with anyio.fail_after(SECONDS):
            while "cannot start the inspector at 192.0.2.1" not in caplog.text:
                await anyio.lowlevel.checkpoint()
        assert (await Client(app).tool()).status == 200
