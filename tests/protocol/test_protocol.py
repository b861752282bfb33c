"""The decision table, read line by line, and the checks on headers that stand before it."""

from __future__ import annotations

import itertools

import pytest
from clients import SECRET, START
from reasons import refused

from mcp_sessions._protocol import draft
from mcp_sessions._protocol.decision import (
    LIST_METHODS,
    LISTS,
    SUBJECTS,
    TABLE,
    Carries,
    Lists,
    Step,
    Subject,
    attended,
    check_envelope,
    decide,
    list_step,
    ours_of,
    subject,
)
from mcp_sessions._protocol.jsonrpc import Message, MessageKind, parse
from mcp_sessions._session.claims import SESSION, Claims
from mcp_sessions._tokens.jwt import Tokens
from mcp_sessions._tokens.keys import KeyRing

RING = KeyRing([SECRET])
OURS = Tokens(issuer="i", audience="a").mint(
    RING, Claims(kind=SESSION, jti="A" * 22, issued_at=START, expires_at=START + 60, kid=RING.signing.kid)
)
FORGED = OURS.rpartition(".")[0] + ".AAAA"


def message(text: str) -> Message:
    parsed = parse(text.encode())
    assert isinstance(parsed, Message)
    return parsed


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
    """Methods are compared exactly; only `sessions/*` needs an id."""
    assert subject(message(f'{{"jsonrpc":"2.0",{text}}}')) is about


def test_the_table_has_no_hole() -> None:
    """Every subject meets everything that a message can carry."""
    assert set(TABLE) == set(Subject)
    assert all(set(row) == set(Carries) for row in TABLE.values())


@pytest.mark.parametrize(("about", "carries"), list(itertools.product(Subject, Carries)))
def test_a_decision_is_what_the_table_says(about: Subject, carries: Carries) -> None:
    """A refusal is raised, a step returned."""
    planned = TABLE[about][carries]
    if isinstance(planned, str):
        with refused(planned):
            decide(about, carries)
    else:
        assert decide(about, carries) is planned


@pytest.mark.parametrize(
    ("about", "carries", "outcome"),
    [
        (Subject.CREATE, Carries.SESSION, "session_on_create"),
        (Subject.CREATE, Carries.TOO_LITTLE, Step.CREATE),
        (Subject.DELETE, Carries.NOTHING, "session_missing"),
        (Subject.OTHER, Carries.NOTHING, Step.FORWARD),
        (Subject.OTHER, Carries.TOO_LITTLE, "required"),
        (Subject.OTHER, Carries.SESSION, Step.ATTACH),
        (Subject.REPLY, Carries.TOO_LITTLE, Step.FORWARD),
    ],
)
def test_the_rules_of_the_draft(about: Subject, carries: Carries, outcome: Step | str) -> None:
    """What the draft says in words, so that a slip in the table is noticed."""
    assert TABLE[about][carries] == outcome


@pytest.mark.parametrize(
    ("lists", "modern", "step"),
    [
        (None, True, Step.STABLE),
        (None, False, Step.ATTACH),
        *((name, modern, step) for name, step in LISTS.items() for modern in (False, True)),
    ],
)
def test_lists_follow_the_option_or_the_era(lists: Lists | None, modern: bool, step: Step) -> None:
    """Stable in the modern era, by session in the legacy one, unless the deployment says otherwise."""
    assert list_step(lists, modern=modern) is step


@pytest.mark.parametrize("kind", MessageKind)
@pytest.mark.parametrize("method", sorted({"", "ping", "tools/call", draft.CREATE, *LIST_METHODS} - attended(SUBJECTS)))
def test_what_is_not_attended_to_passes_as_the_table_has_it(method: str, kind: MessageKind) -> None:
    """Where nothing needs a session, a message without one is not put to the table unless its method is attended to."""
    assert decide(subject(Message(b"", kind, method)), Carries.NOTHING) is Step.FORWARD


class TestHeader:
    @pytest.mark.parametrize("ids", [[], [""], ["the-server-s-own"], ["a.b.c"], [OURS[5:]]])
    def test_what_is_not_ours_is_none_of_our_business(self, ids: list[str]) -> None:
        """A transport session of the wrapped server keeps its header."""
        assert ours_of(ids) is None

    @pytest.mark.parametrize("ours", [OURS, FORGED])
    def test_what_is_ours_is_told_by_the_envelope(self, ours: str) -> None:
        """A forged token is ours too: it must not reach the server's logs."""
        assert ours_of([ours]) == ours

    @pytest.mark.parametrize("ids", [["a", "a"], ["a", OURS], [OURS, OURS], ["", "", ""]])
    def test_two_headers_are_refused(self, ids: list[str]) -> None:
        """Whoever reads the other one sees another session."""
        with refused("duplicate_session_header"):
            ours_of(ids)


class TestEnvelope:
    VERSION = "2026-07-28"
    FULL = f'"io.modelcontextprotocol/protocolVersion":"{VERSION}","io.modelcontextprotocol/clientCapabilities":{{}}'

    def check(self, meta: str, *methods: str, version: str | None = VERSION) -> None:
        text = f'{{"jsonrpc":"2.0","id":1,"method":"sessions/create","params":{{"_meta":{meta}}}}}'
        check_envelope(message(text), version=version, methods=methods)

    def test_a_whole_envelope_passes(self) -> None:
        """Version and method stand in the header and in the body, and are equal."""
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
        """Version as a string, and capabilities."""
        with refused("envelope_incomplete"):
            self.check(meta, "sessions/create")

    @pytest.mark.parametrize("version", [None, "2099-01-01", ""])
    def test_the_version_must_be_the_header_s(self, version: str | None) -> None:
        """Otherwise two layers would take the request for two eras."""
        with refused("version_header_mismatch"):
            self.check(f"{{{self.FULL}}}", "sessions/create", version=version)

    @pytest.mark.parametrize("methods", [(), ("sessions/delete",), ("sessions/create", "sessions/create")])
    def test_the_method_must_be_the_header_s(self, methods: tuple[str, ...]) -> None:
        """Missing, different and doubled are refused alike."""
        with refused("method_header_mismatch"):
            self.check(f"{{{self.FULL}}}", *methods)
