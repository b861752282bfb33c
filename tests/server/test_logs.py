"""The log: lines that join with traces, warnings of what may indicate an attack, and all that without any set-up."""

from __future__ import annotations

import logging
import re
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import anyio
import pytest
from apps import Server, sessions
from clients import Client
from failing import Failing
from opentelemetry.sdk.trace import ReadableSpan
from recorded import process_wide
from started import start

from mcp_sessions import KeyRing, Principal, SEP1364Create, Session, TransportSessions
from mcp_sessions._server.logs import MANY, EventSink, caller_of
from mcp_sessions._session.events import RequestRefused, SessionDeleted
from mcp_sessions.telemetry import SessionLogFilter


@pytest.fixture
def spans() -> Iterator[list[ReadableSpan]]:
    """The spans of one test, of all that is in this process."""
    with process_wide().recording() as kept:
        yield kept


@pytest.fixture(autouse=True)
def info(caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    """Let the handler that keeps the lines have the filter of the plain recipe."""
    plain = SessionLogFilter()
    caplog.set_level(logging.INFO, "mcp_sessions")
    caplog.handler.addFilter(plain)
    yield
    caplog.handler.removeFilter(plain)


def of(caplog: pytest.LogCaptureFixture, part: str) -> list[logging.LogRecord]:
    return [record for record in caplog.records if part in record.getMessage()]


def extras(record: logging.LogRecord) -> tuple[Any, Any, Any]:
    return record.session, record.trace_id, record.span_id  # type: ignore[attr-defined]


async def bad_state(client: Client, held: dict[str, Any], store: Failing) -> None:
    await client.tool(session={**held, "state": "x"})


async def away(client: Client, held: dict[str, Any], store: Failing) -> None:
    store.failing.add("status")
    await client.tool(session=held)


async def over(client: Client, held: dict[str, Any], store: Failing) -> None:
    await client.delete(held)
    await client.tool(session=held)


@pytest.mark.parametrize(
    ("attempt", "reason"),
    [(bad_state, "state_shape"), (away, "store_unavailable"), (over, "ended")],
)
async def test_a_refusal_of_an_authentic_session_carries_it(
    attempt: Any, reason: str, caplog: pytest.LogCaptureFixture, spans: list[ReadableSpan]
) -> None:
    store = Failing()
    client = Client(sessions(Server(), store=store))
    held = await client.create()
    ref = (await client.tool(session=held)).result["content"]
    spans.clear()
    await attempt(client, held, store)
    (record,) = of(caplog, f": {reason} (")
    session, trace, span = extras(record)
    assert session == ref
    refused = [one.context for one in spans if one.context is not None and f"{one.context.span_id:016x}" == span]
    assert [f"{context.trace_id:032x}" for context in refused] == [trace]


async def test_lines_of_a_session_s_life_carry_it(caplog: pytest.LogCaptureFixture, spans: list[ReadableSpan]) -> None:
    """The end, which no request asked for, has the trace of its start."""
    made: list[Session] = []
    client = Client(sessions(Server(), on_create=lambda session, params, scope: made.append(session)))
    await client.create()
    (created,) = of(caplog, "created")
    assert extras(created)[0] == made[0].ref
    EventSink(None, bool, pytest.fail)(SessionDeleted(made[0].ref, "idle", 1, made[0].traceparent))
    (ended,) = of(caplog, "ended: idle")
    assert made[0].traceparent is not None
    assert extras(ended) == (made[0].ref, made[0].traceparent[3:35], "-")  # though it is written outside of a request


async def test_each_fact_is_a_line(caplog: pytest.LogCaptureFixture) -> None:
    client = Client(sessions(Server()))
    root = await client.create()
    refs = [(await client.tool(session=one)).result["content"] for one in (root, await client.fork(root))]
    await client.delete(root)
    await client.tool(session=root)
    await client.post(b"{")
    assert [line for line in caplog.messages if "at a restart" not in line] == [
        f"session {refs[0]} created",
        f"session {refs[1]} created",
        f"session {refs[0]} ended: deleted",
        f"refused 'tools/call' of session {refs[0]}: ended (-32043)",
        "refused a request without a readable message: not_json (-32700)",
    ]


async def test_a_method_name_cannot_forge_a_line(caplog: pytest.LogCaptureFixture) -> None:
    """What a client wrote is quoted and cut: no line break, no terminal code, no flood."""
    method = "x\nERROR all is lost\x1b[2J\u202e" + "y" * 1000
    await Client(sessions(Server()), modern=False).send(method, session={"sessionId": "x"})
    (line,) = of(caplog, "refused")
    assert line.getMessage().isprintable()
    assert len(line.getMessage()) < 160


async def test_at_the_start_it_says_where_sessions_begin_and_by_which_keys(caplog: pytest.LogCaptureFixture) -> None:
    """Never a key, but the names of all of them."""
    secrets = ["first-" + "abcdefghijklmnopqrstuvwxyz0123456789", "other-" + "zyxwvutsrqponmlkjihgfedcba9876543210"]
    everything: dict[str, Any] = {"dialects": [SEP1364Create()], "tracked": True, "path": None}
    nothing: dict[str, Any] = {"transport": TransportSessions(header=False, cookie=False)}
    lines = []
    for options in (everything, nothing):
        caplog.clear()
        app = sessions(Server(), keys=secrets, **options)
        async with app.services.around(lambda _: nullcontext(), None):
            lines += [record.getMessage() for record in of(caplog, "sessions at ")]
    signs, verifies = (key.kid for key in KeyRing(secrets))
    keys = f"key {signs} signs, {verifies} verifies"
    clients, kept = "for audience 'mcp-sessions': clients get them by _meta", "kept in memory (one process)"
    assert lines == [
        f"sessions at every path {clients}, by Mcp-Session-Id, by cookie, by SEP-1364; {kept}, tracked; {keys}",
        f"sessions at /mcp {clients}; {kept}, not tracked; {keys}",
    ]


async def test_a_file_that_fails_is_named_with_the_cause(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """So that it is known where to look."""
    (path := tmp_path / "sessions.db").write_bytes(b"not a database " * 300)
    answer = await Client(sessions(Server(), store=f"sqlite:{path}")).send("sessions/create")
    assert answer.status == 503
    (record,) = of(caplog, "session store unavailable")
    assert record.getMessage() == (
        f"session store unavailable (store_corrupt): SQLite file {path}: file is not a database"
    )


def warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    records = [record for record in of(caplog, "indicate an attack") if record.levelno == logging.WARNING]
    return [record.getMessage().partition("): ")[0] for record in records]


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


async def test_a_flood_of_forged_ids_is_a_warning_and_a_few_are_none(caplog: pytest.LogCaptureFixture) -> None:
    client = Client(sessions(Server()))
    held = await client.create()
    for number in range(2 * MANY):
        assert len(warnings(caplog)) == (number >= MANY)
        forged = "x" if number % 2 else held["sessionId"][:-8] + "AAAAAAAA"
        await client.tool(session={"sessionId": forged})
    half = MANY // 2
    (line,) = warnings(caplog)
    assert line == f"refused {MANY} requests that may indicate an attack (token_signature {half}, token_shape {half}"


async def test_a_warning_names_where_the_requests_came_from(caplog: pytest.LogCaptureFixture) -> None:
    """A few addresses and users, in ASCII: what a proxy passes on may be a client's own words."""
    caller = ["ann"]
    client = Client(sessions(Server(), principal=lambda scope: caller[0]))
    held = await client.create()
    for number in range(MANY + 5):
        client.scope["client"], caller[0] = (f"203.0.113.{number}\n", 5), f"m{number}"
        await client.tool(session={"sessionId": held["sessionId"][:-8] + "A" * 8})
    (line,) = warnings(caplog)
    addresses = r"'203.0.113.0\n', '203.0.113.10\n', '203.0.113.11\n'"
    some = f"from {addresses} and {MANY - 3} more by 'm0', 'm1', 'm10' and {MANY - 3} more"
    assert line == f"refused {MANY} requests {some} that may indicate an attack (token_signature {MANY}"


async def test_a_caller_that_nobody_knows_is_refused_all_the_same(caplog: pytest.LogCaptureFixture) -> None:
    """`principal=` may fail, and a server may give no address: the warning goes without."""

    def fails(scope: Any) -> Principal | None:
        raise LookupError

    event = RequestRefused("token_principal", -32043, "ping")
    assert caller_of({"client": ("x" * 1000, 5)}, fails) == ("x" * 64, None)
    EventSink(None, bool, pytest.fail)(event, lambda: caller_of({"client": None}, fails))
    (line,) = warnings(caplog)
    assert line == "refused 1 request that may indicate an attack (token_principal 1"


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


SERVED = """
import sys
sys.path[:0] = {paths!r}
from apps import Server
from clients import Client
from failing import Failing
from mcp_sessions import MCPSessionMiddleware, Principal

callers = iter(["alice", "alice", "mallory"])
middleware = MCPSessionMiddleware(
    Server(), keys="a-secret-of-thirty-two-bytes-and-more!", principal=lambda scope: Principal(subject=next(callers))
)

async def app(scope, receive, send):
    client = Client(middleware)
    held = await client.create()
    await client.tool(session=held)
    print("SESSION", held["sessionId"])
    await client.tool(session=held)
    await receive()
    await send({{"type": "lifespan.startup.failed", "message": "that is all"}})
"""


def test_a_warning_is_seen_under_uvicorn_as_it_comes(tmp_path: Path) -> None:
    """Nothing is set up: no handler, no level. Information is not shown, and the id of the session never is."""
    paths = [str(Path(__file__).resolve().parents[1] / "support")]
    printed = start(tmp_path, SERVED.format(paths=paths), "app").stdout
    (held,) = re.findall(r"^SESSION (.*)$", printed, re.MULTILINE)
    assert re.search(
        r"^refused 1 request of session ses_[a-z2-7]{24} that may indicate an attack", printed, re.MULTILINE
    )
    assert printed.count(held) == 1
    assert "refused 'tools/call'" not in printed
