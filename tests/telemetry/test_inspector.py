"""`Inspector`: the page shows a worker and the store to who opens it, and ends a session; nobody else does."""

import base64
import json
import logging
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import anyio
import httpx
import pytest
from apps import Server, sessions
from clients import DEADLINE, INITIALIZE, Answer, Client, Exchange, RealClient, lifespan
from failing import Failing
from programs import free_port
from starlette.applications import Starlette
from starlette.routing import Mount

from mcp_sessions import ConfigurationError
from mcp_sessions._protocol.jsonrpc import parse
from mcp_sessions._server import operator
from mcp_sessions._session.claims import Claims
from mcp_sessions._session.events import RequestRefused, SessionCreated, SessionDeleted
from mcp_sessions.stores._memory import MemoryStore
from mcp_sessions.telemetry import Inspector
from mcp_sessions.telemetry import _feed as feeds
from mcp_sessions.telemetry import _inspector as inspecting
from mcp_sessions.telemetry._attributes import KnownNames
from mcp_sessions.telemetry._feed import Feed
from mcp_sessions.telemetry._outcome import RequestTelemetry

TOKEN = "a-token-of-the-operator"
ASKED = {"origin": "http://127.0.0.1:8000", "x_inspector": "end"}


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inspecting, "_RETRY", 0.01)
    monkeypatch.setattr(inspecting, "_ROSTER_INTERVAL", 0.01)


class Page:
    """A page that is open: the events that it gets, and what it asks."""

    def __init__(self, app: Starlette, stream: Exchange) -> None:
        self.app, self.stream = app, stream
        self.events: list[str] = []

    async def until(self, event: str, **members: Any) -> Any:
        """The next event of a kind, with these members."""
        while True:
            found = json.loads((await self.stream.next_event()).removeprefix("data: "))
            self.events.append(found["event"])
            if found["event"] == event and all(found[name] == value for name, value in members.items()):
                return found

    async def end(self, ref: str) -> tuple[int, bytes]:
        """Ask to end a session, as the page does."""
        answer = await RealClient(self.app, path="/inspector/end").http("POST", ref.encode(), **ASKED)
        return answer.status, answer.body


@asynccontextmanager
async def opened(app: Starlette) -> AsyncIterator[Page]:
    """The page's stream of events, for as long as the block lasts; it ends when the browser leaves."""
    with anyio.fail_after(DEADLINE):
        async with RealClient(app, path="/inspector/events").resuming("0") as stream:
            page = Page(app, stream)
            await page.until("hello")
            yield page


def mounted(server: Any = None, **options: Any) -> tuple[Client, Starlette]:
    """A client of an application, and an application that shows it below a path."""
    inspector = Inspector()
    app = sessions(server or Server(), inspector=inspector, spans="off", **options)
    return Client(app), Starlette(routes=[Mount("/inspector", inspector)])


async def ask(method: str, path: str, **headers: str) -> Answer:
    return await RealClient(mounted()[1], path=f"/inspector/{path}").http(method, b"", **headers)


async def test_the_page_comes_with_a_policy_that_lets_nothing_in() -> None:
    """It names its own script and style by their hashes; nothing is fetched from elsewhere."""
    answer = await ask("GET", "")
    policy = answer.headers[b"content-security-policy"]
    assert (answer.status, answer.body) == (200, inspecting.PAGE.read_bytes())
    assert b"default-src 'none'; connect-src 'self'; img-src data:; style-src 'sha256-" in policy
    assert b"frame-ancestors 'none'; require-trusted-types-for 'script'; trusted-types 'none'" in policy
    assert answer.headers[b"cache-control"] == b"no-store"
    assert not [word for word in (b"http://", b"https://", b"src=", b"innerHTML", b"@import") if word in answer.body]


@pytest.mark.parametrize(
    ("status", "method", "path", "headers"),
    [
        (404, "GET", "favicon.ico", {}),
        (405, "GET", "end", {}),
        (405, "OPTIONS", "end", {}),
        (403, "GET", "events", {"sec_fetch_site": "cross-site"}),
        (200, "GET", "", {"sec_fetch_site": "cross-site"}),
        (400, "POST", "end", ASKED),  # as the page asks, but for the session
        (403, "POST", "end", {**ASKED, "origin": "http://evil"}),
        (403, "POST", "end", {"x_inspector": "end"}),
        (403, "POST", "end", {**ASKED, "x_inspector": ""}),
        (403, "POST", "end", {**ASKED, "sec_fetch_site": "cross-site"}),
    ],
)
async def test_what_the_page_does_not_ask_is_refused(
    status: int, method: str, path: str, headers: dict[str, str]
) -> None:
    """So no other site ends a session."""
    assert (await ask(method, path, **headers)).status == status


