"""The names that spans and metrics use here, and the attributes by which tools group a session's spans.

Names are OpenTelemetry's own, from its semantic conventions for MCP, GenAI, JSON-RPC and sessions; those
that it has no word for begin with `mcp_sessions.`. The value that names a session is always its `ref`,
never its id. Nothing here starts a span or reads a message.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from types import MappingProxyType
from typing import ClassVar, Final

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
