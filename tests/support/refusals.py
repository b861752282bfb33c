"""Every refusal that can reach a client, in one table that the tests run and the documentation shows.

`python tests/support/refusals.py docs` writes `errors.md` and the decision table of `wire.md` in the folder `docs`.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import generated
from apps import Server, sessions
from clients import SESSION_KEY, Answer, Client, Clock, Header, Incoming, call, chunks, http
from failing import Failing
from starlette.types import Message

from mcp_sessions import SEP1364Create, SEP1364Initialize, Session
from mcp_sessions import _errors as errors
from mcp_sessions._errors import Refusal
from mcp_sessions._protocol.decision import LISTS, TABLE, Action, Lists, SessionPresence, list_action
from mcp_sessions._refusals import ENDS, REFUSALS, refusal
from mcp_sessions.stores._memory import MemoryStore

COMMAND = "python tests/support/refusals.py docs"
FIRST: Mapping[str, Any] = {"dialects": [SEP1364Create()]}
Attempt = Callable[[Client], Awaitable[Answer]]


@dataclass(frozen=True)
class Case:
    """One refusal, and a request that meets it."""

    refusal: Refusal
    when: str  # what the client did
    code: int
    legacy: int | None  # HTTP status in the legacy era, or None where the era has no such request
    modern: int | None  # HTTP status in the modern era, or None, too
    attempt: Attempt
    options: Mapping[str, Any] = field(default_factory=dict)
    message: str = ""  # where the application wrote it

    @property
    def client_message(self) -> str:
        return self.message or self.refusal.message

    @property
    def name(self) -> str:
        return f"{self.refusal.reason}: {self.when}"

    async def run(self, *, modern: bool) -> Answer:
        """Make the request in one era."""
        return await self.attempt(Client(sessions(Server(), **self.options), modern=modern))


def body(text: str | bytes) -> Attempt:
    """POST these bytes."""
    raw = text.encode() if isinstance(text, str) else text
    return lambda client: client.post(raw)


def message(members: str) -> Attempt:
    """POST a message with these members."""
    return body(f'{{"jsonrpc":"2.0",{members}}}')


def carrying(session: object, method: str = "tools/call", id: object = 1) -> Attempt:
    """Send a request with this session metadata."""
    return lambda client: client.send(method, session=session, id=id)


def speaking(params: Mapping[str, Any], *, method: str = "tools/call", **fields: object) -> Attempt:
    """Send a request with these params, and these members beside them."""

    def attempt(client: Client) -> Awaitable[Answer]:
        return client.post({**client.message(method, params), **fields}, method=method)

    return attempt


def with_headers(*headers: Header) -> Attempt:
    """Send a request with these headers."""
    return lambda client: client.send("tools/call", None, *headers)


def receiving(*messages: Message) -> Attempt:
    """Send a body that does not end."""
    return lambda client: call(client.app, http(headers=client.headers("ping")), Incoming(*messages))


def mirror(session: Mapping[str, str]) -> Header:
    """The session's id as a header."""
    return (b"mcp-session-id", session["sessionId"].encode())


async def ended(client: Client) -> Answer:
    session = await client.create()
    await client.delete(session)
    return await client.tool(session=session)


async def hung_up(client: Client) -> Answer:
    named = (await client.send("initialize")).headers[b"mcp-session-id"]
    header = (b"mcp-session-id", named)
    await call(client.app, http("DELETE", headers=[header]))
    return await client.tool("whoami", header)


async def expired(client: Client) -> Answer:
    session = await client.create()
    CLOCK.now += 60
    return await client.tool(session=session)


async def live(client: Client) -> Answer:
    return await client.tool(session=await client.create())


async def deleting(client: Client) -> Answer:
    return await client.delete(await client.create())


async def shared_jar(client: Client) -> Answer:
    answer = await client.send("server/discover")
    cookie = answer.headers[b"set-cookie"].partition(b";")[0]
    shared = (await client.send("server/discover", None, (b"cookie", cookie))).headers[b"set-cookie"].partition(b";")[0]
    return await client.tool("whoami", (b"cookie", shared))


async def over_limit(client: Client) -> Answer:
    await client.create()
    return await client.send("sessions/create")


