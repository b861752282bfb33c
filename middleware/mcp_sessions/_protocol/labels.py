"""Labels that clients send: the name and version of their program, and the name of their conversation.

Any client may send any, so a label selects no data, and what could not stand in one line of a log is left out. W3C
baggage is parsed by hand, since the core needs no OpenTelemetry.
Sources: W3C Baggage section 3.3; MCP 2025-11-25, "Initialization"; MCP 2026-07-28, "_meta"; the hosts below.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import msgspec
from msgspec import UNSET, Raw

from .._errors import ConfigurationError, Refusal
from .._session.claims import Correlation, looks_like_session_id
from .jsonrpc import SESSION_KEY, Message
from .methods import INITIALIZE
from .strict_json import DECODE_ERRORS, string


class _Client(msgspec.Struct, gc=False):
    name: str
    version: str = ""


_client: Final = msgspec.json.Decoder(_Client).decode


def client_of(message: Message) -> str | None:
    """Return the name and version, of any length, that a sender gives itself in `initialize` or `_meta`, or None."""
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
    is_name = text.isprintable() and not looks_like_session_id(text)
    return text if text and is_name else None


MAX_CHARS: Final = 256
"""The longest name that is kept. A longer one is left out: of two that are cut, one could become the other."""
MAX_BAGGAGE: Final = 8192  # characters; what every party must carry (W3C Baggage)

DEFAULT_CHAIN: Final = (
    "baggage:gen_ai.conversation.id",  # OpenTelemetry's name for it
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

_SOURCE: Final = re.compile(r"(meta):(.+)|(?:(baggage)|(header)):([!#$%&'*+.^_`|~0-9A-Za-z-]+)")
# What only its receiver may read: it must not be copied into logs and traces.
_CREDENTIALS: Final = {"authorization", "cookie", "mcp-session-id", "proxy-authorization", "x-api-key"}
_ESCAPE: Final = re.compile(rb"%([0-9A-Fa-f]{2})")
_ESCAPED: Final = 6  # how many characters of JSON may stand for one


HOST_CHAIN: Final = tuple(source for source in DEFAULT_CHAIN if source.startswith("meta:"))
"""What `per_conversation=True` looks for: baggage may name a browser's session, and proxies add headers."""


def correlation_sources(
    option: Any, name: str = "correlate", chain: tuple[str, ...] = DEFAULT_CHAIN
) -> tuple[str, ...]:
    """Return the sources that an option names, in order: True stands for a chain.

    Args:
        option: The value of the option.
        name: Its name, for errors.
        chain: What True stands for.

    Raises:
        ConfigurationError: It names anything else, or a credential; the message says the remedy.
    """
    if option is None or option is False:
        return ()
    sources = chain if option is True else option
    if isinstance(sources, (str, bytes)) or not isinstance(sources, Sequence) or not sources:
        raise ConfigurationError(f"{name}={option!r} must be True, False or a list such as ['meta:openai/session']")
    for source in sources:
        if not (isinstance(source, str) and _SOURCE.fullmatch(source)):
            raise ConfigurationError(
                f"{name}: {source!r} is not a source; write 'baggage:MEMBER', 'meta:KEY' or 'header:NAME'"
            )
        kind, _, member = source.partition(":")
        if source == f"meta:{SESSION_KEY}" or (kind == "header" and member.lower() in _CREDENTIALS):
            raise ConfigurationError(f"{name}: {source!r} is a credential, and logs would show it; leave it out")
    return tuple(sources)


def correlation_of(sources: Sequence[str], meta: Mapping[str, Raw] | None, header: Header) -> Correlation | None:
    """Return the first name that may stand in logs and traces, with its source, or None."""
    for source in sources:
        kind, _, name = source.partition(":")
        if kind == "header":
            found = header(name.lower().encode())
        elif kind == "meta":
            found = _text(meta, name, MAX_CHARS)
        else:
            found = _baggage_member(_text(meta, "baggage", MAX_BAGGAGE) or "", name)
        if found and len(found) <= MAX_CHARS and _is_fit(found):
            return Correlation(found, source)
    return None


def _is_fit(name: str) -> bool:
    """Whether a name may stand in logs: no line break, nothing invisible, and no session id."""
    return name.isprintable() and not name.isspace() and not looks_like_session_id(name)


def _text(meta: Mapping[str, Raw] | None, key: str, max_chars: int) -> str | None:
    raw = b"" if meta is None else bytes(meta.get(key, b""))
    if not 0 < len(raw) <= _ESCAPED * max_chars + 2:
        return None
    try:
        text = string(raw)
    except Refusal:
        return None
    return None if text is None or len(text) > max_chars else text


def _baggage_member(baggage: str, name: str) -> str | None:
    """Return the value of a member, of several the last, as OpenTelemetry's propagators do; a malformed one is absent.

    So is one whose bytes are not UTF-8: replaced ones would make one name of two.
    """
    for member in reversed(baggage.split(",")):
        key, equals, value = member.partition(";")[0].partition("=")
        value = value.strip(" \t")
        if equals and key.strip(" \t") == name and member.isascii() and not re.search(r'[\s"\\]', value):
            try:
                return _ESCAPE.sub(lambda escape: bytes.fromhex(escape[1].decode()), value.encode()).decode()
            except UnicodeDecodeError:
                return None
    return None
