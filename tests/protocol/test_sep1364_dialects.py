"""The two alternatives of SEP-1364 as rules: what is of which, what each method is about, and what needs a session."""

from __future__ import annotations

from typing import Any

import pytest
from deciding import rules
from msgspec import Raw
from reasons import refused

from mcp_sessions import ConfigurationError, SEP1364Create, SEP1364Initialize
from mcp_sessions._protocol.decision import decide, subject_of
from mcp_sessions._protocol.draft import SessionMetadata, Subject
from mcp_sessions._protocol.headers import RequestHeaders
from mcp_sessions._protocol.jsonrpc import Message, parse
from mcp_sessions._protocol.sep1364 import Sep1364, agreed, agrees_on_version, field, mirrors, required_capabilities
from mcp_sessions._session.claims import COEXISTING, FIELD, SESSION, TRANSPORT, Kind

BOTH = Sep1364(SEP1364Create(), SEP1364Initialize())
NEITHER = Sep1364(None, None)


def message(method: str, members: str = "", *, id: str = '"id":1,') -> Message:
    return parse(f'{{"jsonrpc":"2.0",{id}"method":"{method}"{members}}}'.encode())


@pytest.mark.parametrize(
    ("method", "members", "about"),
    [
        ("session/create", "", Subject.CREATE_SEP1364),
        ("sessions/create", ',"params":{"capabilities":{}}', Subject.CREATE_SEP1364),
        ("sessions/create", ',"params":{"sessionId":"a"}', Subject.CREATE_SEP1364),
        ("sessions/create", ',"params":{"other":1}', None),
        ("sessions/create", "", None),
        ("sessions/delete", "", Subject.DELETE),
        ("session/delete", "", Subject.DELETE),
        ("terminate", "", Subject.TERMINATE),
        ("initialize", ',"sessionId":"a"', None),
        ("tools/list", ',"sessionId":"a"', None),
    ],
)
def test_what_a_method_is_about(method: str, members: str, about: Subject | None) -> None:
    """None leaves it to the table of methods; without the dialects all is left to it."""
    assert BOTH.subject(message(method, members)) is about
    assert NEITHER.subject(message(method, members)) is None


@pytest.mark.parametrize("method", ["session/create", "sessions/delete", "session/delete", "terminate"])
def test_a_notification_is_out_of_place(method: str) -> None:
    assert BOTH.subject(message(method, id="")) is Subject.MISPLACED


@pytest.mark.parametrize(
    "method", ["sessions/create", "session/create", "sessions/delete", "session/delete", "terminate"]
)
def test_methods_about_sessions_may_name_one_in_their_params(method: str) -> None:
    assert BOTH.named_id(message(method, ',"params":{"sessionId":"a"}')) == "a"
    assert BOTH.named_id(message("tools/call", ',"params":{"sessionId":"a"}')) is None
    assert NEITHER.named_id(message(method, ',"params":{"sessionId":"a"}')) is None


def test_metadata_and_field_name_one_session() -> None:
    in_meta = SessionMetadata("a", "state")
    assert BOTH.requested_session(message("m", ',"sessionId":"a"'), in_meta) is in_meta
    assert BOTH.requested_session(message("m"), in_meta) is in_meta
    assert BOTH.requested_session(message("m", ',"sessionId":"a"'), None) == SessionMetadata("a", None)
    assert BOTH.requested_session(message("m", ',"sessionId":null'), None) is None
    with refused("session_field_mismatch"):
        BOTH.requested_session(message("m", ',"sessionId":"b"'), in_meta)


def test_a_server_without_sessions_finds_none() -> None:
    sessionless = Sep1364(None, SEP1364Initialize(sessionless=True))
    assert sessionless.requested_session(message("m"), None) is None
    with refused("sessionless"):
        sessionless.requested_session(message("m", ',"sessionId":"a"'), None)


@pytest.mark.parametrize(
    ("method", "needs"),
    [
        ("initialize", False),
        ("notifications/initialized", False),
        ("ping", False),
        ("sessions/create", False),
        ("sessions/delete", False),
        ("tools/list", True),
        ("tools/call", True),
        ("notifications/progress", True),
        ("server/discover", True),
    ],
)
def test_what_needs_a_session_where_sessions_are_required(method: str, needs: bool) -> None:
    said = message(method)
    requiring = Sep1364(SEP1364Create(required=True), None)
    assert requiring.requires(said, subject_of(said, rules())) is needs
    assert not BOTH.requires(said, subject_of(said, rules()))
    assert not NEITHER.requires(said, subject_of(said, rules()))


@pytest.mark.parametrize(
    ("asked", "spoken", "agrees"),
    [
        ('{"protocolVersion":"456"}', '{"protocolVersion":"456"}', True),
        ('{"protocolVersion":"456"}', '{"protocolVersion":"4\\u00356"}', True),
        ('{"protocolVersion":"456"}', '{"protocolVersion":"455"}', False),
        ("{}", "{}", False),
        ('{"protocolVersion":"456"}', "{}", False),
    ],
)
def test_whether_the_version_was_agreed_upon_at_once(asked: str, spoken: str, agrees: bool) -> None:
    """Then the client need not confirm it."""
    answer = f'{{"jsonrpc":"2.0","id":1,"result":{spoken}}}'.encode()
    assert agrees_on_version(message("initialize", f',"params":{asked}'), answer) is agrees


