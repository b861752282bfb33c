"""Every refusal reaches the client as the one table says, and the documentation agrees."""

import ast
import json
import re
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from apps import Server, sessions
from clients import SESSION_KEY, Answer, Client, Clock, Header, Incoming, call, chunks, http
from failing import Failing
from starlette.types import Message, Receive, Scope, Send

from mcp_sessions import Principal, Session
from mcp_sessions import _errors as errors
from mcp_sessions._dialects.per_conversation import MAX_CONVERSATIONS
from mcp_sessions._errors import ConfigurationError, MCPSessionsError, Refusal, StateError
from mcp_sessions._refusals import ENDS, FLOOD_THRESHOLD, REFUSALS, refusal
from mcp_sessions._server.decide import LIST_ACTIONS, TABLE, Action, Presence, Subject
from mcp_sessions.dialects import SEP1364Create, SEP1364Initialize
from mcp_sessions.stores import MemoryStore

ROOT = Path(__file__).resolve().parent.parent.parent
Attempt = Callable[[Client], Awaitable[Answer]]


@dataclass(frozen=True)
class Case:
    """One refusal, and a request that meets it."""

    refusal: Refusal
    code: int
    legacy: int | None  # HTTP status in the legacy era, or None where the era has no such request
    modern: int | None  # HTTP status in the modern era, or None, too
    attempt: Attempt
    options: Mapping[str, Any] = field(default_factory=dict)
    message: str = ""  # where the application wrote it

    @property
    def client_message(self) -> str:
        return self.message or self.refusal.message


def body(text: str | bytes) -> Attempt:
    """POST these bytes."""
    return lambda client: client.post(text.encode() if isinstance(text, str) else text)


def members(text: str) -> Attempt:
    """POST a message with these members."""
    return body(f'{{"jsonrpc":"2.0",{text}}}')


def carrying(session: object, method: str = "tools/call", id: object = 1) -> Attempt:
    """Send a request with this session metadata."""
    return lambda client: client.send(method, session=session, id=id)


def speaking(params: Mapping[str, Any], *, method: str = "tools/call", **fields: object) -> Attempt:
    """Send a request with these params, and these members beside them."""
    return lambda client: client.post({**client.message(method, params), **fields}, method=method)


def with_headers(*headers: Header, method: str = "tools/call") -> Attempt:
    """Send a request with these headers."""
    return lambda client: client.send(method, None, *headers)


def resuming(*headers: Header) -> Attempt:
    """Resume a stream."""
    return lambda client: call(client.app, http("GET", headers=headers))


async def compressed(client: Client) -> Answer:
    """Call a tool of a server that compresses its event stream unasked."""
    session = await client.create()

    async def app(_scope: Scope, _receive: Receive, send: Send) -> None:
        headers = [(b"content-type", b"text/event-stream"), (b"content-encoding", b"gzip")]
        await send({"type": "http.response.start", "status": 200, "headers": headers})

    client.app.app = app  # type: ignore[attr-defined]
    return await client.tool(session=session)


def receiving(message: Message) -> Attempt:
    """Send a body that does not end."""
    return lambda client: call(client.app, http(headers=client.headers("ping")), Incoming(message))


def edited(change: Callable[[dict[str, Any]], object], method: str = "sessions/create") -> Attempt:
    """Send `sessions/create` with a changed `_meta`, or under another `Mcp-Method`."""

    def attempt(client: Client) -> Awaitable[Answer]:
        made = client.message("sessions/create")
        change(made["params"]["_meta"])
        return client.post(made, method=method)

    return attempt


def mirrored(session: Mapping[str, str]) -> Header:
    return b"mcp-session-id", session["sessionId"].encode()


def with_session(use: Callable[[Client, dict[str, str]], Awaitable[Answer]]) -> Attempt:
    """Create a session, and send a request that may be in it."""

    async def attempt(client: Client) -> Answer:
        return await use(client, await client.create())

    return attempt


async def ended(client: Client) -> Answer:
    await client.delete(session := await client.create())
    return await client.tool(session=session)


async def hung_up(client: Client) -> Answer:
    header = await client.initialize()
    await call(client.app, http("DELETE", headers=[header]))
    return await client.tool("whoami", header)