def broken(*_: object) -> None:
    """An `on_create` with a bug."""
    raise LookupError


def no_more(*_: object) -> None:
    """An `on_create` that refuses."""
    raise errors.CreateRefused("no more than one basket each")


def unreadable_number(client: Client) -> Awaitable[Answer]:
    """Create a session with a number of more digits than Python reads."""
    created = json.dumps(client.message("sessions/create", {"basket": 0})).replace(
        '"basket": 0', f'"basket": {"7" * 5000}'
    )
    return client.post(created.encode(), method="sessions/create")


async def unreadable_state(client: Client) -> Answer:
    return await client.tool(session={**await client.create(), "state": "x"})


async def mirrored_otherwise(client: Client) -> Answer:
    one, other = await client.create(), await client.create()
    return await client.tool("whoami", mirror(one), session=other)


async def mirrored_alone(client: Client) -> Answer:
    return await client.tool("whoami", mirror(await client.create()))


def edited(change: Callable[[dict[str, Any]], object], method: str = "sessions/create") -> Attempt:
    """Send `sessions/create` with a changed `_meta`, or under another `Mcp-Method`."""

    async def attempt(client: Client) -> Answer:
        made = client.message("sessions/create")
        change(made["params"]["_meta"])
        return await client.post(made, method=method)

    return attempt


CLOCK = Clock()
TRACKED = {"tracked": True, "principal": lambda scope: "alice"}
VERSION = "io.modelcontextprotocol/protocolVersion"


async def forked(client: Client) -> Answer:
    """Create a session and fork it."""
    return await client.send("sessions/fork", session=await client.create())


async def fill(session: Session, params: dict[str, Any], scope: Any) -> None:
    """Keep something; a fork, which has a copy, comes to no hook."""
    await session.data.set("k", "x")


OF_ALICE: Mapping[str, Any] = {"principal": lambda scope: "alice"}

UNKNOWN = {"sessionId": "unknown"}

PARSE = (-32700, 400, 400)
INVALID = (-32600, 400, 400)
PARAMS = (-32602, 200, 400)
HEADER = (-32020, 400, 400)
NOT_FOUND = (-32043, 200, 200)
"""The code, and the HTTP status in the legacy and in the modern era, of most cases."""

