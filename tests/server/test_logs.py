"""The log: lines that join with traces, warnings of what may indicate an attack, and why a handler has no session."""

import logging
import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import anyio
import pytest
from apps import Server, sessions
from clients import DISCOVER, INITIALIZE, Client, Header, call, http
from recorded import process_wide
from signers import NEW, OLD

from mcp_sessions import (
    KeyRing,
    Principal,
    RequestRefused,
    Session,
    SessionDeleted,
    SessionUsed,
    TransportSessions,
    current_session,
)
from mcp_sessions._server import current, logs
from mcp_sessions._server.logs import MANY, EventSink, caller_of
from mcp_sessions.dialects import SEP1364Create
from mcp_sessions.telemetry import SessionLogFilter


@pytest.fixture(autouse=True)
def info(caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Let the handler that keeps the lines have the filter of the plain recipe, where nothing was warned of before."""
    plain = SessionLogFilter()
    caplog.set_level(logging.INFO, "mcp_sessions")
    monkeypatch.setattr(logs, "_warned", set())
    caplog.handler.addFilter(plain)
    yield
    caplog.handler.removeFilter(plain)


def of(caplog: pytest.LogCaptureFixture, part: str) -> list[logging.LogRecord]:
    return [record for record in caplog.records if part in record.getMessage()]


def extras(record: logging.LogRecord) -> tuple[Any, Any, Any]:
    return record.session, record.trace_id, record.span_id  # type: ignore[attr-defined]


async def test_lines_of_a_session_s_life_carry_it(caplog: pytest.LogCaptureFixture) -> None:
    """So does what is logged within it. The end, which no request asked for, has the trace of its start."""
    made: list[Session] = []

    async def says(session: Session | None, arguments: dict[str, Any]) -> None:
        logging.getLogger("mcp_sessions").info("said within")

    client = Client(sessions(Server(says=says), on_create=lambda session, *_: made.append(session)))
    with process_wide().recording():
        await client.tool("says", session=await client.create())
    ref, trace = made[0].ref, made[0].traceparent
    assert [extras(record)[0] for part in ("created", "said within") for record in of(caplog, part)] == [ref, ref]
    assert trace is not None
    EventSink(None, bool, pytest.fail)(SessionDeleted(ref, "idle", 1, trace))
    (ended,) = of(caplog, "ended: idle")
    assert extras(ended) == (ref, trace[3:35], "-")  # though it is written outside of a request


async def test_each_fact_is_a_line(caplog: pytest.LogCaptureFixture) -> None:
    """A refusal of an authentic session carries it, and the trace and the span of its request."""
    client = Client(sessions(Server()))
    root = await client.create()
    refs = [(await client.tool(session=one)).result["content"] for one in (root, await client.fork(root))]
    await client.delete(root)
    with process_wide().recording() as spans:
        await client.tool(session=root)
    await client.post(b"{")
    EventSink(None, bool, pytest.fail)(SessionUsed(refs[0], "ping"))  # which is no line
    assert [line for line in caplog.messages if "at a restart" not in line] == [
        f"session {refs[0]} created",
        f"session {refs[1]} created",
        f"session {refs[0]} ended: deleted",
        f"refused 'tools/call' of session {refs[0]}: ended (-32043)",
        "refused a request without a readable message: not_json (-32700)",
    ]
    found = [(refs[0], f"{one.context.trace_id:032x}", f"{one.context.span_id:016x}") for one in spans if one.context]
    (refused,) = of(caplog, ": ended (")
    assert extras(refused) in found


async def test_a_method_name_cannot_forge_a_line(caplog: pytest.LogCaptureFixture) -> None:
    """What a client wrote is quoted and cut: no line break, no terminal code, no flood."""
    method = "x\nERROR all is lost\x1b[2J\u202e" + "y" * 1000
    await Client(sessions(Server()), modern=False).send(method, session={"sessionId": "x"})
    (line,) = of(caplog, "refused")
    assert line.getMessage().isprintable()
    assert len(line.getMessage()) < 160


async def test_at_the_start_it_says_where_sessions_begin_and_by_which_keys(caplog: pytest.LogCaptureFixture) -> None:
    """Never a key, but the names of all of them."""
    everything: dict[str, Any] = {"dialects": [SEP1364Create()], "tracked": True, "path": None}
    nothing: dict[str, Any] = {"transport": TransportSessions(header=False, cookie=False)}
    lines = []
    for options in (everything, nothing):
        caplog.clear()
        app = sessions(Server(), keys=[OLD, NEW], **options)
        async with app.services.around(lambda _: nullcontext(), None):
            lines += [record.getMessage() for record in of(caplog, "sessions at ")]
    signs, verifies = (key.kid for key in KeyRing([OLD, NEW]))
    keys = f"key {signs} signs, {verifies} verifies"
    clients, kept = "for audience 'mcp-sessions': clients get them by", "kept in memory (one process)"
    every = "SEP-1364, by _meta, by Mcp-Session-Id, by cookie"
    assert lines == [
        f"sessions at every path {clients} {every}; {kept}, tracked; {keys}",
        f"sessions at /mcp {clients} _meta; {kept}, not tracked; {keys}",
    ]


def lines(caplog: pytest.LogCaptureFixture, part: str = "has no session: ", level: int = logging.INFO) -> list[str]:
    """Return the lines with a part, which are all of a level."""
    records = of(caplog, part)
    assert {record.levelno for record in records} <= {level}
    return [record.getMessage() for record in records]


def warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [line.partition("): ")[0] for line in lines(caplog, "indicate an attack", logging.WARNING)]


async def test_a_stolen_id_is_a_warning_at_once(caplog: pytest.LogCaptureFixture) -> None:
    caller = ["alice"]
    client = Client(sessions(Server(), principal=lambda scope: Principal(subject=caller[0])))
    held = await client.create()
    ref = (await client.tool(session=held)).result["content"]
    caller[0] = "mallory"
    for _ in range(3):
        await client.tool(session=held)
    (line,) = warnings(caplog)
    assert line == f"refused 1 request of session {ref} by 'mallory' that may indicate an attack (token_principal 1"
    (record,) = of(caplog, "may indicate an attack")
    assert extras(record)[0] == ref
    assert record.getMessage().endswith("find out where its id leaked")


@pytest.mark.xfail(strict=True, reason="one warning a minute for all stolen sessions")
async def test_each_stolen_session_has_its_own_warning(caplog: pytest.LogCaptureFixture) -> None:
    """However noisy the others are."""
    caller = ["alice"]
    client = Client(sessions(Server(), principal=lambda scope: Principal(subject=caller[0])))
    stolen = [await client.create() for _ in range(2)]
    refs = [(await client.tool(session=one)).result["content"] for one in stolen]
    caller[0] = "mallory"
    for one in (*[stolen[0]] * MANY, stolen[1]):
        await client.tool(session=one)
    assert [ref for ref in refs for line in warnings(caplog) if ref in line] == refs


async def test_a_flood_of_forged_ids_is_a_warning_and_a_few_are_none(caplog: pytest.LogCaptureFixture) -> None:
    """It names a few addresses and users, in ASCII: what a proxy passes on may be a client's own words."""
    caller = ["ann"]
    client = Client(sessions(Server(), principal=lambda scope: caller[0]))
    held = await client.create()
    for number in range(2 * MANY):
        assert len(warnings(caplog)) == (number >= MANY)
        client.scope["client"], caller[0] = (f"203.0.113.{number}\n", 5), f"m{number}"
        forged = "x" if number % 2 else held["sessionId"][:-8] + "AAAAAAAA"
        await client.tool(session={"sessionId": forged})
    half, more = MANY // 2, MANY - 3
    addresses = r"'203.0.113.0\n', '203.0.113.10\n', '203.0.113.11\n'"
    some = f"from {addresses} and {more} more by 'm0', 'm1', 'm10' and {more} more"
    reasons = f"token_signature {half}, token_shape {half}"
    assert warnings(caplog) == [f"refused {MANY} requests {some} that may indicate an attack ({reasons}"]


async def test_there_is_a_line_a_minute_with_the_number_of_those_in_between(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """For as long as it goes on; what begins anew is a warning at once again, and a few of the other kind are none."""
    minute = Minutes()
    monkeypatch.setattr(anyio, "sleep", minute.sleep)
    facts = EventSink(None, bool, pytest.fail)
    stolen = [RequestRefused("token_principal", -32043, "ping", f"ses_{n}") for n in range(3)]
    counts = []
    for fact in (*stolen, None, None, stolen[0], None, None):
        if fact is None:
            await minute.passes()
        else:
            facts(fact)
        counts.append(len(warnings(caplog)))
    assert counts == [1, 1, 1, 2, 2, 3, 3, 3]
    assert [line[:54] for line in warnings(caplog)][1] == "refused 2 requests that may indicate an attack (token_"
    facts(RequestRefused("token_shape", -32043, "ping"))
    facts(RequestRefused("of another store", -32603, "ping"))
    await minute.passes()
    assert len(warnings(caplog)) == 3
    assert not facts._floods


class Minutes:
    """A clock that stands still but where the test lets a minute pass."""

    def __init__(self) -> None:
        self._passed = anyio.Event()

    async def sleep(self, seconds: float) -> None:
        assert seconds == 60
        await self._passed.wait()

    async def passes(self) -> None:
        """Let it pass, and wait for what that begins."""
        await anyio.wait_all_tasks_blocked()
        passed, self._passed = self._passed, anyio.Event()
        passed.set()
        await anyio.wait_all_tasks_blocked()


# --- why a handler got no session, and that a session is in another process -----------------------

CLIENT_INFO = "io.modelcontextprotocol/clientInfo"
CAPABILITIES = "io.modelcontextprotocol/clientCapabilities"
JAR: Header = (b"cookie", b"mcp-session-ktef5ium=shared")  # another name would end all sessions at an upgrade


def asking(*, modern: bool = True, **options: Any) -> Client:
    return Client(sessions(Server(), **options), modern=modern)


@pytest.mark.parametrize(
    ("modern", "options", "headers", "words"),
    [
        (True, {}, [], ["sessions/create"]),
        (True, {}, [], ["keeps no cookies", "with_sessions", 'era="legacy"']),
        (True, {}, [(b"sec-fetch-site", b"cross-site")], ["page of another site", "with_sessions"]),
        (True, {"transport": "off"}, [], ["its era are off", 'transport="auto"']),
        (True, {"keys": None}, [], ["keys die", 'keys="env:MCP_SESSIONS_KEYS"']),
        (True, {}, [JAR], ["cookie jar", 'cookie="shared"']),
        (False, {}, [], ["no Mcp-Session-Id", "with_sessions"]),
        (False, {}, [(b"mcp-session-id", b"theirs")], ["of its own", "stateless_http=True", "bridge=True"]),
        (False, {"transport": "off"}, [], ["header are off", 'transport="auto"']),
        (False, {"transport": TransportSessions(header=False, bridge=True)}, [], ["no Mcp-Session-Id"]),
    ],
)
async def test_the_log_says_who_has_no_session_and_why_and_what_mends_it(
    modern: bool, options: dict[str, Any], headers: list[Header], words: list[str], caplog: pytest.LogCaptureFixture
) -> None:
    capable: Any = {"experimental": {"sessions": {}}} if "sessions/create" in words else {}
    client = asking(modern=modern, **options)
    for name in ("shop", "another"):
        named: Any = {"_meta": {CLIENT_INFO: {"name": name, "version": "2"}}} if modern else {}
        body = client.message("tools/call", {**named, "name": "asks", "arguments": {}})
        body["params"]["_meta"][CAPABILITIES] = capable
        answer = await client.post(body, (b"user-agent", b"agent/1"), *headers)
        assert answer.result["content"] is True
    (line,) = lines(caplog)
    assert line.startswith("'shop 2' " if modern else "'agent/1' ")
    assert all(word in line for word in words)
    assert not any("shop" in reason or "agent" in reason for reason in logs._warned)  # nothing of a client's is kept


async def app_that_asks(scope: Any, receive: Any, send: Any) -> None:
    current_session()
    await Server()(scope, receive, send)


async def test_what_is_in_no_session_is_blamed_on_nobody(caplog: pytest.LogCaptureFixture) -> None:
    """A gateway asks in whatever it forwards: handshakes, our questions, notifications, replies, pings and streams."""
    app = sessions(app_that_asks)
    for modern in (True, False):
        client = Client(app, modern=modern)
        await client.send(DISCOVER if modern else "initialize", INITIALIZE)
        await client.create()
        await client.delete({"sessionId": "unknown"})
        await client.send("ping")
        await client.send("notifications/initialized", id=None)
        await client.post({"jsonrpc": "2.0", "id": 1, "result": {}})
        for method in ("GET", "DELETE"):
            await call(app, http(method))
    assert lines(caplog) == []
    modern_one, legacy_one = Client(app), Client(app, modern=False)
    for _ in range(2):  # a list and a batch have none by design
        await modern_one.send("tools/list", session=await modern_one.create())
        await legacy_one.post([legacy_one.message("ping")])
    assert ["lists" in line or "batch" in line for line in lines(caplog)] == [True, True]


async def test_a_cause_is_logged_once_lines_at_info_are(caplog: pytest.LogCaptureFixture) -> None:
    """A server that begins to log at INFO learns what was passed over before."""
    client = Client(sessions(app_that_asks))
    for level, logged in ((logging.WARNING, 0), (logging.INFO, 1), (logging.INFO, 1)):
        caplog.set_level(level, "mcp_sessions")
        await client.tool()
        assert len(lines(caplog)) == logged


def refused_text(scope: Any) -> str:
    return str(current.session_required(scope))


async def test_where_no_middleware_saw_the_request(caplog: pytest.LogCaptureFixture) -> None:
    """Each place has its own reason and remedy: another path, another thread, and what is in no request at all."""
    for _ in range(2):
        assert "did not see the request as an MCP message; wrap" in refused_text({})
        assert "or this runs outside of any; wrap the application, and set path=" in refused_text(None)
        assert "outside of any" in await anyio.to_thread.run_sync(refused_text, None)
        with ThreadPoolExecutor(1) as pool:
            assert "lacks the context of the request; start it with anyio" in pool.submit(refused_text, None).result()
    assert [line.split(" has ")[0] for line in lines(caplog)] == ["a request", "a handler", "a handler"]


async def test_the_error_of_a_handler_has_the_same_reason_and_remedy(caplog: pytest.LogCaptureFixture) -> None:
    """A client's author sees what the operator sees; in a handshake, what any client may do."""

    async def app(scope: Any, receive: Any, send: Any) -> None:
        texts.append(refused_text(None))
        await Server()(scope, receive, send)

    texts: list[str] = []
    client = Client(sessions(app), modern=True)
    await client.tool("whoami")
    await client.send(DISCOVER)
    (line,) = lines(caplog)
    assert texts == [f"Session required: {line.partition('no session: ')[2]}", current.NEEDED]


async def begin(client: Client) -> Header:
    return (await client.send(DISCOVER)).cookie if client.modern else await client.initialize()


async def refused_twice(client: Client, named: Header) -> None:
    for _ in range(2):
        answer = await client.tool("asks", named)
        assert (answer.status, answer.error["code"]) == (200 if client.modern else 404, -32043)


@pytest.mark.parametrize("modern", [False, True])
async def test_a_session_of_another_process_is_refused_and_never_empty(
    modern: bool, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Its state is in that process's memory: another worker's, or from before a restart. The log names `store=`.

    As with Gunicorn's `--preload`, a worker that is forked off and begins with the same memory is another process.
    """
    one, other, kept = asking(modern=modern), asking(modern=modern), asking(modern=modern, store=f"sqlite:{tmp_path}/s")
    named = await begin(one)
    assert (await one.tool("asks", named)).result["content"] is True
    for client in (other, kept):
        await refused_twice(client, named)
    await refused_twice(other, await begin(kept))
    assert "begun_in_another_process" in caplog.text
    assert len(lines(caplog, "refusing a session that another process began", logging.WARNING)) == 1
    monkeypatch.setattr(os, "getpid", lambda: 1)
    await refused_twice(one, named)


async def test_a_caller_that_nobody_knows_is_refused_all_the_same(caplog: pytest.LogCaptureFixture) -> None:
    """`principal=` may fail, and a server may give no address: the warning goes without."""

    def fails(scope: Any) -> Principal | None:
        raise LookupError

    event = RequestRefused("token_principal", -32043, "ping")
    assert caller_of({"client": ("x" * 1000, 5)}, fails) == ("x" * 64, None)
    EventSink(None, bool, pytest.fail)(event, lambda: caller_of({"client": None}, fails))
    (line,) = warnings(caplog)
    assert line == "refused 1 request that may indicate an attack (token_principal 1"
