"""What clients call their conversations (`correlate=`) and themselves: labels, made safe to show, never sessions."""

import json
from collections.abc import Mapping
from typing import Any

import pytest
from apps import Server, sessions
from clients import INITIALIZE, Client
from hypothesis import example, given
from hypothesis import strategies as st
from msgspec import Raw
from signers import OLD
from sources import claims

from mcp_sessions._errors import ConfigurationError
from mcp_sessions._protocol.headers import RequestHeaders
from mcp_sessions._protocol.jsonrpc import CLIENT_INFO_KEY, SESSION_KEY
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

TOKEN = Tokens(issuer="mcp-sessions", audience="mcp-sessions").mint(KeyRing([OLD]), claims(jti="A" * 22))


def found(meta: Mapping[str, Any] | None, *sources: str, **headers: str) -> Correlation | None:
    """What is found in a request of that `_meta` and those headers; of the default sources where none are given."""
    head = RequestHeaders([(name.replace("_", "-").encode(), value.encode()) for name, value in headers.items()])
    raw = None if meta is None else {name: Raw(json.dumps(value).encode()) for name, value in meta.items()}
    return correlation_of(correlation_sources(sources or True), raw, head.first)


def name(meta: Mapping[str, Any] | None, *sources: str, **headers: str) -> str | None:
    correlation = found(meta, *sources, **headers)
    return None if correlation is None else correlation.id


HOSTS = [
    *("openai/session", "vscode.conversationId", "ai.opencode/sessionID", "antigravity.google/conversation_id"),
    *("threadId", "agent-session-id", "goose-session-id", "a2a/contextId", "contextId"),
]


def test_what_hosts_send_is_found() -> None:
    """Among the other members that they send, and the answer says where it stood."""
    for key in HOSTS:
        meta = {"progressToken": 3, "x-codex-turn-metadata": {"session_id": "s"}, key: "c1"}
        assert found(meta) == Correlation("c1", f"meta:{key}")
    for key in ("gen_ai.conversation.id", "session.id"):
        assert found({"baggage": f"userId=alice,{key}=c1"}) == Correlation("c1", f"baggage:{key}")
    assert found(None, x_openai_session="c1") == Correlation("c1", "header:x-openai-session")
    assert len(DEFAULT_CHAIN) == len(HOSTS) + 3


CHOICE = {"contextId": "a2a", "openai/session": "chatgpt", "urn:chat": "urn"}


@pytest.mark.parametrize(
    ("meta", "sources", "says"),
    [
        (CHOICE, [], "chatgpt"),
        (CHOICE, ["header:X-Chat", "meta:contextId"], "first"),
        (CHOICE, ["meta:urn:chat"], "urn"),
        ({**CHOICE, "openai/session": "a\nb"}, [], "a2a"),
        ({"progressToken": 1, SESSION_KEY: {"sessionId": TOKEN}}, [], None),
    ],
)
def test_the_first_source_that_says_something_fit_wins(meta: Any, sources: list[str], says: str | None) -> None:
    """However a header's name is spelt in the option."""
    assert name(meta, *sources, x_chat="first") == says


UNFIT = [
    *("", "x" * (MAX_CHARS + 1), "   "),  # none is cut: two names could become one
    *(f"a{flaw}b" for flaw in ("\n", "\x1b[31m", "\u2028", "\u202e")),
    *(f"Bearer {TOKEN}", f"x{TOKEN}y", f"{TOKEN.partition('.')[0]}.."),  # a credential, and this goes to logs
]


