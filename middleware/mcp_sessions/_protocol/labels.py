"""Labels that clients send: the name and version of their program, and the name of their conversation.

Any client may send any, so a label selects no data, and what could not stand in one line of a log is left out. W3C
baggage is parsed by hand, since the core needs no OpenTelemetry SDK.
Sources: W3C Baggage sections 3.2 and 3.3; MCP 2025-11-25, "Initialization"; MCP 2026-07-28, "_meta"; the hosts below.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import msgspec
from msgspec import UNSET, Raw

from .._errors import ConfigurationError, Refusal
from .._session.claims import MAX_CLIENT_CHARS, Correlation, looks_like_session_id
from .draft import INITIALIZE
from .jsonrpc import Message
from .members import SESSION_KEY
from .strict_json import DECODE_ERRORS, string


class _Client(msgspec.Struct, gc=False):
    name: str
    version: str = ""


_client: Final = msgspec.json.Decoder(_Client).decode


def client_of(message: Message) -> str | None:
    """Return the name and version that a sender gives itself, in `initialize` or in the modern `_meta`, or None."""
    if message.method == INITIALIZE:
        given = message.params.client_info
    else:
        given = UNSET if message.params.meta is None else message.params.meta.client_info
    if given is UNSET:
        return None
    try:
        client = _client(given)
    except DECODE_ERRORS:  # not as the protocol has it, which is not a reason to refuse the request
        return None
    text = f"{client.name} {client.version}".strip()
    # No session id is as short as what is kept of a name, so most need no such look.
    is_name = text.isprintable() and (len(text) <= MAX_CLIENT_CHARS or not looks_like_session_id(text))
    return text if text and is_name else None


MAX_CHARS: Final = 256
"""The longest name that is passed on. A longer one is left out: of two that are cut, one could become the other."""
MAX_BAGGAGE: Final = 8192  # bytes and characters; what every party must carry (W3C Baggage)
CONVERSATION: Final = "gen_ai.conversation.id"  # OpenTelemetry's own word, and so the first that is looked for

DEFAULT_CHAIN: Final = (
    f"baggage:{CONVERSATION}",
    "baggage:session.id",
    "meta:openai/session",  # ChatGPT: "anonymized conversation id", Apps SDK reference
    "meta:vscode.conversationId",  # Visual Studio Code and the Copilot CLI
    "meta:ai.opencode/sessionID",  # OpenCode 2
    "meta:antigravity.google/conversation_id",  # Google Antigravity
    "meta:threadId",  # OpenAI Codex
    "meta:agent-session-id",  # goose; `goose-session-id` before
    "meta:goose-session-id",
    "meta:a2a/contextId",  # agents that serve an A2A context while they call tools
    "meta:contextId",
    "header:x-openai-session",  # ChatGPT again, where a request has no `_meta`
)
"""What `correlate=True` looks for, in order."""

Header = Callable[[bytes], "str | None"]
"""Returns a header by its name in lower case, as `RequestHeaders.first` does."""

_Read = Callable[[Mapping[str, Raw], Header], object]

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
    """Finds a conversation's name in baggage, `_meta` or headers."""

    __slots__ = ("_chain",)

    def __init__(self, sources: Sequence[str] = DEFAULT_CHAIN) -> None:
        self._chain: Final = tuple(map(_link, sources))

    @classmethod
    def of(cls, option: Any) -> Correlate | None:
        """Return the checked form of the option `correlate=`: None or False, True for `DEFAULT_CHAIN`, or sources.

        Raises:
            ConfigurationError: It is none of these; the message holds the remedy.
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
        """Return the first name that is fit to be passed on, with its source, or None."""
        for source, read in self._chain:
            if (name := _fit(read(meta or {}, header))) is not None:
                return Correlation(name, source)
        return None


def _fit(found: object) -> str | None:
    """Return a name that may stand in logs and traces: no line break, nothing invisible, no session id of ours."""
    if not (isinstance(found, str) and 0 < len(found) <= MAX_CHARS and found.isprintable()):
        return None
    return None if found.isspace() or looks_like_session_id(found) else found


def _link(source: Any) -> tuple[str, _Read]:
    if isinstance(source, str):
        kind, _, name = source.partition(":")
        if kind in _KINDS and name:
            return source, _KINDS[kind](name)
    raise ConfigurationError(
        f"correlate: {source!r} is not a source; write 'baggage:MEMBER', 'meta:KEY' or 'header:NAME'"
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
        raise ConfigurationError(
            f"correlate: {name!r} is not a header name; write one as in 'header:x-conversation-id'"
        )
    if name in _CREDENTIALS:
        raise ConfigurationError(f"correlate: 'header:{name}' holds a credential, and logs would show it; leave it out")
    encoded = name.encode("ascii")
    return lambda meta, header: header(encoded)


_KINDS: Final = {"baggage": _from_baggage, "meta": _from_meta, "header": _from_header}


def _text(raw: Raw, max_chars: int) -> str | None:
    if not len(bytes(raw)) <= _UNQUOTED * max_chars + 2:
        return None
    try:
        found = string(raw)
    except Refusal:
        return None
    return found if found is not None and len(found) <= max_chars else None


def _value(baggage: str, name: str) -> str | None:
    """Return the value of a member, of several the last, as OpenTelemetry's propagators do.

    One whose bytes are not UTF-8 counts as absent: replaced ones would make one name of two.
    """
    for text in reversed(baggage.split(",")):
        member = _MEMBER.fullmatch(text)
        if member is not None and member[1] == name:
            value = member[2].encode("ascii")
            try:
                return _ESCAPE.sub(lambda escape: bytes.fromhex(escape[1].decode("ascii")), value).decode()
            except UnicodeDecodeError:
                return None
    return None


def propagated(baggage: str | None, id: str, *, member: str = CONVERSATION) -> str:
    """Return W3C baggage that also names the conversation, for what the application calls in turn.

    Other members stay as they are, but for those that no header may hold; one of this name is replaced. Without room
    left, ours is left out.

    Args:
        baggage: The baggage so far, such as `"userId=alice,isProduction=false"`, or None.
        id: The value, such as `Correlation.id` or a session's `ref`. A session id is a credential, and is left out.
        member: The member's name.
    """
    found = list(filter(None, map(_MEMBER.fullmatch, (baggage or "").split(","))))
    unchanged = ",".join(each[0].strip() for each in found)
    if _fit(id) is None:
        return unchanged
    escaped = "".join(chr(byte) if byte in _PLAIN else f"%{byte:02X}" for byte in id.encode())
    extended = ",".join([*(each[0].strip() for each in found if each[1] != member), f"{member}={escaped}"])
    return extended if len(extended) <= MAX_BAGGAGE else unchanged


def baggage_member(option: Any) -> str | None:
    """Return the checked form of the option `propagate=`: the baggage member to write (True: the default), or None.

    Raises:
        ConfigurationError: It is none of these; the message holds the remedy.
    """
    if option is None or option is False:
        return None
    return _check_member("propagate", CONVERSATION if option is True else option)


def _check_member(option: str, name: Any) -> str:
    if isinstance(name, str) and _NAME.fullmatch(name):
        return name
    raise ConfigurationError(f"{option}: {name!r} is not a member name of W3C baggage; write one as in 'session.id'")
