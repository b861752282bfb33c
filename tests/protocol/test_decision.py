"""How a request names its session, and the decision table, read line by line."""

import itertools
import json
from contextlib import nullcontext
from typing import Any

import pytest
from clients import MODERN, SESSION_KEY
from hypothesis import example, given
from hypothesis import strategies as st
from reasons import refused

from mcp_sessions._errors import Refusal
from mcp_sessions._protocol import decision
from mcp_sessions._protocol.decision import (
    EXTENSIONS,
    LISTS,
    PASS,
    SUBJECTS,
    TABLE,
    Action,
    Decision,
    Rules,
    SessionPresence,
    check_envelope,
    decide,
    involves_session,
    list_action,
    requested_session,
    subject_of,
    subjects,
)
from mcp_sessions._protocol.draft import ABOUT_SESSIONS, SessionMetadata, Subject, speaks_draft
from mcp_sessions._protocol.headers import HANDSHAKE_VERSIONS, SESSION_HEADER, VERSION, RequestHeaders
from mcp_sessions._protocol.jsonrpc import Message, parse
from mcp_sessions._protocol.policy import Policy
from mcp_sessions._protocol.sep1364 import Sep1364, SEP1364Create, SEP1364Initialize
from mcp_sessions._session.claims import COOKIE, Kind


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
    found = requested_session(call(members=f',"params":{json.dumps(meta, ensure_ascii=False)}'), None)
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
def test_a_client_that_declares_sessions_speaks_the_draft(method: str, params: str, speaks: bool) -> None:
    """In its handshake, or in each envelope of the modern era: it creates sessions itself, so it is given none."""
    assert speaks_draft(call(method, f',"params":{params}')) is speaks


# --- the table -----------------------------------------------------------------------------------

KINDS: dict[str, Kind] = {"draft": "session", "transport": "transport", "field": "field", "beside": "beside"}
"""The ids of these tests that are authentic, and what their tokens may be used as."""


def rules(require: Any = "never", **given: Any) -> Rules:
    """The rules of a deployment that has these options, and the defaults."""
    names = dict.fromkeys(("lists", "sep1364")) | dict.fromkeys(("legacy_only", "fail_open", "bridges"), False)
    usual = {**names, "subjects": SUBJECTS, "reads_transport": True, "kind_of": KINDS.get}
    return Rules(policy=Policy(require), **{**usual, **given})


def headers(session_id: str | None = None, *, modern: bool = False, cookie: str | None = None) -> RequestHeaders:
    """The headers of a request of an era, with a session header of ours or none."""
    named = [] if session_id is None else [(b"mcp-session-id", session_id.encode())]
    found = RequestHeaders([*named, *([(b"mcp-protocol-version", MODERN.encode())] if modern else [])])
    found.session_id = session_id
    found.cookie = cookie
    return found


NO_DIALECT = Sep1364(None, None)
FIRST = Sep1364(SEP1364Create(), None)
BOTH = Sep1364(SEP1364Create(), SEP1364Initialize())
REQUIRING = Sep1364(SEP1364Create(required=True), None)
SESSIONLESS = Sep1364(None, SEP1364Initialize(sessionless=True))


@pytest.mark.parametrize(
    ("text", "about", "with_both"),
    [
        ('"id":1,"method":"sessions/create"', Subject.CREATE, Subject.CREATE),
        ('"id":1,"method":"sessions/create","params":{"capabilities":{}}', Subject.CREATE, Subject.CREATE_SEP1364),
        ('"id":1,"method":"session/create"', Subject.OTHER, Subject.CREATE_SEP1364),
        ('"id":1,"method":"sessions/delete"', Subject.DELETE, Subject.DELETE),
        ('"id":1,"method":"session/delete"', Subject.OTHER, Subject.DELETE),
        ('"id":1,"method":"terminate"', Subject.OTHER, Subject.TERMINATE),
        ('"method":"sessions/create"', Subject.MISPLACED, Subject.MISPLACED),
        ('"method":"session/delete"', Subject.OTHER, Subject.MISPLACED),
        ('"id":1,"method":"tools/list","sessionId":"a"', Subject.LIST, Subject.LIST),
        ('"method":"tools/list"', Subject.LIST, Subject.LIST),
        ('"id":1,"result":{}', Subject.REPLY, Subject.REPLY),
        ('"id":1,"method":"Sessions/create"', Subject.OTHER, Subject.OTHER),
        ('"id":1,"method":"initialize","sessionId":"a"', Subject.OTHER, Subject.OTHER),
    ],
)
def test_a_message_is_about_one_thing(text: str, about: Subject, with_both: Subject) -> None:
    """By the draft, and where the dialects of SEP-1364 are spoken; one that is not spoken changes nothing."""
    subjects = [subject_of(message(text), rules(sep1364=dialects)) for dialects in (None, NO_DIALECT, BOTH)]
    assert subjects == [about, about, with_both]