@pytest.mark.parametrize(
    ("text", "fit"),
    [
        *((text, True) for text in ("my chat", "\u00e9" * MAX_CHARS, "\U0001f642" * (MAX_CHARS // 2))),
        *((text, False) for text in UNFIT),
    ],
    ids=ascii,
)
def test_a_text_of_one_line_is_a_name_from_every_source_and_nothing_else_is(text: str, fit: bool) -> None:
    """Not what would change a log's lines or look, nor what is a session id of ours."""
    escaped = "".join(f"%{byte:02x}" for byte in text.encode())
    by_header = correlation_of(["header:x-chat"], None, lambda _: text)
    names = [name({"contextId": text}), name({"baggage": f"session.id={escaped}"}), by_header and by_header.id]
    assert names == [text if fit else None] * 3


texts = (st.text() | st.integers() | st.none() | st.lists(st.text())).map(lambda value: json.dumps(value).encode())
keys = st.sampled_from(["baggage", "contextId", "openai/session"])


@given(meta=st.dictionaries(keys, (texts | st.binary()).map(Raw)), header=st.none() | st.text())
@example(meta={"contextId": Raw(b'"' + b"\\u0041" * MAX_CHARS + b'"')}, header=None)
@example(meta={"baggage": Raw(b'"session.id=%ff%"'), "contextId": Raw(b"")}, header="")
@example(meta={"baggage": Raw(b'"session.id=%e2%82"')}, header="\ud800")
def test_whatever_is_sent_nothing_is_raised_and_nothing_unfit_passes(meta: dict[str, Raw], header: str | None) -> None:
    correlation = correlation_of([*DEFAULT_CHAIN, "header:any"], meta, lambda name: header)
    if correlation is not None:
        assert 0 < len(correlation.id) <= MAX_CHARS
        assert correlation.id.isprintable()
        assert not looks_like_session_id(correlation.id)
        assert len(correlation.id.splitlines()) == 1


@pytest.mark.parametrize(
    ("option", "remedy"),
    [
        *((wrong, f"={wrong!r} must be True, False or a list such as") for wrong in list[Any](["meta:contextId", 1])),
        ([], "must be True, False or a list such as"),
        (["contextId"], "'contextId' is not a source; write 'baggage:MEMBER', 'meta:KEY' or 'header:NAME'"),
        (["header:x chat"], "'header:x chat' is not a source"),
        ([f"meta:{SESSION_KEY}"], "is a credential, and logs would show it; leave it out"),
        (["header:Authorization"], "is a credential"),
    ],
)
def test_a_wrong_option_fails_at_construction_with_the_remedy(option: Any, remedy: str) -> None:
    with pytest.raises(ConfigurationError, match=remedy):
        sessions(Server(), correlate=option)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (" a = 1 ,\t session.id\t=\tc1 ; ttl=3;secure , b=2", "c1"),
        ("session.id=my%20caf%C3%A9+b%2Bc=d", "my café+b+c=d"),  # as OpenTelemetry writes it
        ("session.id=%zz", "%zz"),
        ("broken,,=,session.id=old,session.id=new,x", "new"),
        *((f"session.id{odd}", None) for odd in ("=%ff", "=", "", '="c1"', "=c 1", "=c1;p=é", "\n=c1")),
        ("Session.Id=c1", None),
        ("session.id=c1,a=".ljust(MAX_BAGGAGE, "x"), "c1"),
        ("session.id=c1,a=".ljust(MAX_BAGGAGE + 1, "x"), None),
    ],
    ids=lambda text: ascii(text)[:40],
)
def test_baggage_is_read_as_its_standard_has_it(text: str, says: str | None) -> None:
    """White space, properties, percent-encoding; what is malformed is passed over, and never repaired."""
    assert name({"baggage": text}, "baggage:session.id") == says


# --- on the wire ---------------------------------------------------------------------------------

BODY = b' {"jsonrpc":"2.0", "id":1,"method":"ping","params":{"_meta":{"openai/session":"c1"}}}'


async def test_it_stands_on_the_session_or_on_the_scope_where_there_is_none() -> None:
    """The message is forwarded byte for byte; an answer that is posted names none, and by default nobody looks."""
    server = Server()
    client = Client(sessions(server, correlate=["header:x-chat", "meta:openai/session"]))
    session = await client.create()
    for headers, expected in (([(b"x-chat", b"c2")], Correlation("c2", "header:x-chat")), ([], None)):
        await client.tool("whoami", *headers)
        assert (server.last.scope["mcp_correlation"], server.last.scope["mcp_session"]) == (expected, None)
        await client.tool("whoami", *headers, session=session)
        assert server.last.scope["mcp_session"].correlation == expected
        assert "mcp_correlation" not in server.last.scope
    await client.post(BODY)
    assert (server.last.body, server.last.scope["mcp_correlation"].id) == (BODY, "c1")
    for ignoring, body in ((client, {"jsonrpc": "2.0", "id": 1, "result": {}}), (Client(sessions(server)), BODY)):
        await ignoring.post(body)
        assert "mcp_correlation" not in server.last.scope


# --- what a client calls itself ------------------------------------------------------------------

WIRE = {"name": "wire", "version": "1.2"}


@pytest.mark.parametrize(
    ("info", "text"),
    [
        (WIRE, "wire 1.2"),
        ({"name": "w" * 1000}, "w" * 64),
        *(({"name": odd}, None) for odd in ("two\nlines", TOKEN, 7, "")),
    ],
)
async def test_a_client_s_name_is_one_line_of_text_or_nothing(info: Any, text: str | None) -> None:
    """From the handshake or an envelope; its sessions know it, their forks, and what its transport session creates."""

    async def caller(session: Session | None, arguments: dict[str, Any]) -> Any:
        assert session is not None
        return session.client

    client = Client(sessions(Server(caller=caller)), modern=False)
    shaken = await client.send("initialize", {**INITIALIZE, "clientInfo": info})
    header = (b"mcp-session-id", shaken.headers[b"mcp-session-id"])
    assert (await client.tool("caller", header)).result["content"] == text
    created = await client.send("sessions/create", None, header)
    stated = await client.send("sessions/create", {"_meta": {CLIENT_INFO_KEY: info}})
    fork = await client.send("sessions/fork", session={"sessionId": stated.result["session"]["sessionId"]})
    silent = await client.send("sessions/create")
    for answer, expected in ((created, text), (stated, text), (fork, text), (silent, None)):
        held = {"sessionId": answer.result["session"]["sessionId"]}
        assert (await client.tool("caller", session=held)).result["content"] == expected