async def expired(client: Client) -> Answer:
    session = await client.create()
    CLOCK.now += 60
    return await client.tool(session=session)


async def shared_jar(client: Client) -> Answer:
    cookie = (await client.send("server/discover")).cookie
    shared = (await client.send("server/discover", None, cookie)).cookie
    return await client.tool("whoami", shared)


async def stale(client: Client) -> Answer:
    await client.initialize()
    return await client.tool("whoami", (b"mcp-session-id", b"of-an-earlier-deployment"))


def unreadable_number(client: Client) -> Awaitable[Answer]:
    """Create a session with a number of more digits than Python reads."""
    created = json.dumps(client.message("sessions/create", {"basket": "N"})).replace('"N"', "7" * 5000)
    return client.post(created.encode(), method="sessions/create")


async def mirrored_otherwise(client: Client) -> Answer:
    one, other = await client.create(), await client.create()
    return await client.tool("whoami", mirrored(one), session=other)


def broken(*_: object) -> None:
    """An `on_create` with a bug."""
    raise LookupError


def no_more(*_: object) -> None:
    """An `on_create` that refuses."""
    raise errors.CreateRefused("no more than one basket each")


async def many_conversations(client: Client) -> Answer:
    """Name more conversations than a user may have."""
    for number in range(MAX_CONVERSATIONS):
        await client.send("tools/call", {"name": "whoami", "_meta": {"threadId": f"{number}"}})
    return await client.send("tools/call", {"name": "whoami", "_meta": {"threadId": "one more"}})


async def fill(session: Session, params: dict[str, Any], scope: Any) -> None:
    """Keep something; a fork, which has a copy, comes to no hook."""
    await session.data.set("k", "x")


CLOCK = Clock()
FIRST: Mapping[str, Any] = {"dialects": [SEP1364Create()]}
OF_ALICE: Mapping[str, Any] = {"principal": lambda scope: "alice"}
VERSION = "io.modelcontextprotocol/protocolVersion"
OF_CLIENT: Mapping[str, Any] = {"tracked": True, "principal": lambda scope: Principal("app")}
LISTED: Mapping[str, Any] = {"tracked": True, **OF_ALICE}
CONVERSING: Mapping[str, Any] = {"transport.per_conversation": True, **OF_ALICE}
UNKNOWN = {"sessionId": "unknown"}
IN_META = {"_meta": {SESSION_KEY: UNKNOWN}}
BEGIN = carrying(None, "sessions/create")
CAPABLE = speaking({"capabilities": {"roots": {}}}, method="sessions/create")
UNSEEN = with_headers((b"authorization", b"Bearer x"), method="sessions/create")
ODD_STATE = with_session(lambda client, made: client.tool(session={**made, "state": "x"}))
MIRRORED = with_session(lambda client, made: client.tool("whoami", mirrored(made)))
TWICE = with_session(lambda client, _: client.send("sessions/create"))
USED = with_session(lambda client, made: client.tool(session=made))
DELETED = with_session(lambda client, made: client.delete(made))
FORKED = with_session(lambda client, made: client.send("sessions/fork", session=made))

PARSE = (-32700, 400, 400)
INVALID = (-32600, 400, 400)
PARAMS = (-32602, 200, 400)
HEADER = (-32020, 400, 400)
NOT_FOUND = (-32043, 200, 200)
CROWDED = (-31047, 200, 200)
"""The code, and the HTTP status in the legacy and in the modern era, of most cases."""

