"""`Inspector`: its page shows workers and the store, and ends a session; other pages cannot."""

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
from clients import INITIALIZE, Answer, Client, RealClient, by, call, http, lifespan, user_of
from failing import Failing
from programs import free_port
from starlette.applications import Starlette
from starlette.routing import Mount

from mcp_sessions import ConfigurationError, Session
from mcp_sessions._protocol.jsonrpc import parse
from mcp_sessions._server import inspected
from mcp_sessions._session.claims import Claims
from mcp_sessions._session.events import SessionCreated, SessionDeleted
from mcp_sessions.stores._memory import MemoryStore
from mcp_sessions.telemetry import Inspector
from mcp_sessions.telemetry import _feed as feeds
from mcp_sessions.telemetry import _inspector as inspecting
from mcp_sessions.telemetry._attributes import KnownNames
from mcp_sessions.telemetry._feed import Feed
from mcp_sessions.telemetry._outcome import RequestTelemetry

TOKEN = "a-token-of-the-operator"
ASKED = {"origin": "http://127.0.0.1:8000", "x_inspector": "end"}


class Page:
    """A page that is open: what it shows, and what it asks."""

    def __init__(self, app: Starlette) -> None:
        self.app = app

    async def state(self) -> dict[str, Any]:
        """Ask for the state, as the page does every two seconds."""
        answer = await RealClient(self.app, path="/inspector/state").http("GET", b"")
        assert answer.status == 200
        found: dict[str, Any] = json.loads(answer.body)
        return found

    async def worker(self) -> dict[str, Any]:
        """Return what the worker knows."""
        known: dict[str, Any] = (await self.state())["worker"]
        return known

    async def last(self, event: str) -> dict[str, Any]:
        """Return the last event of a kind."""
        found: dict[str, Any] = [one for one in (await self.worker())["history"] if one["event"] == event][-1]
        return found

    async def end(self, session: dict[str, Any]) -> tuple[int, bytes]:
        """Ask to end a session, as the page does."""
        named = {name: session[name] for name in ("ref", "created_at", "expires_at")}
        answer = await RealClient(self.app, path="/inspector/end").http("POST", json.dumps(named).encode(), **ASKED)
        return answer.status, answer.body


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
        (403, "GET", "state", {"sec_fetch_site": "cross-site"}),
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
    page = Page(app)
    await client.post({"jsonrpc": "2.0", "id": 1, "result": {}})  # an answer is no call
    held = await client.create()
    await client.tool(session=held)
    state = await page.state()
    (session,) = state["worker"]["sessions"]
    assert [event.get("name", "-") for event in state["worker"]["history"]] == [
        *("-", "sessions/create", "tools/call whoami")
    ]
    assert (await page.last("created"))["ref"] == (await page.last("finished"))["ref"] == session["ref"]
    assert (state["recorded"], state["worker"]["running"]) == (None, [])
    assert await page.end(session) == (200, b"ended")
    assert (await page.last("ended"))["reason"] == "inspector"
    assert (await client.tool(session=held)).error["code"] == -32043
    assert (await page.last("finished"))["error"] == "-32043"
    assert (await page.worker())["refused"] == 1
    assert await page.end(session) == (200, b"not found")
    assert f"the inspector ended session {session['ref']}" in caplog.text
    assert f"session {session['ref']} ended: inspector" in caplog.text


@pytest.mark.parametrize(
    "body",
    [b"../../etc", b'"ses_"', b"{}", b'{"ref":"ses_A","created_at":1,"expires_at":2}', b"\xff", b"[" * 100_000],
)
async def test_what_names_no_session_ends_none(body: bytes) -> None:
    answer = await RealClient(mounted()[1], path="/inspector/end").http("POST", body, **ASKED)
    assert answer.status == 400


async def test_a_worker_ends_a_session_that_it_has_never_seen() -> None:
    """Whichever worker the request reaches."""
    store = MemoryStore()
    (client, seen), (other, unseen) = mounted(store=store), mounted(store=store)
    held = await client.create()
    (session,) = (await Page(seen).worker())["sessions"]
    assert (await Page(unseen).worker())["sessions"] == []
    assert await Page(unseen).end(session) == (200, b"ended")
    assert (await client.tool(session=held)).error["code"] == -32043
    assert (await other.tool(session=held)).error["code"] == -32043


async def test_a_running_call_is_shown() -> None:
    entered, release = anyio.Event(), anyio.Event()

    async def wait(session: Session | None, arguments: dict[str, Any]) -> str:
        entered.set()
        await release.wait()
        return "done"

    client, app = mounted(Server(wait=wait))
    async with anyio.create_task_group() as group:
        group.start_soon(client.tool, "wait")
        await entered.wait()
        (running,) = (await Page(app).worker())["running"]
        assert (running["name"], running["ref"]) == ("tools/call wait", None)
        release.set()
    assert (await Page(app).worker())["running"] == []


async def test_a_page_that_is_opened_later_sees_what_was() -> None:
    """Live sessions, those of before by their first call, with their last errors; and the last events."""
    store = MemoryStore()
    held = await Client(sessions(Server(), store=store)).create()
    client, app = mounted(store=store)
    await client.send("no/such", session=held)
    await client.post(b"[")
    page = Page(app)
    ((session,), finished, refused) = (
        *((await page.worker())["sessions"], await page.last("finished"), await page.last("refused")),
    )
    assert (session["error"], finished["name"], refused["reason"]) == ("-32601", "no/such", "not_json")