def test_lists_follow_the_option_or_the_era() -> None:
    """Stable in the modern era, by session in the legacy one, unless the deployment says otherwise."""
    for modern, action in ((True, Action.STRIP_SESSION), (False, Action.ATTACH)):
        assert list_action(None, modern=modern) is action
        assert {lists: list_action(lists, modern=modern) for lists in LISTS} == LISTS


EVERY = subjects(list(EXTENSIONS))
CROSSING: dict[str, Any] = {"bridges": True, "sep1364": FIRST}
METHODS = {
    **{about: about.value for about in (Subject.CREATE, Subject.DELETE, Subject.FORK, Subject.LIST_SESSIONS)},
    Subject.TERMINATE: "terminate",
    Subject.CREATE_SEP1364: "session/create",
    Subject.MISPLACED: "sessions/create",
    Subject.LIST: "tools/list",
    Subject.REPLY: "",
    Subject.OTHER: "tools/call",
}
POLICIES: list[Any] = ["never", "always", {"tools/call"}]
OPTIONS: list[dict[str, Any]] = [
    *({}, {"legacy_only": True}, {"sep1364": BOTH}, {"fail_open": True, "lists": "untouched"})
]
FORWARDED = {Action.FORWARD, Action.PASSTHROUGH, Action.ATTACH, Action.STRIP_SESSION}


def of_subject(about: Subject, carried: str | None) -> Message:
    if about is Subject.REPLY:
        return message('"id":1,"result":{}')
    meta = "" if carried is None else f'"{SESSION_KEY}":{{"sessionId":"{carried}"}}'
    numbered = "" if about is Subject.MISPLACED else '"id":1,'
    return message(f'{numbered}"method":"{METHODS[about]}","params":{{"_meta":{{{meta}}}}}')


def decided(text: Message, found: RequestHeaders, given: Rules) -> Decision | str:
    """The decision, or the reason of a refusal."""
    try:
        return decide(text, found, given)
    except Refusal as refusal:
        return refusal.reason


@pytest.mark.parametrize("options", OPTIONS, ids=lambda options: ",".join(options) or "default")
@pytest.mark.parametrize("policy", POLICIES, ids=str)
@pytest.mark.parametrize("about", Subject)
def test_a_decision_is_what_the_table_says(about: Subject, policy: Any, options: dict[str, Any]) -> None:
    """A session that is named is opened before every action but that of a response."""
    given = rules(policy, **{"subjects": EVERY, **options})
    for carried, modern in itertools.product((None, "draft"), (False, True)):
        text = of_subject(about, carried)
        session = None if carried is None or about is Subject.REPLY else SessionMetadata(carried)
        requires = about is not Subject.LIST if policy == "always" else METHODS[about] in policy
        lacks = SessionPresence.REQUIRED_BUT_MISSING if requires else SessionPresence.NOTHING
        planned = TABLE[subject_of(text, given)][lacks if session is None else SessionPresence.SESSION]
        expected: Decision | str = "modern_era" if given.legacy_only and modern else str(planned)
        if isinstance(planned, Action) and expected != "modern_era":
            action = list_action(given.lists, modern=modern) if planned is Action.LIST else planned
            may_go_on = given.fail_open and session is not None and action in FORWARDED and not requires
            expected = Decision(action, session, fail_open=may_go_on)
        assert decided(text, headers(modern=modern), given) == expected


@pytest.mark.parametrize("policy", POLICIES, ids=str)
@pytest.mark.parametrize("about", Subject)
def test_a_cookie_stands_for_a_session_where_nothing_else_names_one(about: Subject, policy: Any) -> None:
    """It is what the table says of a session, but for what concerns sessions; and nothing is echoed."""
    given = rules(policy, subjects=EVERY)
    for carried, header in itertools.product((None, "draft"), (None, "transport")):
        text = of_subject(about, carried)
        expected = decided(text, headers(header, modern=True), given)
        found = subject_of(text, given)
        if carried is None and header is None and found not in {*ABOUT_SESSIONS, Subject.REPLY}:
            action = Action.PASSTHROUGH if found is Subject.LIST else Action.ATTACH
            expected = Decision(action, SessionMetadata("cookie"), kind=COOKIE)
        assert decided(text, headers(header, modern=True, cookie="cookie"), given) == expected


META = f',"params":{{"_meta":{{"{SESSION_KEY}":{{"sessionId":"%s"}}}}}}'
FIELD = ',"sessionId":"%s"'


