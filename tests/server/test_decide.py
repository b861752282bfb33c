"""How a request carries its session, and what is decided about it, read line by line."""

import json
from collections.abc import Sequence
from contextlib import nullcontext
from functools import partial
from typing import Any

import pytest
from apps import Server, sessions
from clients import MODERN, SESSION_KEY, Answer, Client, Header, Incoming, http
from hypothesis import example, given
from hypothesis import strategies as st
from reasons import refused

from mcp_sessions._protocol.envelope import check_envelope
from mcp_sessions._protocol.headers import HANDSHAKE_VERSIONS, SESSION_HEADER, VERSION, RequestHeaders
from mcp_sessions._protocol.jsonrpc import Message, parse
from mcp_sessions._protocol.metadata import SessionMetadata, declares_sessions, parse_metadata
from mcp_sessions._server.context import Request
from mcp_sessions._server.decide import LIST_ACTIONS, Action, Plan, Subject, decide, find_answers, subject_of
from mcp_sessions._session.claims import Kind
from mcp_sessions.dialects import SEP1364Create, SEP1364Initialize


def message(text: str) -> Message:
    """A message with these members beside its version."""
    return parse(f'{{"jsonrpc":"2.0",{text}}}'.encode())


def call(method: str = "tools/call", members: str = "") -> Message:
    return message(f'"id":1,"method":"{method}"{members}')


# --- headers and metadata ------------------------------------------------------------------------


def test_the_first_copy_of_a_header_counts_and_none_is_lost() -> None:
    """As in the official SDK; a second session or method header refuses the request, so it must be seen."""
    pairs = [(b"mcp-protocol-version", b""), (b"mcp-protocol-version", b"2025-11-25")]
    head = RequestHeaders([*pairs, (b"mcp-session-id", b"a"), (b"host", b"x"), (b"mcp-session-id", b"\xff")])
    assert (head.first(VERSION), head.is_modern, head.all(SESSION_HEADER)) == ("", True, ["a", "\xff"])
    empty = RequestHeaders([])
    assert (empty.first(VERSION), empty.is_modern, empty.all(SESSION_HEADER)) == (None, False, [])
    versions = (*HANDSHAKE_VERSIONS, MODERN, "2025-11-25 ")
    modern = [one for one in versions if RequestHeaders([(b"mcp-protocol-version", one.encode())]).is_modern]
    assert modern == [MODERN, "2025-11-25 "]


def test_what_a_server_might_take_for_json_is_json() -> None:
    """In whichever copy of the header; the official SDK takes a type that only begins with it, or a list with it."""
    copies: list[list[str]] = [
        ["Application/JSON; charset=utf-8"],
        ["text/plain", "text/json, application/jsonx"],
        [""],
        [],
    ]
    heads = [RequestHeaders([(b"content-type", kind.encode()) for kind in kinds]) for kinds in copies]
    assert [head.is_json for head in heads] == [True, True, False, False]


@given(st.text(), st.none() | st.text())
@example("", "")
def test_ids_and_states_are_read_as_they_were_meant_and_never_shown(session_id: str, state: str | None) -> None:
    session: dict[str, Any] = {"sessionId": session_id} if state is None else {"sessionId": session_id, "state": state}
    meta = {"_meta": {SESSION_KEY: session}}
    carried = call(members=f',"params":{json.dumps(meta, ensure_ascii=False)}').session
    assert carried is not None
    found = parse_metadata(carried)
    assert found == SessionMetadata(session_id, state)
    assert repr(found) == "<SessionMetadata>"


IN_ENVELOPE = '{"_meta":{"io.modelcontextprotocol/clientCapabilities":%s}}'