async def test_a_session_is_shown_and_ended(caplog: pytest.LogCaptureFixture) -> None:
    """One that is not recorded: its client is refused from then on, and the log says who ended it."""
    caplog.set_level(logging.INFO, "mcp_sessions")
    client, app = mounted()
    async with opened(app) as page:
        await client.post({"jsonrpc": "2.0", "id": 1, "result": {}})  # an answer is no call
        held = await client.create()
        assert (await page.until("started"))["name"] == "sessions/create"
        ref = (await page.until("created"))["ref"]
        await client.tool(session=held)
        assert (await page.until("started", name="tools/call whoami"))["ref"] == ref
        assert (await page.until("finished", name="tools/call whoami"))["ref"] == ref
        assert await page.end(ref) == (200, b"ended")
        assert (await page.until("ended", ref=ref))["reason"] == "inspector"
        assert (await client.tool(session=held)).error["code"] == -32043
        assert (await page.until("finished", error="-32043"))["reason"] == "ended"
        assert await page.end("ses_" + "a" * 24) == (200, b"not found")
        assert (await page.end("../../etc"))[0] == 400
    assert f"the inspector ended session {ref}" in caplog.text
    assert f"session {ref} ended: inspector" in caplog.text


async def test_a_page_that_is_opened_later_sees_what_was() -> None:
    """Live sessions, those of before by their first call, with their last errors; and the last events."""
    store = MemoryStore()
    held = await Client(sessions(Server(), store=store)).create()
    client, app = mounted(store=store)
    await client.send("no/such", session=held)
    await client.post(b"[")
    async with opened(app) as page:
        assert (await page.until("session"))["error"] == "-32601"
        assert (await page.until("finished"))["name"] == "no/such"
        assert (await page.until("refused"))["reason"] == "not_json"


async def test_a_handshake_is_in_the_session_that_it_creates() -> None:
    """What else a message names is shown escaped, but for a name that cannot be written, and a session id."""
    held = await mounted()[0].create()
    client, app = mounted()
    client.modern = False
    async with opened(app) as page:
        await client.send("initialize", INITIALIZE)
        ref = (await page.until("created"))["ref"]
        assert (await page.until("finished", name="initialize"))["ref"] == ref
        for name, shown in (("a\x07b", " a\\x07b"), ("\ud800", ""), (7, ""), (held["sessionId"], "")):
            await client.send("tools/call", {"name": name}, id=None)
            assert (await page.until("started"))["name"] == f"tools/call{shown}"


async def test_recorded_sessions_are_shown_and_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also those that this worker has not seen: the store knows them, whichever worker made them; up to a bound."""
    monkeypatch.setattr(operator, "MAX_LISTED", 1)
    store = MemoryStore()
    other = Client(sessions(Server(), store=store, tracked=True))
    held = [await other.create() for _ in range(2)]
    client, app = mounted(store=store, tracked=True)
    async with opened(app) as page:
        for complete in (False, True):
            (session,) = (await page.until("roster", complete=complete))["sessions"]
            assert await page.end(session["ref"]) == (200, b"ended")
        assert (await page.until("roster", sessions=[]))["complete"]
    assert [(await client.tool(session=one)).error["code"] for one in held] == [-32043] * 2


@pytest.mark.parametrize("tracked", [True, False])
async def test_a_store_that_does_not_answer_ends_nothing(tracked: bool) -> None:
    """Nor does it list anything."""
    store = Failing("list_sessions")
    client, app = mounted(store=store, tracked=tracked)
    async with opened(app) as page:
        held = await client.create()
        ref = (await page.until("created"))["ref"]
        store.failing = {"revoke", "get", "list_sessions"}
        assert (await page.end(ref))[0] == 503
        store.failing = set()
        assert (await client.tool(session=held)).result["content"] == ref
        await page.until("finished", name="tools/call whoami")
    assert "roster" not in page.events


async def test_it_may_be_an_application_of_its_own() -> None:
    async with lifespan(Inspector()):
        pass


# --- the feed ----------------------------------------------------------------------------------------


async def test_a_reader_that_falls_behind_is_disconnected(monkeypatch: pytest.MonkeyPatch) -> None:
    """As in a tab that sleeps: it would hold what it has not read. It comes back by itself."""
    monkeypatch.setattr(feeds, "_MAX_BEHIND", 1)
    feed, refusal = Feed(lambda: 0), RequestRefused("header_unreadable", -32600, None, None)
    feed(refusal)
    with feed.reading() as (known, coming):
        for _ in range(3):
            feed(refusal)
        assert [found async for found in coming] == known
        assert not feed._readers


async def test_a_feed_that_closes_ends_the_stream() -> None:
    client, app = mounted()
    async with opened(app) as page:
        await client.app.services.stopping()  # type: ignore[attr-defined]  # the middleware
        await page.stream.ended()


def test_what_a_worker_remembers_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Those that were used longest ago go; one that has ended does not come back."""
    monkeypatch.setattr(feeds, "_MAX_SESSIONS", 2)
    feed = Feed(lambda: 1)
    for number in range(3):
        feed(SessionCreated(f"ses_{number}", 9, of_principal=False))
    ended = Claims(kind="session", issuer="i", audience="a", jti="j", issued_at=0, expires_at=9)
    feed(SessionDeleted(ended.ref, "deleted", 1))
    late = RequestTelemetry(message=parse(b'{"jsonrpc":"2.0","method":"ping"}'), target=None, known=KnownNames())
    feed.begin(late, ended, is_live=True)
    assert [*feed.sessions] == ["ses_1", "ses_2"]
    for ref in ("ses_2", "ses_3"):
        feed(SessionDeleted(ref, "deleted", 1))
    assert ([*feed.sessions], len(feed._ended)) == (["ses_1"], 2)


