"""The log: lines that join with traces, warnings of what may indicate an attack, and why a handler has no session."""

import base64
import io
import json
import logging
import os
import re
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from logging.handlers import QueueHandler, QueueListener
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import anyio
import pytest
from apps import Server, sessions
from clients import DISCOVER, INITIALIZE, Client, Header, call, http
from failing import Failing
from recorded import process_wide
from signers import NEW, OLD

from mcp_sessions import KeyRing, Principal, Session, TransportSessions, current_session
from mcp_sessions._refusals import FLOOD_THRESHOLD, REFUSALS
from mcp_sessions._server import current, logs
from mcp_sessions._server.logs import EventLog, caller_of
from mcp_sessions._tokens.keys import base64url
from mcp_sessions.dialects import SEP1364Create
from mcp_sessions.events import RequestRefused, SessionDeleted
from mcp_sessions.stores._timeout import TimeoutStore
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
    EventLog().ended(SessionDeleted(ref, "idle", 1, trace))
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
    assert [line for line in caplog.messages if "at a restart" not in line] == [
        f"session {refs[0]} created",
        f"session {refs[1]} created",
        f"session {refs[0]} ended: deleted, by client",
        f"refused 'tools/call' of session {refs[0]}: ended (-32043); {REFUSALS['ended'].remedy}",
        f"refused a request without a readable message: not_json (-32700); {REFUSALS['not_json'].remedy}",
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
    assert len(line.getMessage()) < 260


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
    """Return the warnings of refusals, which all have a remedy, without it."""
    refused = [record for record in of(caplog, "refused ") if record.levelno == logging.WARNING]
    return [record.getMessage().partition("; ")[0] for record in refused]


class Thief:
    """A client that uses sessions of alice as mallory."""

    def __init__(self) -> None:
        self._caller = "alice"
        self._client = Client(sessions(Server(), principal=lambda scope: Principal(subject=self._caller)))

    async def steal(self) -> tuple[Any, str]:
        """Return the metadata and the ref of a session that alice creates."""
        self._caller = "alice"
        session = await self._client.create()
        ref = (await self._client.tool(session=session)).result["content"]
        self._caller = "mallory"
        return session, ref

    async def use(self, session: Any) -> None:
        await self._client.tool(session=session)


async def test_stolen_id_is_warned_of_at_once(caplog: pytest.LogCaptureFixture) -> None:
    thief = Thief()
    session, ref = await thief.steal()
    for _ in range(3):
        await thief.use(session)
    (record,) = (record for record in of(caplog, "refused ") if record.levelno == logging.WARNING)
    line, _, remedy = record.getMessage().partition("; ")
    assert line == f"refused 'tools/call' of session {ref} by 'mallory': token_principal (-32043)"
    assert remedy == REFUSALS["token_principal"].remedy
    assert extras(record)[0] == ref


@pytest.mark.parametrize("owner", ["client-1", None])
@pytest.mark.parametrize("issuer", ["https://issuer.example", None])
async def test_client_that_registers_again_is_no_thief(
    owner: str | None, issuer: str | None, caplog: pytest.LogCaptureFixture
) -> None:
    """The session is another client's of the same user: no warning, and the line names the remedy."""
    caller = [Principal(owner, issuer, "alice")]
    client = Client(sessions(Server(), principal=lambda scope: caller[0]))
    draft, cookie = await client.create(), (await client.send(DISCOVER)).cookie
    await client.tool("whoami", cookie)
    caller[0] = Principal("client-2", issuer, "alice")
    answers = await client.tool(session=draft), await client.tool("whoami", cookie)
    assert [answer.error["message"] for answer in answers] == ["Session not found"] * 2
    assert warnings(caplog) == []
    for record in of(caplog, "token_other_client"):
        assert "principal=" in record.getMessage()
    assert len(of(caplog, "token_other_client")) == 2


@pytest.mark.parametrize(
    "thief",
    [
        Principal("client-1", "https://issuer.example", "mallory"),
        Principal("client-2", "https://other.example", "alice"),
        Principal("client-2", None, "alice"),
        Principal("client-2", "https://issuer.example", None),
    ],
)
async def test_other_user_of_the_same_client_is_a_thief(thief: Principal, caplog: pytest.LogCaptureFixture) -> None:
    """As is a user of that name at another issuer, and a client without a user."""
    caller = [Principal("client-1", "https://issuer.example", "alice")]
    client = Client(sessions(Server(), principal=lambda scope: caller[0]))
    session = await client.create()
    caller[0] = thief
    assert (await client.tool(session=session)).error["code"] == -32043
    assert [line.rpartition(": ")[2] for line in warnings(caplog)] == ["token_principal (-32043)"]


async def test_each_stolen_session_has_its_own_warning(caplog: pytest.LogCaptureFixture) -> None:
    """However noisy the others are."""
    thief = Thief()
    loud, first = await thief.steal()
    for _ in range(FLOOD_THRESHOLD):
        await thief.use(loud)
    quiet, second = await thief.steal()
    await thief.use(quiet)
    assert [ref for ref in (first, second) for line in warnings(caplog) if ref in line] == [first, second]


def with_claims(token: str, key: str, **changes: Any) -> str:
    """Return a token with these claims, signed as well as by a server."""
    header, payload, _ = token.split(".")
    claims = json.loads(base64.urlsafe_b64decode(payload + "==")) | changes
    signed = f"{header}.{base64url(json.dumps(claims).encode())}"
    return f"{signed}.{base64url(KeyRing([key]).signing.sign(signed.encode()))}"


async def test_claim_at_fault_is_named_in_the_log(caplog: pytest.LogCaptureFixture) -> None:
    client = Client(sessions(Server(), keys=[OLD]))
    token = (await client.create())["sessionId"]
    await client.tool(session={"sessionId": with_claims(token, OLD, exp="tomorrow")})
    (record,) = of(caplog, "refused ")
    assert record.getMessage().startswith("refused 'tools/call': token_claim exp (-32043); ")


async def test_flood_of_forged_ids_is_one_warning(caplog: pytest.LogCaptureFixture) -> None:
    """A few are none. Address and user are quoted: what a proxy passes on may be a client's own words."""
    caller = ["ann"]
    client = Client(sessions(Server(), principal=lambda scope: caller[0]))
    for number in range(2 * FLOOD_THRESHOLD):
        assert len(warnings(caplog)) == (number >= FLOOD_THRESHOLD)
        client.scope["client"], caller[0] = (f"203.0.113.{number}\n", 5), f"m{number}"
        await client.tool(session={"sessionId": "x"})
    last = FLOOD_THRESHOLD - 1
    sender = rf"from '203.0.113.{last}\n' by 'm{last}'"
    more = f"and {last} more since the last warning like this"
    assert warnings(caplog) == [f"refused 'tools/call' {sender}: token_shape (-32043), {more}"]


def test_warning_counts_what_was_suppressed_since_the_last(caplog: pytest.LogCaptureFixture) -> None:
    now = [0.0]
    log = EventLog(clock=lambda: now[0])

    def more(reason: str, number: int, *, at: float) -> list[str]:
        """Refuse so many requests, and return what the new warnings say of others."""
        caplog.clear()
        now[0] = at
        for _ in range(number):
            log.refused(RequestRefused(reason, -32043, "ping", "ses_1"), lambda: (None, None))
        return [line.partition("(-32043)")[2] for line in warnings(caplog)]

    def others(number: int) -> str:
        return f", and {number} more since the last warning like this"

    assert more("token_principal", 5, at=0) == [""]
    assert more("token_principal", 5, at=59) == []
    assert more("token_principal", 2, at=60) == [others(9)]
    assert more("token_principal", 1, at=999) == [others(1)]
    assert more("token_principal", 1, at=9999) == [""]
    assert more("state_seal", FLOOD_THRESHOLD - 1, at=0) == []
    assert more("state_seal", FLOOD_THRESHOLD + 3, at=60) == [others(FLOOD_THRESHOLD - 1)]
    assert more("state_seal", FLOOD_THRESHOLD, at=120) == [others(FLOOD_THRESHOLD + 2)]
    assert more("of another store", 99, at=0) == more("not_json", 99, at=0) == []


def test_counts_of_refusals_are_bounded(caplog: pytest.LogCaptureFixture) -> None:
    """What is forgotten is warned of again."""
    log = EventLog(clock=lambda: 0.0)
    for number in (*range(logs.MAX_COUNTED), 1, logs.MAX_COUNTED, 1, 0):
        log.refused(RequestRefused("token_principal", -32043, "ping", f"ses_{number}"), lambda: (None, None))
    assert len(log._counts) == logs.MAX_COUNTED
    refs = re.findall(r"ses_\d+", " ".join(warnings(caplog)[-3:]))
    assert refs == [f"ses_{number}" for number in (logs.MAX_COUNTED - 1, logs.MAX_COUNTED, 0)]


# --- why a handler got no session, and that a session is in another process -----------------------

CLIENT_INFO = "io.modelcontextprotocol/clientInfo"
CAPABILITIES = "io.modelcontextprotocol/clientCapabilities"
JAR: Header = (b"cookie", b"mcp-session-ktef5iumfdjv7smk=shared")  # another name would end all sessions at an upgrade


HTTPX: Header = (b"user-agent", b"agent/1 python-httpx/0.28.1")


def asking(*, modern: bool = True, **options: Any) -> Client:
    return Client(sessions(Server(), **options), modern=modern)


@pytest.mark.parametrize(
    ("modern", "options", "headers", "words"),
    [
        (True, {}, [], ["sessions/create"]),
        (True, {}, [HTTPX], ["keeps no cookies", "with_sessions", 'era="legacy"']),
        (True, {}, [], ["not known to keep", 'era="auto"']),
        (True, {"era": "auto"}, [], ["not led to the header", "connect it again"]),
        (True, {}, [(b"sec-fetch-site", b"cross-site")], ["page of another site", "examples/sessions.ts"]),
        (True, {"transport": "off"}, [], ["its era are off", 'transport="auto"']),
        (True, {"keys": None}, [], ["keys die", 'keys="env:MCP_SESSIONS_KEYS"']),
        (True, {}, [JAR], ["cookie jar", 'cookie="shared"']),
        (False, {}, [HTTPX], ["no Mcp-Session-Id", "with_sessions"]),
        (False, {}, [], ["no Mcp-Session-Id", "connect it again"]),
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
        answer = await client.post(body, *headers, (b"user-agent", b"agent/1"))
        assert answer.result["content"] is True
    (line,) = lines(caplog)
    assert line.startswith("'shop 2' " if modern else "'agent/1")
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
    EventLog().refused(event, lambda: caller_of({"client": None}, fails))
    (line,) = warnings(caplog)
    assert line == "refused 'ping': token_principal (-32043)"


async def test_a_queue_handler_with_the_filter_passes_the_session_to_its_listener() -> None:
    """The listener's handlers run in a thread of their own, in which no session is known."""
    queued: SimpleQueue[logging.LogRecord] = SimpleQueue()
    handler = QueueHandler(queued)
    handler.addFilter(SessionLogFilter())
    written = io.StringIO()
    target = logging.StreamHandler(written)
    target.setFormatter(logging.Formatter("%(session)s %(message)s"))
    logger = logging.getLogger("shop.queue")
    logger.addHandler(handler)
    listener = QueueListener(queued, target)
    listener.start()

    async def note(session: Session | None, arguments: dict[str, Any]) -> str:
        logger.warning("sold")
        return "-" if session is None else session.ref

    client = Client(sessions(Server(note=note)))
    ref = (await client.tool("note", session=await client.create())).result["content"]
    listener.stop()
    logger.removeHandler(handler)
    assert written.getvalue() == f"{ref} sold\n"


async def test_a_refusal_because_of_the_store_names_the_session(caplog: pytest.LogCaptureFixture) -> None:
    """So all lines of a session are found by its ref."""
    caplog.set_level(logging.INFO, "mcp_sessions")
    store = TimeoutStore(Failing(), seconds=5)
    client = Client(sessions(Server(), store=store))
    held = await client.create()
    ref = (await client.tool(session=held)).result["content"]
    store._store.failing = {"look_up"}  # type: ignore[attr-defined]
    assert (await client.tool(session=held)).status == 503
    (line,) = [record for record in caplog.records if record.getMessage().startswith("refused")]
    assert f"of session {ref}: store_unavailable" in line.getMessage()
    assert getattr(line, "session.id") == ref