@pytest.mark.parametrize(
    ("method", "params", "speaks"),
    [
        ("initialize", '{"capabilities":{"experimental":{"sessions":{}}}}', True),
        ("initialize", '{"capabilities":{"experimental":{"other":{}},"sessions":{}}}', False),
        ("initialize", '{"capabilities":{"experimental":null},"x":"sessions"}', False),
        ("initialize", '{"sessions":1}', False),
        ("m", IN_ENVELOPE % '{"experimental":{"se\\u0073sions":{}}}', True),
        *(("m", params, False) for params in (IN_ENVELOPE % "{}", '{"_meta":{"sessions":1}}')),
    ],
)
def test_a_client_may_declare_that_it_sends_session_ids(method: str, params: str, speaks: bool) -> None:
    """In its handshake, or in each envelope of the modern era: it creates sessions itself, so it is given none."""
    assert declares_sessions(call(method, f',"params":{params}')) is speaks


# --- decisions -----------------------------------------------------------------------------------

KINDS: dict[str, Kind] = {"draft": "session", "transport": "transport", "field": "field", "beside": "beside"}
"""The ids of these tests that are authentic, and what their tokens may be used as."""
BOTH = [SEP1364Create(), SEP1364Initialize()]
FIRST = {"dialects": [SEP1364Create()]}
REQUIRING = {"dialects": [SEP1364Create(required=True)]}
SESSIONLESS = {"dialects": [SEP1364Initialize(sessionless=True)]}
WITHOUT_TRANSPORT = {"transport": "off"}
CROSSING = {**FIRST, "bridge": True}


def decided(message: Message, *headers: Header, modern: bool = False, **options: Any) -> Plan:
    """What a middleware with these options decides about a message with these headers."""
    app = sessions(Server(), **options)
    app._runtime.kind_of = partial(KINDS.get)  # type: ignore[method-assign]
    version = (b"mcp-protocol-version", (MODERN if modern else "2025-11-25").encode())
    scope = http(headers=[(b"host", b"server"), version, *headers])
    request = Request(
        app._runtime, app.app, scope, Incoming(), Answer(), RequestHeaders(scope["headers"]), message=message
    )
    for extract in app._dialects.extract:
        extract(request)
    if headers and headers[0][0] == SESSION_HEADER and headers[0][1] != b"the server's":
        request.headers.session_id = headers[0][1].decode()
    return decide(request, app._rules)


def found_in(plan: Plan) -> tuple[Action, list[tuple[str, bool]]]:
    """The action, and each id that is opened, with whether a header contradicts it."""
    return plan.action, [(one.id, one.contradicted) for one in plan.credentials]


@pytest.mark.parametrize(
    ("text", "about", "with_both"),
    [
        ('"id":1,"method":"sessions/create"', Subject.NEEDS_NONE, Subject.NEEDS_NONE),
        ('"id":1,"method":"sessions/create","params":{"capabilities":{}}', Subject.NEEDS_NONE, Subject.ANSWERED),
        ('"id":1,"method":"session/create"', Subject.OTHER, Subject.ANSWERED),
        ('"id":1,"method":"sessions/delete"', Subject.NEEDS_SESSION, Subject.NEEDS_SESSION),
        ('"id":1,"method":"session/delete"', Subject.OTHER, Subject.NEEDS_SESSION),
        ('"id":1,"method":"sessions/fork"', Subject.NEEDS_SESSION, Subject.NEEDS_SESSION),
        ('"id":1,"method":"terminate"', Subject.OTHER, Subject.NEEDS_SESSION),
        ('"method":"sessions/create"', Subject.MISPLACED, Subject.MISPLACED),
        ('"method":"session/delete"', Subject.OTHER, Subject.MISPLACED),
        ('"id":1,"method":"tools/list","sessionId":"a"', Subject.LIST, Subject.LIST),
        ('"method":"tools/list"', Subject.LIST, Subject.LIST),
        ('"id":1,"result":{}', Subject.REPLY, Subject.REPLY),
        ('"id":1,"method":"Sessions/create"', Subject.OTHER, Subject.OTHER),
        ('"id":1,"method":"initialize","sessionId":"a"', Subject.OTHER, Subject.OTHER),
    ],
)
def test_message_has_one_subject(text: str, about: Subject, with_both: Subject) -> None:
    """By the draft, and by the dialects of SEP-1364 if they are on."""
    found = []
    for dialects in ([], BOTH):
        app = sessions(Server(), dialects=dialects)
        request = Request(
            app._runtime, app.app, http(), Incoming(), Answer(), RequestHeaders([]), message=message(text)
        )
        found.append(subject_of(message(text), find_answers(request, app._dialects)))
    assert found == [about, with_both]


