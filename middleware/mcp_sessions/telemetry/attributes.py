"""The names that spans and metrics use here, and the attributes by which tools group a session's spans.

Names are OpenTelemetry's own, from its semantic conventions for MCP, GenAI, JSON-RPC and sessions; those
that it has no word for begin with `mcp_sessions.`. The value that names a session is always its `ref`,
never its id. Nothing here starts a span or reads a message.

What a message is called in telemetry: its method, what it is about, its id and its protocol version.

All of it was written by a client, who may put anything there, a session id too. So each word is taken
only as far as it looks like what it should be, and is left out otherwise. Nothing here reads arguments.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping
from types import MappingProxyType
from typing import ClassVar, Final

from msgspec import UNSET

from .._protocol.jsonrpc import TARGETS, Message
from .._session.claims import looks_like_session_id
from ..errors import Refusal

SESSION_ID: Final = "session.id"
MCP_SESSION_ID: Final = "mcp.session.id"

METHOD: Final = "mcp.method.name"
PROTOCOL_VERSION: Final = "mcp.protocol.version"
RESOURCE_URI: Final = "mcp.resource.uri"
TOOL: Final = "gen_ai.tool.name"
PROMPT: Final = "gen_ai.prompt.name"
OPERATION: Final = "gen_ai.operation.name"
REQUEST_ID: Final = "jsonrpc.request.id"
STATUS_CODE: Final = "rpc.response.status_code"
ERROR_TYPE: Final = "error.type"
NETWORK_TRANSPORT: Final = "network.transport"
NETWORK_PROTOCOL: Final = "network.protocol.name"

REASON: Final = "mcp_sessions.reason"
"""Why a request was refused or a session ended: a fixed word, never a client's text."""
EXPIRES_AT: Final = "mcp_sessions.expires_at"
"""When the session ends at the latest, Unix seconds."""
PARENT: Final = "mcp_sessions.parent"
"""The session that one was forked from: its ref."""
CLIENT: Final = "mcp_sessions.client"
"""What the client calls itself: its name and version."""

EXECUTE_TOOL: Final = "execute_tool"
TOOL_ERROR: Final = "tool_error"

Stamp = Mapping[str, str]
"""Attributes that name one session."""


class Stamps:
    """The attributes of sessions, each made once and kept for as long as its session is busy.

    Args:
        aliases: Further attribute names that are given the session's `ref`, for tools that group by
            another one, such as `gen_ai.conversation.id` or `langsmith.metadata.session_id`.
        entries: How many sessions are remembered at most, rounded up to an even number.
    """

    everywhere: ClassVar[dict[str, None]] = {}
    """The aliases that the processors of this process were given: what the middleware stamps itself has them, too."""

    __slots__ = ("_aliases", "_generation", "_old", "_young")

    def __init__(self, aliases: Collection[str] = (), *, entries: int = 2_000) -> None:
        self._aliases: Final = aliases
        # Two generations: see `tokens.Tokens`, which remembers tokens in the same way and says why.
        self._generation: Final = (entries + 1) // 2
        self._young: dict[str, tuple[Stamp, Stamp]] = {}
        self._old: dict[str, tuple[Stamp, Stamp]] = {}

    def of(self, ref: str, *, claimed: bool) -> Stamp:
        """What names a session on a span.

        Args:
            ref: The session.
            claimed: Whether `session.id` is somebody else's there, such as a chat application's; then
                it stays that one's, and the aliases with it, and `mcp.session.id` alone names ours.
        """
        found = self._young.get(ref) or self._old.get(ref) or self._make(ref)
        return found[claimed]

    def _make(self, ref: str) -> tuple[Stamp, Stamp]:
        if len(self._young) >= self._generation:
            self._old, self._young = self._young, {}
        whole = {SESSION_ID: ref, MCP_SESSION_ID: ref, **dict.fromkeys(self._aliases, ref)}
        made = MappingProxyType(whole), MappingProxyType({MCP_SESSION_ID: ref})
        self._young[ref] = made
        return made


HTTP: Final = {NETWORK_TRANSPORT: "tcp", NETWORK_PROTOCOL: "http"}
_MAX_NAME: Final = 128  # characters; the protocol's own limit for a tool's name
_MAX_URI: Final = 512
_MAX_ID: Final = 64
_WORD: Final = 64  # bits
_VERSION: Final = re.compile(r"20\d\d-[01]\d-[0-3]\d")
_USERINFO: Final = re.compile(r"(?<=//)[^/?#]*@")
NAMED: Final = {"tools/call": TOOL, "prompts/get": PROMPT}
_OF_RESOURCES: Final = TARGETS.keys() - NAMED.keys()


def target_of(message: Message) -> str | None:
    """The tool or prompt that a message is about, for names of spans; None for others, and for strange ones."""
    return _text(message, _MAX_NAME) if message.method in NAMED else None


def version_of(header: str | None) -> str | None:
    """What the `MCP-Protocol-Version` header says, where it looks like a version: a date of this century."""
    return header if header is not None and _VERSION.fullmatch(header) else None


def described(alike: dict[str, str], message: Message) -> dict[str, str]:
    """All attributes of a message: what it has in common with others, its id, and the resource that it is about.

    Args:
        alike: What it has in common with others; it stays as it is.
        message: The request or notification.
    """
    found = alike.copy()
    if message.given_id is not UNSET and (request_id := _request_id(message)) is not None:
        found[REQUEST_ID] = request_id
    if message.method in _OF_RESOURCES and (uri := _text(message, _MAX_URI, _bare)):
        found[RESOURCE_URI] = uri
    return found


def alike(label: str, target: str | None, version: str | None) -> dict[str, str]:
    """The attributes of all messages that call the same tool in the same way, by the conventions.

    Args:
        label: What the method is called in telemetry.
        target: What `target_of` said of the message.
        version: What `version_of` said of its header.
    """
    found = {METHOD: label, **HTTP}
    if version is not None:
        found[PROTOCOL_VERSION] = version
    if target is not None:
        found[NAMED[label]] = target
    if label == "tools/call":
        found[OPERATION] = EXECUTE_TOOL
    return found


def _text(message: Message, most: int, cut: Callable[[str], str] = str) -> str | None:
    try:
        text = message.target()
    except Refusal:  # a lone surrogate, which no exporter could write
        return None
    if text is None or not text.isprintable() or looks_like_session_id(text):
        return None
    return cut(text)[:most]


def _bare(uri: str) -> str:
    """A URI without what often holds credentials: its user, query and fragment."""
    return _USERINFO.sub("", re.split(r"[?#]", uri, maxsplit=1)[0])


def _request_id(message: Message) -> str | None:
    """The id as text. One with an escape in it is left out, and so is one as long as a credential."""
    given = message.given_id
    if type(given) is int and given.bit_length() <= _WORD:  # by far the most
        return str(given)
    raw = (message.id or b"").strip(b'"')
    return raw.decode("utf-8", "replace") if len(raw) <= _MAX_ID and b"\\" not in raw else None
