"""The decision table, read line by line, and the checks on headers that stand before it."""

from __future__ import annotations

import itertools
import json
from contextlib import nullcontext
from typing import Any

import pytest
from clients import OFFERED, SECRET, SESSION_KEY, START
from deciding import headers, rules
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
    Lists,
    Rules,
    SessionPresence,
    check_envelope,
    decide,
    involves_session,
    list_action,
    subject_of,
    subjects,
)
from mcp_sessions._protocol.draft import ABOUT_SESSIONS, SessionMetadata, Subject
from mcp_sessions._protocol.headers import RequestHeaders, single_header
from mcp_sessions._protocol.jsonrpc import Message, parse
from mcp_sessions._protocol.sep1364 import Sep1364, SEP1364Create, SEP1364Initialize
from mcp_sessions._session.claims import COEXISTING, COOKIE, FIELD, SESSION, Claims
from mcp_sessions._tokens.jwt import Tokens
from mcp_sessions._tokens.keys import KeyRing

RING = KeyRing([SECRET])
OURS = Tokens(issuer="i", audience="a").mint(
    RING,
    Claims(
        kind=SESSION,
        jti="A" * 22,
        issued_at=START,
        expires_at=START + 60,
        issuer="i",
        audience="a",
    ),
)
FORGED = OURS.rpartition(".")[0] + ".AAAA"


def message(text: str) -> Message:
    return parse(text.encode())


@pytest.mark.parametrize(
    ("text", "about"),
    [
        ('"id":1,"method":"sessions/create"', Subject.CREATE),
        ('"id":1,"method":"sessions/delete"', Subject.DELETE),
        ('"method":"sessions/create"', Subject.MISPLACED),
        ('"method":"sessions/delete"', Subject.MISPLACED),
        ('"id":1,"method":"tools/list"', Subject.LIST),
        ('"id":1,"method":"server/discover"', Subject.LIST),
        ('"method":"tools/list"', Subject.LIST),
        ('"id":1,"result":{}', Subject.REPLY),
        ('"id":1,"method":"Sessions/create"', Subject.OTHER),
        ('"id":1,"method":"initialize"', Subject.OTHER),
        ('"id":1,"method":""', Subject.OTHER),
    ],
)
def test_a_message_is_about_one_thing(text: str, about: Subject) -> None:
    assert subject_of(message(f'{{"jsonrpc":"2.0",{text}}}'), rules()) is about


def test_the_table_has_no_hole() -> None:
    assert set(TABLE) == set(Subject)
    assert all(set(row) == set(SessionPresence) for row in TABLE.values())


@pytest.mark.parametrize(
    ("about", "carries", "outcome"),
    [
        (Subject.CREATE, SessionPresence.SESSION, "session_on_create"),
        (Subject.CREATE, SessionPresence.REQUIRED_BUT_MISSING, Action.CREATE),
        (Subject.DELETE, SessionPresence.NOTHING, "session_missing"),
        (Subject.OTHER, SessionPresence.NOTHING, Action.FORWARD),
        (Subject.OTHER, SessionPresence.REQUIRED_BUT_MISSING, "required"),
        (Subject.OTHER, SessionPresence.SESSION, Action.ATTACH),
        (Subject.REPLY, SessionPresence.REQUIRED_BUT_MISSING, Action.FORWARD),
    ],
)
def test_the_rules_of_the_draft(about: Subject, carries: SessionPresence, outcome: Action | str) -> None:
    assert TABLE[about][carries] == outcome


@pytest.mark.parametrize(
    ("lists", "modern", "action"),
    [
        (None, True, Action.STRIP_SESSION),
        (None, False, Action.ATTACH),
        *((name, modern, action) for name, action in LISTS.items() for modern in (False, True)),
    ],
)
def test_lists_follow_the_option_or_the_era(lists: Lists | None, modern: bool, action: Action) -> None:
    """Stable in the modern era, by session in the legacy one, unless the deployment says otherwise."""
    assert list_action(lists, modern=modern) is action


EVERY = subjects(list(EXTENSIONS))
METHODS = {
    Subject.CREATE: "sessions/create",
    Subject.DELETE: "sessions/delete",
    Subject.FORK: "sessions/fork",
    Subject.LIST_SESSIONS: "sessions/list",
    Subject.TERMINATE: "terminate",
    Subject.CREATE_SEP1364: "session/create",
    Subject.MISPLACED: "sessions/create",
    Subject.LIST: "tools/list",
    Subject.REPLY: "",
    Subject.OTHER: "tools/call",
}
CARRIED = {"nothing": None, "draft": "draft", "forged": "forged"}
HEADERS = [None, "draft", "transport", "forged"]
POLICIES: list[Any] = ["never", "always", {"tools/call"}]
OPTIONS: list[dict[str, Any]] = [
    {},
    {"legacy_only": True},
    {"sep1364": Sep1364(SEP1364Create(), SEP1364Initialize())},
    {"fail_open": True, "lists": "untouched"},
    {"reads_transport": False},
]
FORWARDED = {Action.FORWARD, Action.PASSTHROUGH, Action.ATTACH, Action.STRIP_SESSION}


