"""A client of one era, as far as a probe needs one: what it says, and what its server says of itself.

The legacy era begins with `initialize`, and carries whatever transport session the server names. The modern era begins
with nothing: every request carries the whole envelope, in `_meta` and in the headers.
Sources: MCP 2025-11-25 and 2026-07-28, Streamable HTTP and Lifecycle.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import count
from typing import Any, Final

from ..jsonrpc import SESSION_KEY
from ..protocol import CLIENT_CAPABILITIES_KEY, PROTOCOL_VERSION_KEY
from .wire import Answer, Wire

LEGACY: Final = "2025-11-25"
MODERN: Final = "2026-07-28"
UNUSUAL: Final = "(unusual)"
CLIENT: Final = {"name": "mcp-sessions probe", "version": "1"}
KNOWS: Final[dict[str, Any]] = {"experimental": {"sessions": {}}}
_VERSION: Final = re.compile(r"20\d\d-\d\d-\d\d", re.ASCII)
_HARMLESS: Final = {"tools": "tools/list", "prompts": "prompts/list", "resources": "resources/list"}


@dataclass
class Speech:
    """One era, spoken to one server.

    Args:
        wire: The way to it.
        modern: Which era.
        version: The protocol's version that is spoken.
        capabilities: What the server says of itself.
        transport: The transport session that it named, or None.
        names_transport: Whether it names one to clients that do not know sessions, and to those alone.
        unusual: Whether the server names a version that is none; it is neither repeated nor shown.
    """

    wire: Wire
    modern: bool
    version: str
    capabilities: Mapping[str, Any] = field(default_factory=dict)
    transport: str | None = None
    names_transport: bool = False
    unusual: bool = False
    _ids: Any = field(default_factory=lambda: count(1))

    @property
    def era(self) -> str:
        """Its name."""
        return "modern" if self.modern else "legacy"

    @property
    def shown(self) -> str:
        """The version for people, which is never anything else that a server wrote."""
        return UNUSUAL if self.unusual else self.version

    @property
    def harmless(self) -> str:
        """A method that the server has and that changes nothing."""
        usual = "server/discover" if self.modern else "ping"
        return next((method for name, method in _HARMLESS.items() if name in self.capabilities), usual)

    @property
    def settings(self) -> dict[str, Any] | None:
        """What the server says of sessions under `experimental`, or None where it says nothing there."""
        experimental = self.capabilities.get("experimental")
        said = experimental.get("sessions") if isinstance(experimental, dict) else None
        return said if isinstance(said, dict) else None

    def ask(
        self,
        method: str,
        params: Mapping[str, Any] | None = None,
        *,
        session: object = None,
        headers: Mapping[str, str] | None = None,
        envelope: bool = True,
    ) -> Answer:
        """Send a request.

        Args:
            method: What is asked.
            params: `params` without `_meta`.
            session: What stands as the session in `_meta`; None for nothing.
            headers: Headers beside, or instead of, the era's own.
            envelope: Whether the modern era's envelope is whole.

        Raises:
            Unanswered: There is no answer.
            Exhausted: No more may be sent.
        """
        meta: dict[str, Any] = {}
        if self.modern:
            meta[PROTOCOL_VERSION_KEY] = self.version
        if self.modern and envelope:
            meta[CLIENT_CAPABILITIES_KEY] = KNOWS
        if session is not None:
            meta[SESSION_KEY] = session
        said = {**(params or {}), **({"_meta": meta} if meta else {})}
        body = {"jsonrpc": "2.0", "id": next(self._ids), "method": method, **({"params": said} if said else {})}
        return self.wire.post(body, {**self.headers(method), **(headers or {})})

    def headers(self, method: str) -> dict[str, str]:
        """The era's own headers for a method."""
        about = {"Mcp-Method": method} if self.modern else {}
        named = {} if self.transport is None else {"Mcp-Session-Id": self.transport}
        return {"MCP-Protocol-Version": self.version, **about, **named}


def modern(wire: Wire) -> Speech | None:
    """The modern era, or None where the server does not speak it."""
    speech = Speech(wire, modern=True, version=MODERN)
    result = speech.ask("server/discover").result
    if result is None or not isinstance(result.get("capabilities"), dict):
        return None
    speech.capabilities = result["capabilities"]
    return speech


def legacy(wire: Wire) -> Speech | None:
    """The legacy era, shaken hands in, or None where the server does not speak it."""
    speech = Speech(wire, modern=False, version=LEGACY)
    answer = speech.ask("initialize", _hello(KNOWS))
    if answer.result is None or not isinstance(answer.result.get("capabilities"), dict):
        return None
    speech.capabilities = answer.result["capabilities"]
    named = answer.result.get("protocolVersion", LEGACY)
    speech.unusual = not (isinstance(named, str) and _VERSION.fullmatch(named))
    speech.version = LEGACY if speech.unusual else named
    speech.transport = answer.headers.get("mcp-session-id")
    speech.names_transport = speech.transport is None and _names_transport(speech)
    wire.post({"jsonrpc": "2.0", "method": "notifications/initialized"}, speech.headers(""))
    return speech


def _hello(capabilities: dict[str, Any]) -> dict[str, Any]:
    return {"protocolVersion": LEGACY, "capabilities": capabilities, "clientInfo": CLIENT}


def _names_transport(speech: Speech) -> bool:
    """Whether a client that knows nothing of sessions is given one in the header; it is ended at once."""
    named = speech.ask("initialize", _hello({})).headers.get("mcp-session-id")
    if named is None:
        return False
    speech.wire.post(None, {**speech.headers(""), "Mcp-Session-Id": named}, verb="DELETE")
    return True
