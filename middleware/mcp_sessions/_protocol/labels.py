"""What a client calls itself: its name and version, from `initialize` or from the envelope of the modern era.

Kept in the session's token, so that each request can be told whose program sent it. It is the client's own
word: nothing vouches for it, and nothing may hang on it. What cannot stand in one line of a log is left out.
Sources: MCP 2025-11-25, "Initialization"; MCP 2026-07-28, `_meta` of requests.

What a client that speaks no session dialect calls its conversation, read and never trusted.

Hosts put a name of their own for the conversation into a request: in W3C baggage, in `_meta`, in a header.
It is found here in a configured order and made safe for logs and traces. It never becomes a session: whoever
sends it chose it, so it selects no data and satisfies no policy, and nothing that takes a session takes a
`Correlation`. Sources: W3C Baggage sections 3.2 and 3.3, MCP 2026-07-28 "_meta", and the hosts named below.

The options `correlate=` and `propagate=` at work on one request: a label is noted on its way in, and carried on.

What a client calls its conversation is put where handlers and spans find it: on the session, or on the
scope where there is none. What the application calls in turn is told by W3C baggage in the forwarded
`_meta`. Nothing here selects a session or satisfies a policy, and where both options are off nothing runs.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Coroutine, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Final

import msgspec
from msgspec import Raw

from .._session.claims import MAX_CLIENT_CHARS, Correlation, looks_like_session_id
from ..errors import ConfigurationError, Refusal
from .draft import INITIALIZE
from .jsonrpc import SESSION_KEY, Message
from .strict_json import FLAWS, string

CLIENT_INFO_KEY: Final = "io.modelcontextprotocol/clientInfo"


class _Client(msgspec.Struct, gc=False):
    name: str
    version: str = ""


class _Params(msgspec.Struct, gc=False):
    clientInfo: _Client  # noqa: N815  # the protocol's spelling


class _Initialize(msgspec.Struct, gc=False):
    params: _Params


_client: Final = msgspec.json.Decoder(_Client).decode
_initialize: Final = msgspec.json.Decoder(_Initialize).decode


def client_of(message: Message) -> str | None:
    """The name and version that a message's sender gives itself, or None where it gives none that can be shown.

    Args:
        message: An `initialize` of the legacy era, or any message of the modern one.
    """
    try:
        found = _of(message)
    except FLAWS:  # not as the protocol has it, which is no reason to refuse anybody
        return None
    text = "" if found is None else f"{found.name} {found.version}".strip()
    # No session id is as short as what is kept of a name, so most need no such look.
    is_name = text.isprintable() and (len(text) <= MAX_CLIENT_CHARS or not looks_like_session_id(text))
    return text if text and is_name else None


def _of(message: Message) -> _Client | None:
    if message.method == INITIALIZE:
        return _initialize(message.body).params.clientInfo
    if message.meta is None or CLIENT_INFO_KEY not in message.meta:
        return None
    return _client(message.meta[CLIENT_INFO_KEY])


MAX_CHARS: Final = 256
"""The longest name that is passed on. A longer one is left out and never cut: two could become one."""

MAX_BAGGAGE: Final = 8192  # bytes and characters; what W3C Baggage asks everybody to carry
CONVERSATION: Final = "gen_ai.conversation.id"  # OpenTelemetry's own word, and so the first that is looked for

DEFAULT_CHAIN: Final = (
    f"baggage:{CONVERSATION}",
    "baggage:session.id",
    "meta:openai/session",  # ChatGPT: "anonymized conversation id", Apps SDK reference
    "meta:vscode.conversationId",  # Visual Studio Code and the Copilot CLI
    "meta:ai.opencode/sessionID",  # OpenCode 2
    "meta:antigravity.google/conversation_id",  # Google Antigravity
    "meta:threadId",  # OpenAI Codex
    "meta:agent-session-id",  # goose; it said `goose-session-id` before
    "meta:goose-session-id",
    "meta:a2a/contextId",  # agents that serve an A2A context while they call tools
    "meta:contextId",
    "header:x-openai-session",  # ChatGPT again, where a request has no `_meta`
)
"""What `correlate=True` looks for, in order."""

Header = Callable[[bytes], "str | None"]
"""Gives a header by its name in lower case, as `RequestHeaders.first` does."""

Source = Callable[[Mapping[str, Any], Callable[[str], "str | None"]], "str | None"]
"""A source of the application's own: given the members of `_meta`, decoded, and a function that gives a
header by name, it returns the conversation's name or None. It must be quick, and free of effects."""