CASES = [
    Case(refusal("not_json"), "the body is not JSON", *PARSE, body("{")),
    Case(refusal("not_utf8"), "the body is not UTF-8", *PARSE, body(b'{"a":"\xff"}')),
    Case(refusal("byte_order_mark"), "a leading byte order mark", *PARSE, body(b"\xef\xbb\xbf{}")),
    Case(refusal("nesting_too_deep"), "100,000 nested arrays", *PARSE, body(b'{"a":' + b"[" * 100_000)),
    Case(refusal("body_cut_short"), "the client left before the end", *PARSE, receiving({"type": "http.disconnect"})),
    Case(refusal("not_jsonrpc"), "JSON, but not JSON-RPC 2.0", *INVALID, body('{"id":1,"method":"ping"}')),
    Case(refusal("duplicate_member"), "`method` is given twice", *INVALID, message('"method":"a","method":"b"')),
    Case(refusal("member_case"), "`Method` instead of `method`", *INVALID, message('"id":1,"Method":"ping"')),
    Case(refusal("method_not_string"), "`method` is a number", *INVALID, message('"id":1,"method":1')),
    Case(refusal("id_not_string_or_integer"), "`id` is null", *INVALID, message('"id":null,"method":"ping"')),
    Case(refusal("params_not_object"), "`params` is an array", *INVALID, message('"id":1,"method":"a","params":[]')),
    Case(refusal("lone_surrogate"), "`method` cannot be written in UTF-8", *INVALID, message(r'"method":"\ud800"')),
    Case(
        refusal("batch"),
        "a batch that creates a session",
        *INVALID,
        body('[{"jsonrpc":"2.0","id":1,"method":"sessions/create"}]'),
    ),
    Case(
        refusal("batch_too_large"),
        "more than `Limits.batch` messages in one body",
        *INVALID,
        body('[{"jsonrpc":"2.0","method":"a"},{"jsonrpc":"2.0","method":"a"}]'),
        {"max_batch": 1},
    ),
    Case(
        refusal("session_method_as_notification"),
        "`sessions/create` as a notification",
        *INVALID,
        carrying(None, "sessions/create", id=None),
    ),
    Case(
        refusal("duplicate_session_header"),
        "two `Mcp-Session-Id` headers",
        *INVALID,
        with_headers((b"mcp-session-id", b"a"), (b"mcp-session-id", b"a")),
    ),
    Case(
        refusal("body_too_large"), "more than `Limits.body_bytes`", -32600, 413, 413, body("{}"), {"max_body_bytes": 1}
    ),
    Case(
        refusal("body_timeout"),
        "longer than `Limits.body_timeout`",
        -32600,
        408,
        408,
        receiving(chunks(b"{", b"")[0]),
        {"body_timeout": 0.001},
    ),
    Case(
        refusal("content_encoding"), "a compressed body", -32600, 415, 415, with_headers((b"content-encoding", b"gzip"))
    ),
    Case(
        refusal("meta_not_object"),
        "`_meta` is a string",
        -32602,
        400,
        400,
        message('"id":1,"method":"a","params":{"_meta":""}'),
    ),
    Case(refusal("malformed_session"), "the session is a string", *PARAMS, carrying("null")),
    Case(refusal("malformed_session"), "the same, as a notification", -32602, 400, 400, carrying([], id=None)),
    Case(
        refusal("invalid_params"),
        "`sessions/create` with a number of 5,000 digits, where there is an `on_create`",
        *PARAMS,
        unreadable_number,
        {"on_create": no_more},
    ),
    Case(
        refusal("session_on_create"), "`sessions/create` with a session", *PARAMS, carrying(UNKNOWN, "sessions/create")
    ),
    Case(refusal("session_missing"), "`sessions/delete` without one", *PARAMS, carrying(None, "sessions/delete")),
    Case(
        refusal("field_missing"),
        "`terminate` without `sessionId` (SEP-1364)",
        *PARAMS,
        carrying(None, "terminate"),
        {"dialects": [SEP1364Initialize()]},
    ),
    Case(
        refusal("cursor_unknown"),
        "`sessions/list` with an unknown cursor",
        *PARAMS,
        lambda client: client.send("sessions/list", {"cursor": "next"}),
        TRACKED,
    ),
    Case(refusal("field_not_string"), "`sessionId` is a number (SEP-1364)", *PARAMS, speaking({}, sessionId=7), FIRST),
    Case(
        refusal("session_field_mismatch"),
        "`_meta` names one session and `sessionId` another (SEP-1364)",
        *PARAMS,
        speaking({"_meta": {SESSION_KEY: UNKNOWN}}, sessionId="another"),
        FIRST,
    ),
    Case(
        refusal("capabilities_missing"),
        "`sessions/create` with capabilities that are not an object (SEP-1364)",
        *PARAMS,
        speaking({"capabilities": []}, method="sessions/create"),
        FIRST,
    ),
    Case(
        refusal("capabilities_too_large"),
        "`sessions/create` with more capabilities than `Limits.data_bytes` (SEP-1364)",
        *PARAMS,
        speaking({"capabilities": {"roots": {}}}, method="sessions/create"),
        {**FIRST, "max_data_bytes": 8},
    ),
    Case(errors.StateUnreadable(), "a state that is not this session's", *PARAMS, unreadable_state),
    Case(refusal("envelope_incomplete"), "no protocol version in `_meta`", -32602, None, 400, edited(dict.clear)),
    Case(refusal("session_header_mismatch"), "the mirror names another session", *HEADER, mirrored_otherwise),
    Case(
        refusal("field_header_missing"),
        "`sessionId` without the header that mirrors it (SEP-1364)",
        *HEADER,
        speaking({}, sessionId="made-up"),
        FIRST,
    ),
    Case(
        refusal("session_header_alone"),
        'a mirror, and no session in `_meta` (`transport="off"`)',
        *HEADER,
        mirrored_alone,
        {"transport": "off"},
    ),
    Case(
        refusal("version_header_mismatch"),
        "the version header differs from `_meta`",
        -32020,
        None,
        400,
        edited(lambda meta: meta.update({VERSION: "2099-01-01"})),
    ),
    Case(
        refusal("method_header_mismatch"),
        "`Mcp-Method` differs from the method",
        -32020,
        None,
        400,
        edited(dict.copy, method="sessions/delete"),
    ),
    Case(
        refusal("modern_era"),
        'any request of the modern era but `server/discover`, with `Wire(era="legacy")`',
        -32022,
        None,
        400,
        carrying(None),
        {"era": "legacy"},
    ),
    Case(
        refusal("discovery_refused"),
        '`server/discover`, with `Wire(era="legacy")`: every client falls back to `initialize`',
        -32601,
        None,
        404,
        carrying(None, "server/discover"),
        {"era": "legacy"},
    ),
    Case(errors.SessionNotFound(), "unknown, forged or another caller's", *NOT_FOUND, carrying(UNKNOWN)),
    Case(errors.SessionNotFound(), "the same, on a notification", -32043, 400, 400, carrying(UNKNOWN, id=None)),
    Case(
        errors.SessionNotFound(http_status=404),
        "a transport session in `Mcp-Session-Id` that has ended, or never existed",
        -32043,
        404,
        None,
        hung_up,
    ),
    Case(errors.SessionExpired(), "the caller's own, expired", *NOT_FOUND, expired, {"lifetime": 60, "clock": CLOCK}),
    Case(errors.SessionEnded(), "the caller's own, deleted", *NOT_FOUND, ended),
    Case(
        refusal("required"),
        "no session, where `require=` asks for one",
        -31044,
        200,
        200,
        carrying(None),
        {"require": {"tools/call"}},
    ),
    Case(
        refusal("cookie_jar_shared"),
        "no session, since two clients share one cookie jar, where `require=` asks for one",
        -31044,
        None,
        200,
        shared_jar,
        {"require": {"tools/call"}},
    ),
    Case(
        refusal("principal_required"),
        "an anonymous caller, on `sessions/list`",
        -31046,
        200,
        200,
        lambda client: client.send("sessions/list"),
        {"tracked": True},
    ),
    Case(
        refusal("principal_unseen"),
        "`sessions/create` with an `Authorization` header, where nothing shows whose it is",
        -31046,
        200,
        200,
        lambda client: client.send("sessions/create", None, (b"authorization", b"Bearer x")),
    ),
    Case(
        refusal("on_create_failed"),
        "`on_create` raised an error of its own",
        -32603,
        200,
        200,
        carrying(None, "sessions/create"),
        {"on_create": broken},
    ),
    Case(
        errors.CreateRefused(),
        "`on_create` raised `CreateRefused`",
        -31045,
        200,
        200,
        carrying(None, "sessions/create"),
        {"on_create": no_more},
        "no more than one basket each",
    ),
    *(
        Case(refused, when, -31047, 200, 200, crowded, {**OF_ALICE, **options})
        for refused, when, crowded, options in (
            (
                refusal("sessions_full"),
                "as many sessions as `Limits.sessions_per_principal` or `anonymous_sessions`",
                forked,
                {"tracked": True, "limits.sessions_per_principal": 1},
            ),
            (
                refusal("data_full"),
                "a fork whose copy exceeds `Limits.data_bytes_per_principal`",
                forked,
                {"on_create": fill, "limits.data_bytes_per_principal": 300},
            ),
        )
    ),
    Case(
        refusal("create_limit"),
        "more than `Limits.creates_per_minute` in a minute",
        -31029,
        429,
        429,
        over_limit,
        {"create_limit": 1},
    ),
    Case(errors.StoreUnavailable(), "the store does not answer", -32603, 503, 503, live, {"store": Failing("status")}),
    Case(
        errors.StoreFull(),
        "`sessions/delete` on a full store",
        -32603,
        503,
        503,
        deleting,
        {"store": MemoryStore(max_entries=0)},
    ),
]