def of_subject(about: Subject, carried: str | None, *, advertised: bool = False) -> Message:
    """A message that is about something, and names a session or none."""
    meta = {} if carried is None else {SESSION_KEY: {"sessionId": carried}}
    written: dict[str, Any] = {"jsonrpc": "2.0", "method": METHODS[about], "params": {"_meta": meta}}
    if advertised:
        written["method"] = "initialize"
    if about is not Subject.MISPLACED:
        written["id"] = 1
    if about is Subject.REPLY:
        written = {"jsonrpc": "2.0", "id": 1, "result": {}}
    return message(json.dumps(written))


def decided(text: Message, found: RequestHeaders, given: Rules) -> Decision | Refusal:
    try:
        return decide(text, found, given)
    except Refusal as refusal:
        return refusal


@pytest.mark.parametrize("options", OPTIONS, ids=lambda options: ",".join(options) or "default")
@pytest.mark.parametrize("policy", POLICIES, ids=str)
@pytest.mark.parametrize("about", Subject)
def test_a_decision_is_what_the_table_says(about: Subject, policy: Any, options: dict[str, Any]) -> None:
    """A refusal is raised; a session that is named is opened before every action but that of a response."""
    given = rules(policy, **{"subjects": EVERY, **options})
    for carried, modern in itertools.product(CARRIED.values(), (False, True)):
        text = of_subject(about, carried)
        outcome = decided(text, headers(modern=modern), given)
        if given.legacy_only and modern:
            assert isinstance(outcome, Refusal)
            assert outcome.reason in {"modern_era", "discovery_refused"}
            continue
        row = TABLE[subject_of(text, given)]
        session = carried if about is not Subject.REPLY else None
        requires = about is not Subject.LIST if policy == "always" else METHODS[about] in policy
        lacks = SessionPresence.REQUIRED_BUT_MISSING if requires else SessionPresence.NOTHING
        planned = row[SessionPresence.SESSION if session is not None else lacks]
        if not isinstance(planned, Action):
            assert isinstance(outcome, Refusal)
            assert outcome.reason == planned
        else:
            assert isinstance(outcome, Decision)
            assert outcome.action is (list_action(given.lists, modern=modern) if planned is Action.LIST else planned)
            named = None if outcome.metadata is None else outcome.metadata.session_id
            assert named == session
            may_go_on = outcome.action in FORWARDED and lacks is SessionPresence.NOTHING
            assert outcome.fail_open is (given.fail_open and named is not None and may_go_on)


@pytest.mark.parametrize("policy", POLICIES, ids=str)
@pytest.mark.parametrize("about", Subject)
def test_a_cookie_stands_for_a_session_where_nothing_else_names_one(about: Subject, policy: Any) -> None:
    """It is what the table says of a session, but for what concerns sessions; and nothing is echoed."""
    given = rules(policy, subjects=EVERY)
    for carried, header in itertools.product(CARRIED.values(), (None, "transport")):
        text = of_subject(about, carried)
        outcome = decided(text, headers(header, modern=True, cookie="cookie"), given)
        without = decided(text, headers(header, modern=True), given)
        found = subject_of(text, given)
        if carried is not None or header is not None or found in ABOUT_SESSIONS or found is Subject.REPLY:
            assert str(outcome) == str(without)
        else:
            action = Action.PASSTHROUGH if found is Subject.LIST else Action.ATTACH
            assert outcome == Decision(action, SessionMetadata("cookie"), kind=COOKIE)


@pytest.mark.parametrize(
    ("method", "reason"), [("server/discover", "discovery_refused"), ("initialize", "modern_era"), ("", "modern_era")]
)
def test_the_modern_era_is_refused_as_clients_understand_it(method: str, reason: str) -> None:
    """Those that have just asked fall back at an unknown method, and some at nothing else."""
    with refused(reason):
        decide(
            message(f'{{"jsonrpc":"2.0","id":1,"method":"{method}"}}'), headers(modern=True), rules(legacy_only=True)
        )