_Read = Callable[[Mapping[str, Raw], Header], object]

_NO_META: Final[Mapping[str, Raw]] = MappingProxyType({})
_UNQUOTED: Final = 6  # how many characters of JSON may stand for one
# What only its receiver may read: it must not be copied into logs and traces.
_CREDENTIALS: Final = frozenset({"authorization", "cookie", "mcp-session-id", "proxy-authorization", "x-api-key"})

_WORD: Final = r"[!#$%&'*+\-.^_`|~0-9A-Za-z]+"
_VALUE: Final = r"[\x21\x23-\x2b\x2d-\x3a\x3c-\x5b\x5d-\x7e]*"
_MEMBER: Final = re.compile(rf"[ \t]*({_WORD})[ \t]*=[ \t]*({_VALUE})[ \t]*(?:;[\x20-\x7e\t]*)?")
_NAME: Final = re.compile(_WORD)
_ESCAPE: Final = re.compile(rb"%([0-9A-Fa-f]{2})")
# What a value may hold as it is; but for the plus sign, which some propagators read as a space.
_PLAIN: Final = frozenset(b"!#$&'()*-./0123456789:<=>?@ABCDEFGHIJKLMNOPQRSTUVWXYZ[]^_`abcdefghijklmnopqrstuvwxyz{|}~")


class Correlate:
    """Finds what a client calls its conversation.

    Args:
        sources: Where to look, in order: `"baggage:MEMBER"`, `"meta:KEY"`, `"header:NAME"`, or functions.

    Raises:
        ConfigurationError: A source is none; the message says what to write instead.
    """

    __slots__ = ("_chain",)

    def __init__(self, sources: Sequence[str | Source] = DEFAULT_CHAIN) -> None:
        self._chain: Final = tuple(map(_link, sources))

    @classmethod
    def of(cls, option: Any) -> Correlate | None:
        """The checked form of the option `correlate=`.

        Args:
            option: None or False finds nothing, True looks in `DEFAULT_CHAIN`, a sequence says where to look.

        Raises:
            ConfigurationError: It is none of these; the message says what to write instead.
        """
        if option is None or option is False:
            return None
        if option is True:
            return cls()
        if isinstance(option, Sequence) and not isinstance(option, (str, bytes)) and option:
            return cls(option)
        raise ConfigurationError(
            f"correlate={option!r} must be True, False or a sequence of sources, as in"
            " correlate=['meta:openai/session', 'header:x-conversation-id']"
        )

    def find(self, meta: Mapping[str, Raw] | None, header: Header) -> Correlation | None:
        """The first name that is fit to be passed on, whatever the request holds.

        Args:
            meta: The members of `_meta` as `Message.meta` has them, or None.
            header: Gives a header by its name in lower case, such as `RequestHeaders.first`.
        """
        meta = _NO_META if meta is None else meta
        for source, read in self._chain:
            found = read(meta, header)
            if found is not None and (name := _fit(found)) is not None:
                return Correlation(name, source)
        return None


def _fit(found: object) -> str | None:
    """A name that may stand in logs and traces: no line break, nothing invisible, no session id of ours."""
    if not (isinstance(found, str) and 0 < len(found) <= MAX_CHARS and found.isprintable()):
        return None
    return None if found.isspace() or looks_like_session_id(found) else found


# --- sources -------------------------------------------------------------------------------------


def _link(source: Any) -> tuple[str, _Read]:
    if isinstance(source, str):
        kind, _, name = source.partition(":")
        if kind in _KINDS and name:
            return source, _KINDS[kind](name)
    elif callable(source):
        return getattr(source, "__name__", type(source).__name__), _from_function(source)
    raise ConfigurationError(
        f"correlate: {source!r} is no source; write 'baggage:MEMBER', 'meta:KEY', 'header:NAME', or a function"
    )


def _from_baggage(name: str) -> _Read:
    _check_member("correlate", name)

    return lambda meta, header: _value(_text(meta["baggage"], MAX_BAGGAGE) or "", name) if "baggage" in meta else None


def _from_meta(key: str) -> _Read:
    if key == SESSION_KEY:
        raise ConfigurationError(f"correlate: 'meta:{key}' holds session ids, which are credentials; leave it out")
    return lambda meta, header: _text(meta[key], MAX_CHARS) if key in meta else None