TWICE = [[SEP1364Create(), SEP1364Create()], [SEP1364Initialize(), SEP1364Initialize()]]
REMEDY = r"dialects=\[SEP1364Create\(\), SEP1364Initialize\(\)\]; the draft and the transport header need no naming$"


@pytest.mark.parametrize("option", ["draft", [SEP1364Create], *TWICE, None, 7, [None]])
def test_a_wrong_option_says_what_to_write(option: Any) -> None:
    with pytest.raises(ConfigurationError, match=REMEDY):
        Sep1364.of(option)


def test_a_right_option_is_taken_in_any_order() -> None:
    assert Sep1364.of(()) is None
    assert Sep1364.of((SEP1364Initialize(), SEP1364Create())) == BOTH
    assert Sep1364.of([SEP1364Create()]) == Sep1364(SEP1364Create(), None)


@pytest.mark.parametrize("cookie", [None, "a session"])
def test_where_sessions_are_required_a_message_has_to_name_one(cookie: str | None) -> None:
    """In its body: a cookie does not count, which a client of the dialect does not know of."""
    requiring = rules(sep1364=Sep1364(SEP1364Create(required=True), None), kind_of={"a": FIELD}.get)
    with refused("required"):
        decide(message("tools/call"), RequestHeaders([], cookie=cookie), requiring)
    mirrored = RequestHeaders([(b"mcp-session-id", b"a")], cookie=cookie)
    assert decide(message("tools/call", ',"sessionId":"a"'), mirrored, requiring).metadata == SessionMetadata("a", None)


def test_what_cannot_be_read_is_refused() -> None:
    with refused("field_not_string"):
        field(message("m", ',"sessionId":7'))
    with refused("capabilities_missing"):
        required_capabilities(message("sessions/create", ',"params":{"capabilities":null}'))
    assert required_capabilities(message("sessions/create", ',"params":{"capabilities":{}}')) == Raw(b"{}")


STATING = ',"params":{"capabilities":{"experimental":{"sessions":{}}}}'


@pytest.mark.parametrize(
    ("dialects", "said", "modern", "begins"),
    [
        (BOTH, message("initialize"), False, True),
        (BOTH, message("initialize"), True, False),
        (BOTH, message("initialize", id=""), False, False),
        (BOTH, message("initialize", STATING), False, False),
        (BOTH, message("tools/call"), False, False),
        (Sep1364(SEP1364Create(), None), message("initialize"), False, False),
        (Sep1364(None, SEP1364Initialize(sessionless=True)), message("initialize"), False, False),
    ],
)
def test_only_a_handshake_of_the_second_alternative_begins_a_session(
    dialects: Sep1364, said: Message, modern: bool, begins: bool
) -> None:
    """Not one of a client that creates sessions itself, nor where there are none."""
    assert dialects.begins_session(said, modern=modern) is begins


@pytest.mark.parametrize(
    ("dialects", "method", "members", "body"),
    [
        (BOTH, "m", ',"sessionId":"a"', '{"jsonrpc":"2.0","id":1,"method":"m"}'),
        (BOTH, "m", "", None),
        (
            BOTH,
            "initialize",
            ',"params":{}',
            '{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"capabilities":{}}}',
        ),
        (Sep1364(None, SEP1364Initialize()), "initialize", ',"params":{}', None),
    ],
)
def test_servers_of_today_get_what_they_can_read(
    dialects: Sep1364, method: str, members: str, body: str | None
) -> None:
    """Without the field, and with capabilities; what needs no change is the same object."""
    said = message(method, members)
    standard = dialects.outgoing(said)
    assert (standard is said) is (body is None)
    assert (standard.body, standard.field) == (said.body if body is None else body.encode(), None)


# --- the field, and the header that mirrors it -----------------------------------------------------


@pytest.mark.parametrize(
    ("members", "said"),
    [
        ("", None),
        (',"sessionId":null', None),
        (',"sessionId":"a"', "a"),
        (',"sess\\u0069onId":"\\u0061"', "a"),
        (',"sessionId":""', ""),
        (',"params":{"sessionId":"a"}', None),
    ],
)
def test_the_field_is_a_text_beside_the_method(members: str, said: str | None) -> None:
    assert field(message("m", members)) == said


def test_places_that_agree_name_one_session() -> None:
    assert agreed() is None
    assert agreed(None, None) is None
    assert agreed("a", None, "a") == "a"
    with refused("session_field_mismatch"):
        agreed("a", "b", None)


@pytest.mark.parametrize(
    ("kind", "header", "is_ours"),
    [
        (FIELD, "this", True),
        (TRANSPORT, "this", True),
        (SESSION, "this", True),
        (None, "this", False),
        (COEXISTING, "the server's", False),
    ],
)
def test_the_header_mirrors_the_field_or_is_the_server_s_own(kind: Kind | None, header: str, is_ours: bool) -> None:
    """The second for sessions alone that began beside a transport session of the server's."""
    assert mirrors("this", kind, header, is_ours=is_ours)


@pytest.mark.parametrize(
    ("kind", "header", "is_ours"),
    [
        (FIELD, "other", True),
        (FIELD, "the server's", False),
        (TRANSPORT, "other", True),
        (None, "other", False),
        (COEXISTING, "this", True),
        (COEXISTING, "other", True),
    ],
)
def test_any_other_header_contradicts(kind: Kind | None, header: str, is_ours: bool) -> None:
    assert not mirrors("this", kind, header, is_ours=is_ours)
    with refused("field_header_missing"):
        mirrors("this", kind, None, is_ours=False)