class TestWhatTheHeaderIs:
    def test_it_names_a_transport_session_beside_the_other(self) -> None:
        """Both are opened; what creates a session is not about the one in the header."""
        called = decide(of_subject(Subject.OTHER, "draft"), headers("transport"), rules())
        assert (called.action, called.header_token) == (Action.ATTACH, "transport")
        created = decide(of_subject(Subject.CREATE, None), headers("transport"), rules())
        assert (created.action, created.header_token) == (Action.CREATE, "transport")

    def test_an_initialize_begins_anew(self) -> None:
        found = decide(of_subject(Subject.OTHER, None, advertised=True), headers("transport"), rules())
        assert found == PASS

    @pytest.mark.parametrize("kind", ["draft", "forged"])
    def test_it_is_a_mirror_where_none_can_be_named(self, kind: str) -> None:
        with refused("session_header_alone"):
            decide(of_subject(Subject.OTHER, None), headers(kind), rules(reads_transport=False))

    def test_beside_metadata_of_the_same_session_it_is_a_mirror(self) -> None:
        """Though a header could name a transport session here; and neither it nor its absence contradicts."""
        for header in ("draft", None):
            mirrored = decide(of_subject(Subject.OTHER, "draft"), headers(header), rules())
            assert (mirrored.action, mirrored.header_token, mirrored.contradicts) == (Action.ATTACH, None, False)

    def test_where_no_dialect_has_it_a_field_is_not_read(self) -> None:
        odd = message('{"jsonrpc":"2.0","id":1,"method":"tools/call","sessionId":7}')
        assert decide(odd, headers("transport"), rules()).header_token == "transport"

    def test_across_the_bridge_it_names_a_session_beside_one_alone(self) -> None:
        """Any other session of a field is mirrored in the header, or contradicted."""
        crossing = rules(
            bridges=True, sep1364=Sep1364(SEP1364Create(), None), kind_of={"a": FIELD, "b": COEXISTING}.get
        )
        for field, header_token, contradicts in (("a", None, True), ("b", "c", False)):
            text = message(f'{{"jsonrpc":"2.0","id":1,"method":"tools/call","sessionId":"{field}"}}')
            found = decide(text, headers("c"), crossing)
            assert (found.header_token, found.contradicts) == (header_token, contradicts)

    def test_beside_metadata_and_a_field_it_names_the_same_session(self) -> None:
        both = rules(sep1364=Sep1364(SEP1364Create(), None))
        text = f'"params":{{"_meta":{{"{SESSION_KEY}":{{"sessionId":"a"}}}}}}'
        called = message(f'{{"jsonrpc":"2.0","id":1,"method":"tools/call","sessionId":"a",{text}}}')
        assert decide(called, headers("a"), both).action is Action.ATTACH
        with refused("session_header_mismatch"):
            decide(called, headers("b"), both)

    def test_a_field_names_no_session_of_the_draft(self) -> None:
        both = rules(sep1364=Sep1364(SEP1364Create(), None), kind_of={"a": SESSION}.get)
        for named in "ab":  # a session of the draft, and one that is not authentic
            with refused("token_kind"):
                decide(message(f'{{"jsonrpc":"2.0","id":1,"method":"a","sessionId":"{named}"}}'), headers(named), both)

    def test_a_fork_is_of_a_session_in_metadata(self) -> None:
        both = rules(subjects=EVERY, sep1364=Sep1364(SEP1364Create(), None), kind_of={"a": FIELD}.get)
        with refused("session_missing"):
            decide(message('{"jsonrpc":"2.0","id":1,"method":"sessions/fork","sessionId":"a"}'), headers("a"), both)


class TestThePolicy:
    @pytest.mark.parametrize(
        ("require", "text", "needs"),
        [
            ({"tools/call": ["buy"]}, '"id":1,"method":"tools/call","params":{"name":"buy"}', True),
            ({"tools/call": ["buy"]}, '"id":1,"method":"tools/call","params":{"name":"look"}', False),
            ("always", '"method":"notifications/progress"', False),
            ("always", '"id":1,"method":"notifications/progress"', True),
        ],
    )
    def test_it_is_asked_for_the_name_and_whether_there_is_an_id(self, require: Any, text: str, needs: bool) -> None:
        called = message(f'{{"jsonrpc":"2.0",{text}}}')
        with refused("required") if needs else nullcontext():
            assert decide(called, headers(), rules(require)) == PASS

    @pytest.mark.parametrize("about", [Subject.REPLY, Subject.LIST_SESSIONS])
    def test_what_is_about_no_session_needs_none_where_a_dialect_requires_one(self, about: Subject) -> None:
        """SEP-1364's `required` is for the other requests."""
        requiring = rules(subjects=EVERY, sep1364=Sep1364(SEP1364Create(required=True), None))
        assert decide(of_subject(about, None), headers(), requiring).metadata is None
        with refused("required"):
            decide(of_subject(Subject.OTHER, None), headers(), requiring)


