"""What a client calls its conversation is found, made safe to show, and never becomes a session."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import FrozenInstanceError
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from msgspec import Raw
from opentelemetry import baggage, context
from opentelemetry.baggage.propagation import W3CBaggagePropagator
from sources import claims

from mcp_sessions._errors import ConfigurationError, SessionNotFound
from mcp_sessions._protocol.headers import RequestHeaders
from mcp_sessions._protocol.jsonrpc import SESSION_KEY, parse
from mcp_sessions._protocol.labels import (
    DEFAULT_CHAIN,
    MAX_BAGGAGE,
    MAX_CHARS,
    correlation_of,
    correlation_sources,
)
from mcp_sessions._session.claims import Correlation, looks_like_session_id
from mcp_sessions._session.session import Session
from mcp_sessions._tokens.jwt import Tokens
from mcp_sessions._tokens.keys import KeyRing

NOW = 1_800_000_000
RING = KeyRing(["vB1kTn0RzJmYwq3uXo7sLd5cHf9aGe2i"])
TOKENS = Tokens(issuer="mcp-sessions", audience="mcp-sessions")
TOKEN = TOKENS.mint(RING, claims(jti="A" * 22))


def found(meta: Mapping[str, Any] | None, *sources: str, **headers: str) -> Correlation | None:
    """What is found in a request of that `_meta` and those headers; of the default sources where none are given."""
    params = {} if meta is None else {"_meta": meta}
    message = parse(json.dumps({"jsonrpc": "2.0", "id": 1, "method": "ping", "params": params}).encode())
    head = RequestHeaders(
        [(name.replace("_", "-").encode(), value.encode("latin-1")) for name, value in headers.items()]
    )
    return correlation_of(sources or DEFAULT_CHAIN, message.meta, head.first)


def name(meta: Mapping[str, Any] | None, *sources: str, **headers: str) -> str | None:
    correlation = found(meta, *sources, **headers)
    return None if correlation is None else correlation.id


# --- each source by itself -----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("meta", "source"),
    [
        ({"baggage": "gen_ai.conversation.id=c1"}, "baggage:gen_ai.conversation.id"),
        ({"baggage": "userId=alice,session.id=c1"}, "baggage:session.id"),
        ({"openai/session": "c1"}, "meta:openai/session"),
        ({"vscode.conversationId": "c1", "vscode.requestId": "r"}, "meta:vscode.conversationId"),
        ({"ai.opencode/sessionID": "c1"}, "meta:ai.opencode/sessionID"),
        ({"antigravity.google/conversation_id": "c1"}, "meta:antigravity.google/conversation_id"),
        ({"threadId": "c1", "x-codex-turn-metadata": {"session_id": "s"}}, "meta:threadId"),
        ({"agent-session-id": "c1"}, "meta:agent-session-id"),
        ({"goose-session-id": "c1"}, "meta:goose-session-id"),
        ({"a2a/taskId": "t", "a2a/contextId": "c1"}, "meta:a2a/contextId"),
        ({"contextId": "c1"}, "meta:contextId"),
    ],
)
def test_what_hosts_send_in_meta_is_found(meta: dict[str, Any], source: str) -> None:
    """One by one, each among the other members that its host sends, and the answer says where it stood."""
    assert found({"progressToken": 3, **meta}) == Correlation("c1", source)


def test_a_host_s_header_is_found() -> None:
    assert found(None, x_openai_session="c1") == Correlation("c1", "header:x-openai-session")


def test_each_source_of_the_default_chain_is_tried_above() -> None:
    assert len(DEFAULT_CHAIN) == len(set(DEFAULT_CHAIN)) == 12


def test_a_header_is_found_by_its_name() -> None:
    """However its name is spelt in the option, and the first of several copies."""
    assert found(None, "header:X-Conversation-Id", x_conversation_id="c1") == Correlation(
        "c1", "header:X-Conversation-Id"
    )
    head = RequestHeaders([(b"x-chat", b"first"), (b"x-chat", b"second")])
    assert correlation_of(["header:x-chat"], None, head.first) == Correlation("first", "header:x-chat")


# --- the order -----------------------------------------------------------------------------------


def test_the_first_source_that_says_something_wins() -> None:
    meta = {"contextId": "a2a", "openai/session": "chatgpt"}
    assert name(meta) == "chatgpt"
    assert name(meta, "meta:contextId", "meta:openai/session") == "a2a"
    assert name(meta, "header:x-chat", "meta:contextId", x_chat="header") == "header"


def test_what_is_not_fit_does_not_hide_what_is() -> None:
    assert name({"openai/session": "a\nb", "contextId": "c1"}) == "c1"


def test_a_request_that_says_nothing_has_no_correlation() -> None:
    assert found(None) is None
    assert found({}) is None
    assert found({"progressToken": 1, SESSION_KEY: {"sessionId": TOKEN}}) is None


# --- what is fit to be shown ---------------------------------------------------------------------


@pytest.mark.parametrize("size", [1, MAX_CHARS])
def test_a_name_of_that_length_passes(size: int) -> None:
    assert name({"contextId": "x" * size}) == "x" * size
    assert name({"contextId": "\u00e9" * size}) == "\u00e9" * size
    assert name({"contextId": "\U0001f642" * (size // 2 or 1)}) is not None


@pytest.mark.parametrize("text", ["", "x" * (MAX_CHARS + 1), "x" * 100_000])
def test_an_empty_name_or_one_too_long_is_left_out(text: str) -> None:
    """It is not cut: two names could become one."""
    assert name({"contextId": text}) is None
    assert name(None, "header:x-chat", x_chat=text) is None
    assert name({"baggage": f"session.id={text}"}) is None


@pytest.mark.parametrize(
    "flaw",
    [
        *("\n", "\r", "\t", "\0", "\x1b[31m", "\x7f", "\x85"),
        *("\u2028", "\u2029", "\u200b", "\u202e", "\ufeff", "\ue000"),
    ],
)
def test_what_would_change_a_log_s_lines_or_look_never_passes(flaw: str) -> None:
    """Control characters, line breaks of every kind, what turns the direction of writing, what is invisible."""
    assert name({"contextId": f"a{flaw}b"}) is None
    escaped = "".join(f"%{byte:02x}" for byte in flaw.encode())
    assert name({"baggage": f"session.id=a{escaped}b"}) is None


@pytest.mark.parametrize("value", [None, 7, 1.5, True, [], ["c1"], {}, {"id": "c1"}, "   "])
def test_only_a_string_that_is_not_blank_is_a_name(value: object) -> None:
    assert name({"contextId": "my chat"}) == "my chat"
    assert name({"contextId": value}) is None
    assert name({"baggage": value}) is None


@pytest.mark.parametrize("text", [TOKEN, f"Bearer {TOKEN}", f"x{TOKEN}y"])
def test_a_session_id_of_ours_never_passes(text: str) -> None:
    """From no source: it is a credential, and this goes to logs."""
    assert name({"contextId": text}) is None
    short = f"{TOKEN.partition('.')[0]}.."
    assert len(short) <= MAX_CHARS
    for dressed in (short, f"chat {short}"):
        assert name({"contextId": dressed}) is None
        assert name({"baggage": f"session.id={dressed.replace(' ', '%20')}"}) is None
        assert name(None, "header:x-chat", x_chat=dressed) is None


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=6,
).map(lambda value: json.dumps(value).encode())
keys = st.sampled_from(["baggage", "contextId", "openai/session", SESSION_KEY]) | st.text()
metas = st.none() | st.dictionaries(keys, (json_values | st.binary()).map(Raw), max_size=5)


@given(meta=metas, header=st.none() | st.text())
@example(meta={"contextId": Raw(b'"' + b"\\u0041" * MAX_CHARS + b'"')}, header=None)
@example(meta={"baggage": Raw(b'"session.id=%ff%"'), "contextId": Raw(b"")}, header="")
@example(meta={"baggage": Raw(b'"session.id=%e2%82"')}, header="\ud800")
def test_whatever_is_sent_nothing_is_raised_and_nothing_unfit_passes(
    meta: dict[str, Raw] | None, header: str | None
) -> None:
    correlation = correlation_of([*DEFAULT_CHAIN, "header:any"], meta, lambda name: header)
    if correlation is not None:
        assert 0 < len(correlation.id) <= MAX_CHARS
        assert correlation.id.isprintable()
        assert not looks_like_session_id(correlation.id)
        assert len(correlation.id.splitlines()) == 1


# --- trust never rises ---------------------------------------------------------------------------


def test_a_correlation_has_nothing_that_a_session_has() -> None:
    """No `ref` to find data by, no state, no owner: a name, and where it stood."""
    correlation = Correlation("c1", "meta:contextId")
    public = {attribute for attribute in dir(correlation) if not attribute.startswith("_")}
    assert public == {"id", "source"}
    assert Session not in type(correlation).__mro__
    with pytest.raises(FrozenInstanceError):
        correlation.id = "other"  # type: ignore[misc]


def test_a_correlation_is_not_accepted_as_a_session() -> None:
    """Neither itself nor the name in it, even where it says the very ref of a session that lives."""
    ref = TOKENS.authentic(RING, TOKEN).ref
    correlation = found({"contextId": ref})
    assert correlation == Correlation(ref, "meta:contextId")
    for claimed in (correlation, correlation.id):
        with pytest.raises(SessionNotFound):
            TOKENS.verify(RING, claimed, now=NOW, principal=None)  # type: ignore[arg-type]


# --- the option ----------------------------------------------------------------------------------


@pytest.mark.parametrize("option", [True, DEFAULT_CHAIN, [*DEFAULT_CHAIN], ["meta:contextId"]])
def test_correlation_may_be_on_or_off(option: Any) -> None:
    assert correlation_sources(None) == correlation_sources(False) == ()
    sources = correlation_sources(option)
    assert correlation_of(sources, {"contextId": Raw(b'"c1"')}, lambda name: None) == Correlation(
        "c1", "meta:contextId"
    )


def test_a_member_of_meta_may_have_a_colon_in_its_name() -> None:
    sources = correlation_sources(["meta:urn:chat"])
    assert correlation_of(sources, {"urn:chat": Raw(b'"c1"')}, lambda name: None) == Correlation("c1", "meta:urn:chat")


@pytest.mark.parametrize(
    ("option", "remedy"),
    [
        ("meta:contextId", r"correlate='meta:contextId' must be True, False or a list such as"),
        (b"meta", "must be True, False or a list such as"),
        (1, "must be True, False or a list such as"),
        ([], "must be True, False or a list such as"),
        ({"meta:contextId"}, "must be True, False or a list such as"),
        (
            ["contextId"],
            "'contextId' is not a source; write 'baggage:MEMBER', 'meta:KEY' or 'header:NAME'",
        ),
        (["cookie:chat"], "'cookie:chat' is not a source"),
        (["meta:"], "'meta:' is not a source"),
        (["meta:contextId", 3], "3 is not a source"),
        ([f"meta:{SESSION_KEY}"], "is a credential, and logs would show it; leave it out"),
        (["header:Authorization"], "'header:Authorization' is a credential"),
        (["header:Mcp-Session-Id"], "'header:Mcp-Session-Id' is a credential"),
        (["header:cookie"], "is a credential"),
        (["header:x chat"], "'header:x chat' is not a source"),
        (["baggage:session id"], "'baggage:session id' is not a source"),
    ],
)
def test_a_wrong_option_fails_at_construction_with_the_remedy(option: Any, remedy: str) -> None:
    with pytest.raises(ConfigurationError, match=remedy):
        correlation_sources(option)


# --- baggage as it comes -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("session.id=c1", "c1"),
        ("a=1,session.id=c1,b=2", "c1"),
        (" a = 1 ,\t session.id\t=\tc1 ; ttl=3;secure , b=2", "c1"),
        ("session.id=a=b", "a=b"),
        ("session.id=my%20chat", "my chat"),
        ("session.id=caf%C3%A9", "café"),
        ("session.id=100%", "100%"),
        ("session.id=a+b%2Bc", "a+b+c"),
        ("session.id=%zz", "%zz"),
        ("session.id=old,session.id=new", "new"),
        ("broken,,=,session.id=c1,x", "c1"),
        ("session.id=%ff", None),
        ("session.id=", None),
        ("session.id", None),
        ("Session.Id=c1", None),
        ('session.id="c1"', None),
        ("session.id=c 1", None),
        ("session.id=c1;p=é", None),
        ("xsession.id=c1", None),
        ("Xsession.id=c1", None),
        ("session.id=Xc1X", "Xc1X"),
        ("session.id=c1\n", None),
        ("session.id\n=c1", None),
        ("café=c1", None),
        ("", None),
    ],
)
def test_baggage_is_read_as_its_standard_has_it(text: str, says: str | None) -> None:
    """White space, properties, percent-encoding; what is malformed is passed over, and never repaired."""
    assert name({"baggage": text}, "baggage:session.id") == says


@pytest.mark.parametrize(("size", "says"), [(MAX_BAGGAGE, "c1"), (MAX_BAGGAGE + 1, None)])
def test_baggage_has_a_limit(size: int, says: str | None) -> None:
    text = "session.id=c1,a="
    assert name({"baggage": text.ljust(size, "x")}) == says


@given(st.text(min_size=1, max_size=MAX_CHARS // 4))
def test_what_opentelemetry_writes_is_read(text: str) -> None:
    carrier: dict[str, str] = {}
    W3CBaggagePropagator().inject(carrier, baggage.set_baggage("gen_ai.conversation.id", text, context.Context()))
    written = text.replace(" ", "+")
    assert name({"baggage": carrier["baggage"]}) == (written if written.isprintable() else None)
