"""Every refusal that can reach a client, each with a request that meets it."""

import json
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from apps import Server, sessions
from clients import SESSION_KEY, Answer, Client, Clock, Header, Incoming, call, chunks, http
from failing import Failing
from starlette.types import Message

from mcp_sessions import SEP1364Create, SEP1364Initialize, Session
from mcp_sessions import _errors as errors
from mcp_sessions._errors import Refusal
from mcp_sessions.stores import MemoryStore, refusal

FIRST: Mapping[str, Any] = {"dialects": [SEP1364Create()]}
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

    @property
    def name(self) -> str:
        return self.refusal.reason

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
    header = await client.initialize()
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
CROWDED = (-31047, 200, 200)
"""The code, and the HTTP status in the legacy and in the modern era, of most cases."""

CASES = [
    Case(refusal("not_json"), *PARSE, body("{")),
    Case(refusal("not_utf8"), *PARSE, body(b'{"a":"\xff"}')),
    Case(refusal("byte_order_mark"), *PARSE, body(b"\xef\xbb\xbf{}")),
    Case(refusal("nesting_too_deep"), *PARSE, body(b'{"a":' + b"[" * 100_000)),
    Case(refusal("body_cut_short"), *PARSE, receiving({"type": "http.disconnect"})),
    Case(refusal("not_jsonrpc"), *INVALID, body('{"id":1,"method":"ping"}')),
    Case(refusal("duplicate_member"), *INVALID, message('"method":"a","method":"b"')),
    Case(refusal("member_case"), *INVALID, message('"id":1,"Method":"ping"')),
    Case(refusal("method_not_string"), *INVALID, message('"id":1,"method":1')),
    Case(refusal("id_not_string_or_integer"), *INVALID, message('"id":null,"method":"ping"')),
    Case(refusal("params_not_object"), *INVALID, message('"id":1,"method":"a","params":[]')),
    Case(refusal("lone_surrogate"), *INVALID, message(r'"method":"\ud800"')),
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
    Case(refusal("body_too_large"), -32600, 413, 413, body("{}"), {"max_body_bytes": 1}),
    Case(refusal("body_timeout"), -32600, 408, 408, receiving(chunks(b"{", b"")[0]), {"body_timeout": 0.001}),
    Case(refusal("content_encoding"), -32600, 415, 415, with_headers((b"content-encoding", b"gzip"))),
    Case(refusal("meta_not_object"), -32602, 400, 400, message('"id":1,"method":"a","params":{"_meta":""}')),
    Case(refusal("malformed_session"), *PARAMS, carrying("null")),
    Case(refusal("malformed_session"), -32602, 400, 400, carrying([], id=None)),
    Case(refusal("invalid_params"), *PARAMS, unreadable_number, {"on_create": no_more}),
    Case(refusal("session_on_create"), *PARAMS, carrying(UNKNOWN, "sessions/create")),
    Case(refusal("session_missing"), *PARAMS, carrying(None, "sessions/delete")),
    Case(refusal("field_missing"), *PARAMS, carrying(None, "terminate"), {"dialects": [SEP1364Initialize()]}),
    Case(refusal("cursor_unknown"), *PARAMS, lambda client: client.send("sessions/list", {"cursor": "next"}), TRACKED),
    Case(refusal("field_not_string"), *PARAMS, speaking({}, sessionId=7), FIRST),
    Case(
        refusal("session_field_mismatch"),
        *PARAMS,
        speaking({"_meta": {SESSION_KEY: UNKNOWN}}, sessionId="another"),
        FIRST,
    ),
    Case(refusal("capabilities_missing"), *PARAMS, speaking({"capabilities": []}, method="sessions/create"), FIRST),
    Case(
        refusal("capabilities_too_large"),
        *PARAMS,
        speaking({"capabilities": {"roots": {}}}, method="sessions/create"),
        {**FIRST, "max_data_bytes": 8},
    ),
    Case(errors.StateUnreadable(), *PARAMS, unreadable_state),
    Case(refusal("envelope_incomplete"), -32602, None, 400, edited(dict.clear)),
    Case(refusal("session_header_mismatch"), *HEADER, mirrored_otherwise),
    Case(refusal("field_header_missing"), *HEADER, speaking({}, sessionId="made-up"), FIRST),
    Case(refusal("session_header_alone"), *HEADER, mirrored_alone, {"transport": "off"}),
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
    Case(refusal("cookie_jar_shared"), -31044, None, 200, shared_jar, {"require": {"tools/call"}}),
    Case(
        refusal("principal_required"), -31046, 200, 200, lambda client: client.send("sessions/list"), {"tracked": True}
    ),
    Case(
        refusal("principal_unseen"),
        -31046,
        200,
        200,
        lambda client: client.send("sessions/create", None, (b"authorization", b"Bearer x")),
    ),
    Case(refusal("on_create_failed"), -32603, 200, 200, carrying(None, "sessions/create"), {"on_create": broken}),
    Case(
        errors.CreateRefused(),
        -31045,
        200,
        200,
        carrying(None, "sessions/create"),
        {"on_create": no_more},
        "no more than one basket each",
    ),
    Case(refusal("sessions_full"), *CROWDED, forked, {**OF_ALICE, "tracked": True, "limits.sessions_per_principal": 1}),
    Case(
        refusal("data_full"), *CROWDED, forked, {**OF_ALICE, "on_create": fill, "limits.data_bytes_per_principal": 300}
    ),
    Case(refusal("create_limit"), -31029, 429, 429, over_limit, {"create_limit": 1}),
    Case(errors.StoreUnavailable(), -32603, 503, 503, live, {"store": Failing("status")}),
    Case(errors.StoreFull(), -32603, 503, 503, deleting, {"store": MemoryStore(max_entries=0)}),
]