async def test_a_session_shows_its_user_if_telemetry_names_users() -> None:
    options = {"principal": user_of, "user": lambda principal: principal.subject}
    client, app = mounted(**options)
    held = await client.create(by("alice"))
    await client.tool("whoami", by("alice"), session=held)
    (session,) = (await Page(app).worker())["sessions"]
    assert session["user"] == "alice"


async def test_a_handshake_is_in_the_session_that_it_creates() -> None:
    """What else a message names is shown escaped, but for a name that cannot be written, and a session id."""
    held = await mounted()[0].create()
    client, app = mounted()
    client.modern, page = False, Page(app)
    await client.send("initialize", INITIALIZE)
    assert (await page.last("created"))["ref"] == (await page.last("finished"))["ref"]
    for name, shown in (("a\x07b", " a\\x07b"), ("\ud800", ""), (7, ""), (held["sessionId"], "")):
        await client.send("tools/call", {"name": name}, id=None)
        assert (await page.last("finished"))["name"] == f"tools/call{shown}"


async def test_recorded_sessions_are_shown_and_ended() -> None:
    """Also those that this worker has not seen: the store knows them, whichever worker created them."""
    store = MemoryStore()
    other = Client(sessions(Server(), store=store, tracked=True))
    held = [await other.create() for _ in range(2)]
    client, app = mounted(store=store, tracked=True)
    page = Page(app)
    recorded = (await page.state())["recorded"]
    assert (recorded["live"], len(recorded["sessions"])) == (2, 2)
    for session in recorded["sessions"]:
        assert await page.end(session) == (200, b"ended")
        assert await page.end(session) == (200, b"not found")
    assert (await page.state())["recorded"] == {"live": 0, "sessions": []}
    assert [(await client.tool(session=one)).error["code"] for one in held] == [-32043] * 2


async def test_more_sessions_than_the_page_can_show_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inspected, "MAX_SESSIONS", 1)
    client, app = mounted(tracked=True)
    for _ in range(2):
        await client.create()
    assert (await Page(app).state())["recorded"] == {"live": 2, "sessions": []}


@pytest.mark.parametrize("tracked", [True, False])
async def test_a_store_that_does_not_answer_ends_nothing(tracked: bool) -> None:
    """Nor does it list anything."""
    store = Failing("list_sessions")
    client, app = mounted(store=store, tracked=tracked)
    page = Page(app)
    held = await client.create()
    state = await page.state()
    (session,) = state["worker"]["sessions"]
    assert state["recorded"] is None
    store.failing = {"revoke", "get", "list_sessions"}
    assert (await page.end(session))[0] == 503
    store.failing = set()
    assert (await client.tool(session=held)).result["content"] == session["ref"]


async def test_each_answer_of_the_state_ends_its_connection() -> None:
    """So the next request may reach another worker. HTTP/2 has no such header."""
    answer = await ask("GET", "state")
    assert answer.headers[b"connection"] == b"close"
    inspector = Inspector()
    sessions(Server(), inspector=inspector)
    answer = await call(inspector, http("GET", path="/state", http_version="2"), b"")
    assert (answer.status, b"connection" in answer.headers) == (200, False)


async def test_it_may_be_an_application_of_its_own() -> None:
    async with lifespan(Inspector()):
        pass


# --- the feed ----------------------------------------------------------------------------------------


def test_what_a_worker_remembers_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Those that were used longest ago go; one that has ended does not come back."""
    monkeypatch.setattr(feeds, "MAX_SESSIONS", 2)
    feed = Feed(lambda: 1)
    for number in range(3):
        feed(SessionCreated(f"ses_{number}", 9, kind=None))
    ended = Claims(kind="session", issuer="i", audience="a", jti="j", issued_at=0, expires_at=9)
    feed(SessionDeleted(ended.ref, "deleted", 1))
    late = RequestTelemetry(message=parse(b'{"jsonrpc":"2.0","method":"ping"}'), target=None, known=KnownNames())
    feed.begin(late, ended, is_live=True)
    assert [one.ref for one in feed.snapshot().sessions] == ["ses_1", "ses_2"]
    for ref in ("ses_2", "ses_3"):
        feed(SessionDeleted(ref, "deleted", 1))
    assert ([one.ref for one in feed.snapshot().sessions], len(feed._ended)) == (["ses_1"], 2)


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


async def get(port: int, path: str = "", **headers: str) -> httpx.Response:
    """Ask for the page, as soon as the port is open."""
    async with httpx.AsyncClient(transport=httpx.AsyncHTTPTransport(retries=8)) as client:
        return await client.get(f"http://127.0.0.1:{port}/{path}", headers=headers)


ASYNCIO = pytest.mark.parametrize("anyio_backend", ["asyncio"])  # uvicorn runs on it alone


@ASYNCIO
async def test_all_workers_serve_the_page_on_one_port(port: int) -> None:
    """The rest goes on if one of them stops. Names that lead here by DNS are refused."""
    async with serving(port) as first:
        await first.create()
        assert (await get(port, host="evil.example")).status_code == 421
        async with serving(port):
            found = [len((await get(port, "state")).json()["worker"]["sessions"]) for _ in range(50)]
            assert set(found) == {0, 1}
        assert (await get(port)).status_code == 200


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