def errors_page() -> str:
    """Return `docs/errors.md`."""
    by_code: dict[int, list[Case]] = {}
    for case in sorted(CASES, key=lambda case: case.code):
        by_code.setdefault(case.code, []).append(case)
    rows = [(f"`{code}`", _http(cases), "; ".join(dict.fromkeys(map(_text, cases)))) for code, cases in by_code.items()]
    table = generated.table(("code", "HTTP", "message"), rows)
    ends = "\n".join(f"- `{why}`: {meaning}" for why, meaning in ENDS.items())
    return "\n".join([_ERRORS, table, _REASONS, *_reasons(), _ENDS, ends, ""])


def _text(case: Case) -> str:
    """Return the message, and its beginning where each reason has an end of its own."""
    if case.message:
        return "what the application's `CreateRefused` says"
    begins, colon, _ = case.client_message.partition(":")
    return f"{begins}: ..." if colon else begins


def _http(cases: list[Case]) -> str:
    """Return the HTTP statuses, by era where the eras differ."""
    legacy = ", ".join(map(str, sorted({case.legacy for case in cases if case.legacy is not None})))
    modern = ", ".join(map(str, sorted({case.modern for case in cases if case.modern is not None})))
    if legacy == modern:
        return legacy
    return "; ".join(f"{era}: {statuses}" for era, statuses in (("legacy", legacy), ("modern", modern)) if statuses)