class TestABatch:
    def test_a_response_in_it_needs_no_session(self) -> None:
        requiring = rules(sep1364=Sep1364(SEP1364Create(required=True), None))
        assert involves_session(of_subject(Subject.REPLY, None), requiring) is False
        assert involves_session(of_subject(Subject.OTHER, None), requiring) is True

    @pytest.mark.parametrize(
        ("about", "carried", "require", "speaks"),
        [
            (Subject.OTHER, None, "never", False),
            (Subject.OTHER, None, "always", True),
            (Subject.OTHER, "draft", "never", True),
            (Subject.DELETE, None, "never", True),
            (Subject.REPLY, None, "always", False),
        ],
    )
    def test_it_passes_unless_an_item_concerns_sessions(
        self, about: Subject, carried: str | None, require: Any, speaks: bool
    ) -> None:
        assert involves_session(of_subject(about, carried), rules(require)) is speaks


class TestHeader:
    @pytest.mark.parametrize("ids", [["a", "a"], ["a", OURS], [OURS, OURS], ["", "", ""]])
    def test_two_headers_are_refused(self, ids: list[str]) -> None:
        """A reader of the other one sees another session."""
        with refused("duplicate_session_header"):
            single_header(ids)

    @pytest.mark.parametrize("id_", ["", OURS, "the-server-s-own"])
    def test_the_only_header_counts_whatever_it_is(self, id_: str) -> None:
        assert single_header([id_]) == id_


class TestEnvelope:
    VERSION = "2026-07-28"
    FULL = f'"io.modelcontextprotocol/protocolVersion":"{VERSION}","io.modelcontextprotocol/clientCapabilities":{{}}'

    def check(self, meta: str, *methods: str, version: str | None = VERSION) -> None:
        text = f'{{"jsonrpc":"2.0","id":1,"method":"sessions/create","params":{{"_meta":{meta}}}}}'
        check_envelope(message(text), version=version, methods=list(methods))

    def test_a_whole_envelope_passes(self) -> None:
        self.check(f"{{{self.FULL}}}", "sessions/create")

    @pytest.mark.parametrize(
        "meta",
        [
            "null",
            "{}",
            '{"io.modelcontextprotocol/protocolVersion":"2026-07-28"}',
            '{"io.modelcontextprotocol/clientCapabilities":{}}',
            '{"io.modelcontextprotocol/protocolVersion":1,"io.modelcontextprotocol/clientCapabilities":{}}',
        ],
    )
    def test_an_incomplete_envelope_is_refused(self, meta: str) -> None:
        with refused("envelope_incomplete"):
            self.check(meta, "sessions/create")

    @pytest.mark.parametrize("version", [None, "2099-01-01", ""])
    def test_the_version_must_be_the_header_s(self, version: str | None) -> None:
        """Otherwise two layers would take the request for two eras."""
        with refused("version_header_mismatch"):
            self.check(f"{{{self.FULL}}}", "sessions/create", version=version)

    @pytest.mark.parametrize("methods", [(), ("sessions/delete",), ("sessions/create", "sessions/create")])
    def test_the_method_must_be_the_header_s(self, methods: tuple[str, ...]) -> None:
        with refused("method_header_mismatch"):
            self.check(f"{{{self.FULL}}}", *methods)


def test_every_extension_is_a_method_about_sessions() -> None:
    for name, about in EXTENSIONS.items():
        assert about.value == f"sessions/{name}"
        assert about.value not in SUBJECTS
        assert about in ABOUT_SESSIONS


def test_what_is_offered_is_read_and_advertised() -> None:
    offered = decision.offered({"fork"}, tracked=True)
    assert decision.subjects(offered) == {**SUBJECTS, "sessions/fork": Subject.FORK}
    assert json.loads(decision.settings("some", offered)) == {"required": "some", **OFFERED}


def test_what_needs_records_is_offered_where_there_are_some() -> None:
    """A list of sessions that nobody wrote down would be empty."""
    every = [decision.offered(EXTENSIONS, tracked=tracked) for tracked in (False, True)]
    assert every == [["fork"], ["fork", "list"]]
    assert json.loads(decision.settings("some", every[1])) == {
        "required": "some",
        **OFFERED,
        "list": True,
    }


def test_what_is_not_offered_is_not_ours() -> None:
    assert decision.offered((), tracked=True) == []
    assert decision.subjects([]) == SUBJECTS
    assert decision.settings("never", []) == b'{"required":"never"}'