def test_lists_follow_the_option_or_the_era() -> None:
    """Stable in the modern era, by session in the legacy one, unless the deployment says otherwise."""
    listed = call("tools/list", META % "draft")
    for modern, action in ((True, Action.ECHO), (False, Action.ATTACH)):
        assert decided(listed, modern=modern).action is action
        assert {lists: decided(listed, modern=modern, lists=lists).action for lists in LIST_ACTIONS} == LIST_ACTIONS


META = f',"params":{{"_meta":{{"{SESSION_KEY}":{{"sessionId":"%s"}}}}}}'
FIELD = ',"sessionId":"%s"'


@pytest.mark.parametrize(
    ("text", "header", "options", "outcome"),
    [
        # beside metadata it names a transport session, or mirrors it; what creates a session is not about it
        (call(members=META % "draft"), "transport", {}, (Action.ATTACH, ["draft", "transport"], False)),
        (call(members=META % "draft"), "draft", {}, (Action.ATTACH, ["draft"], False)),
        (call(members=META % "draft"), "draft", WITHOUT_TRANSPORT, (Action.ATTACH, ["draft"], False)),
        (call(members=META % "draft"), "transport", WITHOUT_TRANSPORT, "session_header_mismatch"),
        (call("sessions/create"), "transport", {}, (Action.ANSWER, ["transport"], False)),
        (call(), "draft", {}, (Action.ATTACH, ["draft"], False)),
        (call(), "draft", WITHOUT_TRANSPORT, "session_header_alone"),
        (call("initialize"), "transport", {}, (Action.FORWARD, [], False)),
        # if no dialect has it, a field is not read
        (call(members=',"sessionId":7'), "transport", {}, (Action.ATTACH, ["transport"], False)),
        # a session of a field is mirrored in it or contradicted, but for one beside a transport session
        (call(members=FIELD % "field"), "field", FIRST, (Action.ATTACH, ["field"], False)),
        (call(members=FIELD % "field"), "other", FIRST, (Action.ATTACH, ["field"], True)),
        (call(members=FIELD % "beside"), "beside", FIRST, (Action.ATTACH, ["beside"], True)),
        (call(members=FIELD % "beside"), "the server's", FIRST, (Action.ATTACH, ["beside"], False)),
        (call(members=FIELD % "field"), "c", CROSSING, (Action.ATTACH, ["field"], True)),
        (call(members=FIELD % "beside"), "c", CROSSING, (Action.ATTACH, ["beside", "c"], False)),
        *((call(members=FIELD % one), None, FIRST, "field_header_missing") for one in KINDS),
        # a field names no session of the draft, nor one that is not authentic
        (call(members=FIELD % "draft"), "draft", FIRST, "token_kind"),
        (call(members=FIELD % "forged"), "forged", FIRST, "token_kind"),
        # beside both it names the same session
        (call(members=META % "a" + FIELD % "a"), "a", FIRST, (Action.ATTACH, ["a"], False)),
        (call(members=META % "a" + FIELD % "a"), "b", FIRST, "session_header_mismatch"),
        (call(members=META % "a" + FIELD % "b"), "a", FIRST, "session_field_mismatch"),
        (call(members=META % "a" + FIELD % "a"), "a", SESSIONLESS, "sessionless"),
        (call(), None, SESSIONLESS, (Action.FORWARD, [], False)),
    ],
)
def test_what_the_header_is(text: Message, header: str | None, options: dict[str, Any], outcome: Any) -> None:
    """A transport session, a mirror of the message, or its contradiction, which only the session's owner learns."""
    headers = [] if header is None else [(SESSION_HEADER, header.encode())]
    with refused(outcome) if isinstance(outcome, str) else nullcontext():
        plan = decided(text, *headers, **options)
        contradicted = any(one.contradicted for one in plan.credentials)
        assert (plan.action, [one.id for one in plan.credentials], contradicted) == outcome