def _reasons() -> list[str]:
    """Return the reasons by what to do."""
    groups: dict[tuple[str, str], list[str]] = {}
    for name, reason in REFUSALS.items():
        if "token_claim_" not in name:
            groups.setdefault((reason.remedy, _SUSPICION[reason.suspicion]), []).append(f"`{name}`: {reason.meaning}")
    lines = []
    for (remedy, suspicion), reasons in groups.items():
        lines += [f"\n**{remedy[0].upper()}{remedy[1:]}.**{suspicion}\n", *(f"- {reason}" for reason in reasons)]
    return lines


def decisions() -> str:
    """Return the decision table, a part of `docs/wire.md`."""
    rows = []
    for about, outcomes in TABLE.items():
        without, required, with_one = (_outcome(outcomes[carries]) for carries in SessionPresence)
        rows.append((about.value, without + f"; if one is required, {required}" * (required != without), with_one))
    table = generated.table(("the message is", "without a session", "with a session"), rows)
    return "\n".join([table, _LISTS, *map(_choice, LISTS)])


def _choice(lists: Lists) -> str:
    eras = {"legacy": False, "modern": True}
    default = [era for era, modern in eras.items() if list_action(None, modern=modern) is LISTS[lists]]
    return f'| `"{lists}"` | {LISTS[lists].value} | {", ".join(default)} |'


def _outcome(action: Action | str) -> str:
    if not isinstance(action, Action):
        return f"refuse with `{refusal(action).code}`"
    return "as the option `lists` says" if action is Action.LIST else action.value


_ERRORS = """\
# Refusals

What a client gets, by JSON-RPC code. Tests provoke each one in both [eras](concepts.md).
"""

_SUSPICION = {"no": "", "in numbers": " †", "yes": " ‡"}

_REASONS = """
- "Session not found" repeats the id in `error.data.sessionId`. Only the owner of a session that has ended also gets
  `error.data.reason`, `"expired"` or `"ended"`. A call whose session is deleted while its event stream is open gets
  this error, too.
- A refused notification or posted response gets HTTP 400 or above and the id `null`. So does a body that is not one
  message.
- 429 and 503 carry `Retry-After`. After a 503, keep the session: it may be alive.
- State that cannot be stored raises an exception in the application. If a value is changed in place and becomes too
  large, the answer is `-32603`, with the size and the limit.

## Reasons

Logs, spans and metrics have the exact reason, as `mcp_sessions.reason`; clients do not get it. A malformed claim
is named, as in `token_claim_exp`; see `token_claims`. Above each group is what to do; † means that many within a
minute may indicate an attack, ‡ that a single one may."""

_ENDS = """
## Ends

A session ends for one of these reasons, or for one that your code gives:
"""

_LISTS = """
Lists are `tools/list`, `prompts/list`, `resources/list`, `resources/templates/list` and `server/discover`.

| `Wire.lists` | a list with a session | the default in the era |
|---|---|---|"""


if __name__ == "__main__":
    folder = Path(sys.argv[1])
    (folder / "errors.md").write_text(errors_page(), "utf-8")
    generated.replace(folder / "wire.md", COMMAND, decisions())