def _from_header(name: str) -> _Read:
    name = name.lower()
    if not _NAME.fullmatch(name):
        raise ConfigurationError(f"correlate: {name!r} is no header's name; write one as in 'header:x-conversation-id'")
    if name in _CREDENTIALS:
        raise ConfigurationError(f"correlate: 'header:{name}' holds a credential, and logs would show it; leave it out")
    encoded = name.encode("ascii")
    return lambda meta, header: header(encoded)


_KINDS: Final[dict[str, Callable[[str], _Read]]] = {
    "baggage": _from_baggage,
    "meta": _from_meta,
    "header": _from_header,
}


def _from_function(function: Source) -> _Read:
    _try_out(function)

    def read(meta: Mapping[str, Raw], header: Header) -> object:
        try:
            return function(_decoded(meta), lambda name: header(name.lower().encode("ascii")))
        except Exception:  # noqa: BLE001  # a label is not worth a request, and clients choose what it reads
            return None

    return read


def _try_out(function: Source) -> None:
    """That it can read a request that says nothing: what it raises later, nobody is told."""
    try:
        found: object = function({}, lambda name: None)
    except Exception as error:
        raise ConfigurationError(
            f"correlate: {function!r} raised {error!r} for a request without _meta and headers;"
            " it must take the two and return None there"
        ) from error
    if isinstance(found, Coroutine):
        found.close()
    if not (found is None or isinstance(found, str)):
        raise ConfigurationError(f"correlate: {function!r} must be a plain function that returns a string or None")


def _decoded(meta: Mapping[str, Raw]) -> dict[str, Any]:
    """The members but for our own, which hold session ids, and those that have no Python form."""
    found = {}
    for key, raw in meta.items():
        try:
            if key != SESSION_KEY:
                found[key] = msgspec.json.decode(raw)
        except FLAWS:
            continue
    return found


def _text(raw: Raw, max_chars: int) -> str | None:
    """The string that a value of `_meta` is; what is far too long is not even decoded."""
    if not len(bytes(raw)) <= _UNQUOTED * max_chars + 2:
        return None
    try:
        found = string(raw)
    except Refusal:
        return None
    return found if found is not None and len(found) <= max_chars else None


# --- baggage -------------------------------------------------------------------------------------


def _value(baggage: str, name: str) -> str | None:
    """What a member says; of several the last, as OpenTelemetry's propagators have it."""
    for text in reversed(baggage.split(",")):
        member = _MEMBER.fullmatch(text)
        if member is not None and member[1] == name:
            return _unescaped(member[2])
    return None


def _unescaped(value: str) -> str | None:
    """The text, or None where its bytes are no UTF-8: replaced ones would make one name of two."""
    try:
        return _ESCAPE.sub(lambda escape: bytes.fromhex(escape[1].decode("ascii")), value.encode("ascii")).decode()
    except UnicodeDecodeError:
        return None


def propagated(baggage: str | None, id: str, *, member: str = CONVERSATION) -> str:
    """W3C baggage that also names the conversation, for what the application calls in turn.

    Other members stay as they are, but for those that no header may hold. One that had this name is
    replaced. Where there is no room left, what others have put there stays and ours is left out.

    Args:
        baggage: What is there already, such as `"userId=alice,isProduction=false"`, or None.
        id: What to name, such as `Correlation.id` or a session's `ref`. Never a session id: that one is
            a credential, and is left out.
        member: Under which name.
    """
    members = [text.strip() for text in (baggage or "").split(",") if _MEMBER.fullmatch(text)]
    if _fit(id) is None:
        return ",".join(members)
    escaped = "".join(chr(byte) if byte in _PLAIN else f"%{byte:02X}" for byte in id.encode())
    others = [text for text in members if _MEMBER.fullmatch(text)[1] != member]  # type: ignore[index]  # as above
    extended = ",".join([*others, f"{member}={escaped}"])
    return extended if len(extended) <= MAX_BAGGAGE else ",".join(members)


def baggage_member(option: Any) -> str | None:
    """The checked form of the option `propagate=`: the member to write, or None for nothing.

    Args:
        option: None or False writes nothing, True `gen_ai.conversation.id`, a string that member.

    Raises:
        ConfigurationError: It is none of these; the message says what to write instead.
    """
    if option is None or option is False:
        return None
    return _check_member("propagate", CONVERSATION if option is True else option)


def _check_member(option: str, name: Any) -> str:
    if isinstance(name, str) and _NAME.fullmatch(name):
        return name
    raise ConfigurationError(f"{option}: {name!r} names no member of W3C baggage; write one as in 'session.id'")