BUY = call(members=',"params":{"name":"buy"}')


@pytest.mark.parametrize(
    ("text", "options", "needs"),
    [
        (BUY, {}, False),
        (BUY, {"require": {"tools/call": ["buy"]}}, True),
        (BUY, REQUIRING, True),
        (BUY, {"dialects": BOTH}, False),
        (message('"method":"notifications/progress"'), {"require": "always"}, False),
        (message('"method":"notifications/progress"'), REQUIRING, True),
        (call("notifications/progress"), {"require": "always"}, True),
        (message('"id":1,"result":{}'), {"require": "always", **REQUIRING}, False),
        *((call(name), REQUIRING, False) for name in ("initialize", "ping", "sessions/list")),
        (call("tools/list"), REQUIRING, True),
    ],
)
async def test_a_message_without_a_session_is_refused_if_one_is_required(
    text: Message, options: dict[str, Any], needs: bool
) -> None:
    """By the policy or by SEP-1364's `required`; alone, or in a batch, which passes if nothing in it is."""
    with refused("required") if needs else nullcontext():
        assert decided(text, **options, tracked=True).credentials == ()
    batch = await Client(sessions(Server(), **options), modern=False).post(b"[%b]" % text.body)
    assert batch.status == (400 if needs or text.method.startswith("sessions/") else 202)


def test_a_cookie_is_no_session_for_a_dialect_that_requires_one() -> None:
    """A client of the dialect does not know of it."""
    with refused("required"):
        decided(call(), (b"cookie", b"mcp-session-x=1"), modern=True, **REQUIRING)


STATED = f'"io.modelcontextprotocol/protocolVersion":"{MODERN}"'
CAPABLE = '"io.modelcontextprotocol/clientCapabilities":{}'
WHOLE = f"{{{STATED},{CAPABLE}}}"


@pytest.mark.parametrize(
    ("meta", "version", "methods", "reason"),
    [
        (WHOLE, MODERN, ["sessions/create"], None),
        *((meta, MODERN, ["sessions/create"], "envelope_incomplete") for meta in (f"{{{CAPABLE}}}", f"{{{STATED}}}")),
        *((WHOLE, other, ["sessions/create"], "version_header_mismatch") for other in (None, "2099-01-01")),
        *((WHOLE, MODERN, methods, "method_header_mismatch") for methods in ([], ["sessions/delete"])),
        (WHOLE, MODERN, ["sessions/create"] * 2, "method_header_mismatch"),
    ],
)
def test_an_envelope_is_whole_and_says_what_the_headers_say(
    meta: str, version: str | None, methods: list[str], reason: str | None
) -> None:
    """Otherwise two layers would take the request for two eras, or for two methods."""
    created = call("sessions/create", f',"params":{{"_meta":{meta}}}')
    with nullcontext() if reason is None else refused(reason):
        check_envelope(created, version=version, methods=methods)


@pytest.mark.parametrize(
    ("names", "tracked", "extensions"),
    [
        ((), True, []),
        ({"fork"}, True, ["fork"]),
        (("fork", "list"), False, ["fork"]),  # a list of sessions that nobody recorded would be empty
        (("fork", "list"), True, ["fork", "list"]),
    ],
)
async def test_what_is_offered_is_answered_and_advertised(names: Any, tracked: bool, extensions: Sequence[str]) -> None:
    client = Client(sessions(Server(), extensions=names, tracked=tracked, require={"tools/call"}), modern=False)
    advertised = (await client.send("initialize")).result["capabilities"]["experimental"]["sessions"]
    assert advertised == {"required": "some", **dict.fromkeys(extensions, True)}
    for name in ("fork", "list"):
        code = (await client.send(f"sessions/{name}")).error["code"]
        assert (code == -32601) is (name not in extensions)
