"""A client that says exactly what a rule needs, over real HTTP, in either era.

Sources: MCP 2025-11-25 and 2026-07-28, Streamable HTTP and Lifecycle.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from importlib import import_module
from itertools import count
from typing import Any, Final

from clients import LEGACY, MODERN, SESSION_KEY
from environments import INSTALLED

from mcp_sessions._protocol.jsonrpc import CLIENT_CAPABILITIES_KEY, PROTOCOL_VERSION_KEY

http: Any = import_module("httpx2" if "httpx2" in INSTALLED else "httpx")
CAPABILITIES: Final[dict[str, Any]] = {"experimental": {"sessions": {}}}
INFO: Final = {"name": "conformance", "version": "1"}


@dataclass(frozen=True)
class Answer:
    status: int
    headers: Mapping[str, str]
    message: Mapping[str, Any]  # of JSON-RPC; empty where there is none

    @property
    def result(self) -> dict[str, Any] | None:
        return self.message.get("result")

    @property
    def error(self) -> dict[str, Any]:
        return self.message.get("error") or {}

    @property
    def code(self) -> object:
        return self.error.get("code")

    @property
    def refuses(self) -> bool:
        return bool(self.error) or self.status in range(400, 500)

    def __str__(self) -> str:
        what = f"error {self.code}" if self.error else "a result" if self.result is not None else "no JSON-RPC answer"
        return f"HTTP {self.status}, {what}"


@dataclass
class RuleClient:
    """A client of one server in one era, after its first request."""

    url: str
    modern: bool
    capabilities: Mapping[str, Any] = field(default_factory=dict)  # the server's
    transport: str | None = None  # the transport session that the server named
    _ids: Iterator[int] = field(default_factory=lambda: count(1))

    @classmethod
    def connected(cls, url: str, *, modern: bool) -> RuleClient | None:
        """Connect, or return None where the server does not speak the era."""
        client = cls(url, modern)
        hello = {"protocolVersion": LEGACY, "capabilities": CAPABILITIES, "clientInfo": INFO}
        answer = client.request("server/discover") if modern else client.request("initialize", hello)
        if answer.result is None:
            return None
        client.capabilities = answer.result["capabilities"]
        client.transport = answer.headers.get("mcp-session-id")
        if not modern:
            client._send({"jsonrpc": "2.0", "method": "notifications/initialized"}, {})
        return client

    @property
    def settings(self) -> dict[str, Any] | None:
        return (self.capabilities.get("experimental") or {}).get("sessions")

    def request(
        self,
        method: str,
        params: Mapping[str, Any] | None = None,
        *,
        session: object = None,
        headers: Mapping[str, str] | None = None,
        envelope: bool = True,
    ) -> Answer:
        """Send a request, with `_meta` and the era's headers added, and the modern era's envelope whole or not."""
        meta: dict[str, Any] = {PROTOCOL_VERSION_KEY: MODERN} if self.modern else {}
        if self.modern and envelope:
            meta[CLIENT_CAPABILITIES_KEY] = CAPABILITIES
        if session is not None:
            meta[SESSION_KEY] = session
        params = {**(params or {}), **({"_meta": meta} if meta else {})}
        message = {"jsonrpc": "2.0", "id": next(self._ids), "method": method, **({"params": params} if params else {})}
        return self._send(message, {**({"Mcp-Method": method} if self.modern else {}), **(headers or {})})

    def _send(self, message: dict[str, Any], headers: Mapping[str, str]) -> Answer:
        own = {
            "Accept": "application/json, text/event-stream",
            "MCP-Protocol-Version": MODERN if self.modern else LEGACY,
        }
        own |= {} if self.transport is None else {"Mcp-Session-Id": self.transport}
        response = http.post(self.url, json=message, headers={**own, **headers}, timeout=30)
        is_stream = response.headers.get("content-type", "").startswith("text/event-stream")
        lines = response.text.splitlines()
        texts = (
            [line.removeprefix("data:") for line in lines if line.startswith("data:")] if is_stream else [response.text]
        )
        messages = [json.loads(text) for text in texts if text.strip()]
        # What could not be read as a request is refused with the id null, or without an id.
        answers = [one for one in messages if one.get("id") == message.get("id") or "error" in one]
        return Answer(response.status_code, response.headers, answers[0] if answers else {})
