"""Names of MCP methods that matter to sessions."""

from __future__ import annotations

from typing import Final

INITIALIZE: Final = "initialize"  # the handshake of the legacy era
INITIALIZED: Final = "notifications/initialized"
DISCOVER: Final = "server/discover"  # what the modern era has in its place
PING: Final = "ping"
CANCELLED: Final = "notifications/cancelled"  # its sender no longer expects an answer to a request
PROGRESS: Final = "notifications/progress"
CALL: Final = "tools/call"
TOOLS: Final = "tools/list"
CREATE: Final = "sessions/create"
DELETE: Final = "sessions/delete"

LISTS: Final = frozenset({"tools/list", "prompts/list", "resources/list", "resources/templates/list"})
HANDSHAKES: Final = frozenset({INITIALIZE, DISCOVER})
"""The methods whose result tells a client that sessions exist here."""
SESSIONLESS: Final = HANDSHAKES | {PING}
"""The methods whose handlers are not expected to have a session."""

EXTENSIONS: Final = ("fork", "list")
"""The methods `sessions/NAME` beyond the draft."""