@pytest.mark.parametrize(
    ("text", "header", "options", "outcome"),
    [
        # beside metadata it names a transport session, or mirrors it; what creates a session is not about it
        (call(members=META % "draft"), "transport", {}, (Action.ATTACH, "draft", "transport", False)),
        (call(members=META % "draft"), "draft", {}, (Action.ATTACH, "draft", None, False)),
        (call(members=META % "draft"), "draft", {"reads_transport": False}, (Action.ATTACH, "draft", None, False)),
        (call(members=META % "draft"), "transport", {"reads_transport": False}, "session_header_mismatch"),
        (call("sessions/create"), "transport", {}, (Action.CREATE, None, "transport", False)),
        (call(), "draft", {}, (Action.ATTACH, None, "draft", False)),
        (call(), "draft", {"reads_transport": False}, "session_header_alone"),
        (call("initialize"), "transport", {}, (Action.FORWARD, None, None, False)),
        # where no dialect has it, a field is not read
        (call(members=',"sessionId":7'), "transport", {}, (Action.ATTACH, None, "transport", False)),
        # a session of a field is mirrored in it or contradicted, but for one beside a transport session
        (call(members=FIELD % "field"), "field", {"sep1364": FIRST}, (Action.ATTACH, "field", None, False)),
        (call(members=FIELD % "field"), "other", {"sep1364": FIRST}, (Action.ATTACH, "field", None, True)),
        (call(members=FIELD % "beside"), "beside", {"sep1364": FIRST}, (Action.ATTACH, "beside", None, True)),
        (call(members=FIELD % "beside"), "the server's", {"sep1364": FIRST}, (Action.ATTACH, "beside", None, False)),
        (call(members=FIELD % "field"), "c", CROSSING, (Action.ATTACH, "field", None, True)),
        (call(members=FIELD % "beside"), "c", CROSSING, (Action.ATTACH, "beside", "c", False)),
        *((call(members=FIELD % one), None, {"sep1364": FIRST}, "field_header_missing") for one in KINDS),
        # a field names no session of the draft, nor one that is not authentic, and a fork is of one in metadata
        (call(members=FIELD % "draft"), "draft", {"sep1364": FIRST}, "token_kind"),
        (call("sessions/fork", FIELD % "field"), "field", {"sep1364": FIRST, "subjects": EVERY}, "session_missing"),
        # beside both it names the same session
        (call(members=META % "a" + FIELD % "a"), "a", {"sep1364": FIRST}, (Action.ATTACH, "a", None, False)),
        (call(members=META % "a" + FIELD % "a"), "b", {"sep1364": FIRST}, "session_header_mismatch"),
        (call(members=META % "a" + FIELD % "b"), "a", {"sep1364": FIRST}, "session_field_mismatch"),
        (call(members=META % "a" + FIELD % "a"), "a", {"sep1364": SESSIONLESS}, "sessionless"),
        (call(), None, {"sep1364": SESSIONLESS}, (Action.FORWARD, None, None, False)),
    ],
)
def test_what_the_header_is(text: Message, header: str | None, options: dict[str, Any], outcome: Any) -> None:
    """A transport session, a mirror of the body, or its contradiction, which only the session's owner learns."""
    found = headers(header)
    found.session_id = None if header == "the server's" else header
    with refused(outcome) if isinstance(outcome, str) else nullcontext():
        decision = decide(text, found, rules(**options))
        named = None if decision.metadata is None else decision.metadata.session_id
        assert (decision.action, named, decision.header_token, decision.contradicts) == outcome


BUY = call(members=',"params":{"name":"buy"}')


@pytest.mark.parametrize(
    ("text", "require", "dialects", "needs"),
    [
        (BUY, "never", None, False),
        (BUY, {"tools/call": ["buy"]}, None, True),
        (BUY, "never", REQUIRING, True),
        (BUY, "never", BOTH, False),
        (message('"method":"notifications/progress"'), "always", None, False),
        (message('"method":"notifications/progress"'), "never", REQUIRING, True),
        (call("notifications/progress"), "always", None, True),
        (message('"id":1,"result":{}'), "always", REQUIRING, False),
        *((call(name), "never", REQUIRING, False) for name in ("initialize", "ping")),
        (call("tools/list"), "never", REQUIRING, True),
    ],
)
def test_a_message_without_a_session_is_refused_where_one_is_required(
    text: Message, require: Any, dialects: Sep1364 | None, needs: bool
) -> None:
    """By the policy or by SEP-1364's `required`; alone, or in a batch, which passes where nothing in it is."""
    requiring = rules(require, sep1364=dialects)
    assert involves_session(text, requiring) is needs
    with refused("required") if needs else nullcontext():
        assert decide(text, headers(), requiring) == PASS


def test_where_a_dialect_requires_sessions_a_cookie_is_none() -> None:
    """A client of the dialect does not know of it; a list of sessions needs none in any case."""
    requiring = rules(subjects=EVERY, sep1364=REQUIRING)
    with refused("required"):
        decide(call(), headers(cookie="a session"), requiring)
    found = decide(call(members=FIELD % "field"), headers("field", cookie="a session"), requiring)
    assert found.metadata == SessionMetadata("field", None)
    assert decide(call("sessions/list"), headers(), requiring).metadata is None


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
        (EXTENSIONS, False, ["fork"]),  # a list of sessions that nobody wrote down would be empty
        (EXTENSIONS, True, ["fork", "list"]),
    ],
)
def test_what_is_offered_is_read_and_advertised(names: Any, tracked: bool, extensions: list[str]) -> None:
    offered = decision.offered(names, tracked=tracked)
    assert offered == extensions
    assert decision.subjects(offered).keys() - SUBJECTS.keys() == {f"sessions/{name}" for name in extensions}
    assert json.loads(decision.settings("some", offered)) == {"required": "some", **dict.fromkeys(extensions, True)}