CASES = [
    Case(refusal("not_json"), *PARSE, body("{")),
    Case(refusal("not_utf8"), *PARSE, body(b'{"a":"\xff"}')),
    Case(refusal("byte_order_mark"), *PARSE, body(b"\xef\xbb\xbf{}")),
    Case(refusal("nesting_too_deep"), *PARSE, body(b'{"a":' + b"[" * 100_000)),
    Case(refusal("body_cut_short"), *PARSE, receiving({"type": "http.disconnect"})),
    Case(refusal("not_jsonrpc"), *INVALID, body('{"id":1,"method":"ping"}')),
    Case(refusal("duplicate_member"), *INVALID, members('"method":"a","method":"b"')),
    Case(refusal("member_case"), *INVALID, members('"id":1,"Method":"ping"')),
    Case(refusal("method_not_string"), *INVALID, members('"id":1,"method":1')),
    Case(refusal("id_not_string_or_integer"), *INVALID, members('"id":null,"method":"ping"')),
    Case(refusal("params_not_object"), *INVALID, members('"id":1,"method":"a","params":[]')),
    Case(refusal("too_many_members"), *INVALID, members(",".join(f'"{n:04}":0' for n in range(1000)))),
    Case(refusal("lone_surrogate"), *INVALID, members(r'"method":"\ud800"')),
    Case(refusal("batch"), *INVALID, body('[{"jsonrpc":"2.0","id":1,"method":"sessions/create"}]')),
    Case(
        refusal("batch_too_large"),
        *INVALID,
        body('[{"jsonrpc":"2.0","method":"a"},{"jsonrpc":"2.0","method":"a"}]'),
        {"max_batch": 1},
    ),
    Case(refusal("session_method_as_notification"), *INVALID, carrying(None, "sessions/create", id=None)),
    Case(
        refusal("duplicate_session_header"),
        *INVALID,
        with_headers((b"mcp-session-id", b"a"), (b"mcp-session-id", b"a")),
    ),
    Case(refusal("duplicate_event_header"), *INVALID, resuming((b"last-event-id", b"a"), (b"last-event-id", b"a"))),
    Case(refusal("body_too_large"), -32600, 413, 413, body("{}"), {"max_body_bytes": 1}),
    Case(refusal("body_timeout"), -32600, 408, 408, receiving(chunks(b"{", b"")[0]), {"body_timeout": 0.001}),
    Case(refusal("content_encoding"), -32600, 415, 415, with_headers((b"content-encoding", b"gzip"))),
    Case(refusal("meta_not_object"), -32602, 400, 400, members('"id":1,"method":"a","params":{"_meta":""}')),
    Case(refusal("malformed_session"), *PARAMS, carrying("null")),
    Case(refusal("malformed_session"), -32602, 400, 400, carrying([], id=None)),
    Case(refusal("invalid_params"), *PARAMS, unreadable_number, {"on_create": no_more}),
    Case(refusal("session_on_create"), *PARAMS, carrying(UNKNOWN, "sessions/create")),
    Case(refusal("session_missing"), *PARAMS, carrying(None, "sessions/delete")),
    Case(refusal("field_missing"), *PARAMS, carrying(None, "terminate"), {"dialects": [SEP1364Initialize()]}),
    Case(refusal("cursor_unknown"), *PARAMS, speaking({"cursor": "x"}, method="sessions/list"), LISTED),
    Case(refusal("field_not_string"), *PARAMS, speaking({}, sessionId=7), FIRST),
    Case(refusal("session_field_mismatch"), *PARAMS, speaking(IN_META, sessionId="another"), FIRST),
    Case(refusal("capabilities_missing"), *PARAMS, speaking({"capabilities": []}, method="sessions/create"), FIRST),
    Case(refusal("capabilities_too_large"), *PARAMS, CAPABLE, {**FIRST, "max_data_bytes": 8}),
    Case(errors.StateUnreadable(), *PARAMS, ODD_STATE),
    Case(refusal("envelope_incomplete"), -32602, None, 400, edited(dict.clear)),
    Case(refusal("session_header_mismatch"), *HEADER, mirrored_otherwise),
    Case(refusal("field_header_missing"), *HEADER, speaking({}, sessionId="made-up"), FIRST),
    Case(refusal("session_header_alone"), *HEADER, MIRRORED, {"transport": "off"}),
    Case(
        refusal("version_header_mismatch"), -32020, None, 400, edited(lambda meta: meta.update({VERSION: "2099-01-01"}))
    ),
    Case(refusal("method_header_mismatch"), -32020, None, 400, edited(dict.copy, method="sessions/delete")),
    Case(refusal("modern_era"), -32022, None, 400, carrying(None), {"era": "legacy"}),
    Case(refusal("discovery_refused"), -32601, None, 404, carrying(None, "server/discover"), {"era": "legacy"}),
    Case(errors.SessionNotFound(), *NOT_FOUND, carrying(UNKNOWN)),
    Case(errors.SessionNotFound(), -32043, 400, 400, carrying(UNKNOWN, id=None)),
    Case(errors.SessionNotFound(http_status=404), -32043, 404, None, hung_up),
    Case(errors.SessionExpired(), *NOT_FOUND, expired, {"lifetime": 60, "clock": CLOCK}),
    Case(errors.SessionEnded(), *NOT_FOUND, ended),
    Case(refusal("required"), -31044, 200, 200, carrying(None), {"require": {"tools/call"}}),
    Case(refusal("session_header_stale"), -31044, 404, None, stale, {"require": {"tools/call"}}),
    Case(refusal("cookie_jar_shared"), -31044, None, 200, shared_jar, {"require": {"tools/call"}}),
    Case(refusal("principal_required"), -31046, 200, 200, carrying(None, "sessions/list"), {"tracked": True}),
    Case(refusal("principal_unseen"), -31046, 200, 200, UNSEEN),
    Case(refusal("principal_is_client"), -31046, 200, 200, carrying(None, "sessions/list"), OF_CLIENT),
    Case(refusal("events_compressed"), -32603, 500, 500, compressed),
    Case(refusal("on_create_failed"), -32603, 200, 200, BEGIN, {"on_create": broken}),
    Case(errors.CreateRefused(), -31045, 200, 200, BEGIN, {"on_create": no_more}, "no more than one basket each"),
    Case(refusal("conversations_full"), *CROWDED, many_conversations, CONVERSING),
    Case(refusal("sessions_full"), *CROWDED, FORKED, {**LISTED, "limits.sessions_per_principal": 1}),
    Case(
        refusal("data_full"), *CROWDED, FORKED, {**OF_ALICE, "on_create": fill, "limits.data_bytes_per_principal": 300}
    ),
    Case(refusal("create_limit"), -31029, 429, 429, TWICE, {"create_limit": 1}),
    Case(errors.StoreUnavailable(), -32603, 503, 503, USED, {"store": Failing("look_up")}),
    Case(
        errors.StoreFull(),
        -32603,
        503,
        503,
        DELETED,
        {"store": MemoryStore(max_entries=0)},
    ),
]


