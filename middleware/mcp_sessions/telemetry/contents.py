"""What a tool was called with and what it returned, on its span: only where an application asks for it, and as it says.

Each passes through the application's own function first, and is left out where that gives None or raises.
`_meta` is never among it, since our session is in there. Attributes are those of OpenTelemetry's GenAI
conventions, as JSON texts.
"""

from __future__ import annotations

import json
import logging
from typing import Any, Final

from ..jsonrpc import Message
from ..tracing import Content, Redact
from .naming import target_of

CALL: Final = "tools/call"
_NAMES: Final[dict[Content, str]] = {
    "arguments": "gen_ai.tool.call.arguments",
    "result": "gen_ai.tool.call.result",
}
_log: Final = logging.getLogger("mcp_sessions")


class Contents:
    """What is written of calls.

    Args:
        redact: The application's function.
    """

    def __init__(self, redact: Redact) -> None:
        self._redact: Final = redact

    def arguments(self, message: Message) -> dict[str, str]:
        """The attribute that says what a call's arguments are, if it may be known."""
        return self._said("arguments", message, message.body, "params", "arguments")

    def result(self, message: Message, answer: bytes) -> dict[str, str]:
        """The attribute that says what a call returned, if it may be known."""
        return self._said("result", message, answer, "result")

    def _said(self, what: Content, message: Message, text: bytes, *path: str) -> dict[str, str]:
        value = _found(text, *path)
        if value is None:
            return {}
        try:
            kept = self._redact(what, target_of(message) or "", value)
            return {} if kept is None else {_NAMES[what]: _text(kept)}
        except Exception as error:  # noqa: BLE001  # the call goes on, whatever the application's function makes of it
            _log.warning("the %s of a call are left out of its span: %s", what, type(error).__name__)
            return {}


def _found(text: bytes, *path: str) -> Any:
    """What is there, without `_meta`; None where nothing is, or nothing that could be read."""
    try:
        value = json.loads(text)
        for name in path:
            value = value[name]
    except (ValueError, KeyError, TypeError, RecursionError):
        return None
    return {name: inner for name, inner in value.items() if name != "_meta"} if isinstance(value, dict) else value


def _text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)