# --- on loopback -------------------------------------------------------------------------------------


@pytest.fixture
def port() -> int:
    return free_port()


@asynccontextmanager
async def serving(port: int, host: str = "127.0.0.1", **options: Any) -> AsyncIterator[Client]:
    """An application with a page on an address, for as long as the block lasts."""
    app = sessions(Server(), inspector=f"{host}:{port}", spans="off", **options)
    app.services.started()
    app.services.started()
    try:
        yield Client(app)
    finally:
        await app.services.stopping()
        await anyio.wait_all_tasks_blocked()


async def get(port: int, **headers: str) -> httpx.Response:
    """Ask for the page, as soon as the port is open."""
    async with httpx.AsyncClient(transport=httpx.AsyncHTTPTransport(retries=8)) as client:
        return await client.get(f"http://127.0.0.1:{port}/", headers=headers)


ASYNCIO = pytest.mark.parametrize("anyio_backend", ["asyncio"])  # uvicorn runs on it alone


@ASYNCIO
async def test_the_first_worker_that_binds_the_port_serves_it(port: int) -> None:
    """When it is gone, the next does; names that lead here by DNS do not."""
    async with serving(port):
        assert (await get(port)).status_code == 200
        assert (await get(port, host="evil.example")).status_code == 421
        second = serving(port)
        await second.__aenter__()
    assert (await get(port)).status_code == 200
    async with serving(port):
        pass  # which leaves before the port is free
    await second.__aexit__(None, None, None)


@ASYNCIO
async def test_elsewhere_a_token_is_needed(port: int) -> None:
    """For an address that other machines reach, and as the password of whoever opens the page, by any name."""
    with pytest.raises(ConfigurationError, match="can be reached from other machines"):
        sessions(Server(), inspector=f"0.0.0.0:{port}")
    right, wrong = (base64.b64encode(f"me:{text}".encode()).decode() for text in (TOKEN, "guessed"))
    async with serving(port, "0.0.0.0", inspector_token=TOKEN) as client:
        assert TOKEN not in repr(client.app)
        for given in (f"Basic {wrong}", "Basic ?", f"Bearer {TOKEN}", ""):
            answer = await get(port, authorization=given)
            assert (answer.status_code, answer.headers["www-authenticate"][:5]) == (401, "Basic")
        assert (await get(port, authorization=f"Basic {right}", host="sessions.example")).status_code == 200


@ASYNCIO
async def test_an_address_that_is_not_here_is_logged(port: int, caplog: pytest.LogCaptureFixture) -> None:
    """The server serves all the same."""
    async with serving(port, "192.0.2.1", inspector_token=TOKEN) as client:
        await anyio.wait_all_tasks_blocked()
        assert "cannot start the inspector at 192.0.2.1" in caplog.text
        assert (await client.tool()).status == 200


def test_without_uvicorn_an_address_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "uvicorn", None)
    with pytest.raises(ConfigurationError, match="is served by uvicorn: install it, or mount an Inspector"):
        sessions(Server(), inspector="127.0.0.1:8787")