EVERY = [
    one for one in vars(errors).values() if isinstance(one, type) and issubclass(one, Refusal) and one is not Refusal
]
SENT = {reason: row for reason, row in REFUSALS.items() if row.code is not None}
RAISING = {"refusal", "refusal_for", "SessionNotFound", "StateUnreadable", "StoreUnavailable"}
STORE = re.compile("store_[a-z_]+")
OF_WORKERS = {"owner_lost", "owner_unreachable"}  # `tests/server/test_several_workers.py` shows what clients get
KINDS = "Parse error: ", "Invalid request: ", "Invalid params: ", "Header mismatch: ", "Principal required: "


PROMISED = [
    pytest.param(case, modern, status, id=f"{case.refusal.reason} ({'modern' if modern else 'legacy'})")
    for case in CASES
    for modern, status in ((False, case.legacy), (True, case.modern))
    if status is not None
]


@pytest.mark.parametrize(("case", "modern", "expected"), PROMISED)
async def test_a_refusal_is_what_the_table_says(case: Case, modern: bool, expected: int) -> None:
    answer = await case.attempt(Client(sessions(Server(), **case.options), modern=modern))
    assert (answer.status, answer.error["code"]) == (expected, case.code)
    assert answer.error["message"] == case.client_message
    assert answer.json["jsonrpc"] == "2.0"
    assert (b"retry-after" in answer.headers) is (expected in {429, 503})


def test_no_refusal_is_missing_from_the_table() -> None:
    """A new class or a new row without a case fails here. No two share a reason, or a log could not say which it was.

    What handlers raise is what the policy answers.
    """
    classes = [refusal.reason for refusal in EVERY]
    assert {case.refusal.reason for case in CASES} == {*classes, *SENT} - OF_WORKERS
    assert len(classes) == len(set(classes))
    assert set(classes) & set(SENT) == {"required"}
    required, row = errors.SessionRequired(), SENT["required"]
    assert (required.code, required.message, required.http_status) == (row.code, row.message, row.http_status)


def test_every_reason_is_in_the_table_of_reasons() -> None:
    """Those of classes and rows, and those that any file of the package gives."""
    given = {refusal.reason for refusal in EVERY} | {*SENT}
    for path in (ROOT / "middleware" / "mcp_sessions").glob("*/*.py"):
        if path.parent.name in {"client", "_cli"}:  # they refuse no request
            continue
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if isinstance(node, ast.Call) and getattr(node.func, "id", "") in RAISING:
                given |= {str(each.value) for each in node.args[:1] if isinstance(each, ast.Constant)}
            elif isinstance(node, ast.Constant) and STORE.fullmatch(str(node.value)):
                given.add(str(node.value))
    assert given == {*REFUSALS}


def test_mistakes_of_the_deployment_and_of_the_application_are_value_errors() -> None:
    for error in (ConfigurationError, StateError, errors.StateTooLarge, errors.StateNotJSON, errors.StateClosed):
        assert issubclass(error, MCPSessionsError)
        assert issubclass(error, ValueError)
    assert not issubclass(Refusal, ValueError)


def page(name: str) -> str:
    return (ROOT / "docs" / name).read_text("utf-8")


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.refusal.reason)
def test_the_page_has_what_a_client_gets(case: Case) -> None:
    """The row of its code has the statuses, and the message or its beginning."""
    (row,) = re.findall(rf"^\| `{case.code}` \| (.*) \|$", page("errors.md"), re.MULTILINE)
    statuses, messages = row.split(" | ")
    assert {str(status) for status in (case.legacy, case.modern) if status} <= set(re.findall(r"\d+", statuses))
    begins, colon, _ = case.client_message.partition(":")
    assert case.message or f"; {begins}{': ...' if colon else ''}; " in f"; {messages}; "


def test_the_page_has_every_reason_and_end() -> None:
    """Each is below its remedy and the mark of the log's warnings, with the text that clients get, if they do."""
    reasons, _, ends = page("errors.md").partition("## Reasons")[2].partition("## Ends")
    shown = {
        name: (remedy.lower(), mark, meaning)
        for remedy, mark, lines in re.findall(r"^\*\*(.+)\.\*\* ?(.*)\n\n((?:- .+\n)+)", reasons, re.MULTILINE)
        for name, meaning in re.findall(r"^- `(\w+)`: (.+)$", lines, re.MULTILINE)
    }
    marks = {None: "", FLOOD_THRESHOLD: "†", 1: "‡"}
    assert {name: row[:2] for name, row in shown.items()} == {
        name: (row.remedy.lower(), marks[row.warn_at]) for name, row in REFUSALS.items()
    }
    for name, row in REFUSALS.items():
        assert row.message in {f"{kind}{shown[name][2]}" for kind in KINDS} or not row.message.startswith(KINDS)
    assert re.findall(r"^- `(\w+)`: .+$", ends, re.MULTILINE) == [*ENDS]


def test_the_page_of_the_wire_has_the_decisions() -> None:
    """Each row of the table, and what `Wire.lists` makes of a list."""
    codes = {Subject.MISPLACED: -32600, Subject.NEEDS_SESSION: -32602, Subject.NEEDS_NONE: -32602}

    def shown(about: Subject, outcome: Action) -> str:
        if outcome is Action.REFUSE:
            return f"refuse with `{codes.get(about, -31044)}`"
        return "as the option `lists` says" if outcome is Action.LIST else outcome.value

    for about, outcomes in TABLE.items():
        without, required, with_one = (shown(about, outcomes[presence]) for presence in Presence)
        unless = "" if required == without else f"; if one is required, {required}"
        assert f"\n| {about.value} | {without}{unless} | {with_one} |\n" in page("wire.md")
    for lists, action in LIST_ACTIONS.items():
        assert f'\n| `"{lists}"` | {action.value} | ' in page("wire.md")
