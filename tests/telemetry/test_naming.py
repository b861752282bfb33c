"""A message is named by the conventions, and by nothing that a client could hide a credential in."""

from __future__ import annotations

import json
from typing import Any

import pytest
from apps import Server, sessions
from clients import LEGACY, MODERN, Client, call, http
from opentelemetry.sdk.trace import ReadableSpan

NAMES = {
    "mcp.method.name": "method",
    "mcp.protocol.version": "version",
    "jsonrpc.request.id": "id",
    "gen_ai.tool.name": "tool",
    "gen_ai.operation.name": "operation",
    "gen_ai.prompt.name": "prompt",
    "mcp.resource.uri": "uri",
}
CALL = {"method": "tools/call", "operation": "execute_tool"}


async def described(spans: list[ReadableSpan], method: str, *, version: str | None = None, **message: Any) -> Any:
    """The attributes of the span of a message by short names, and that it names its transport."""
    app, versioned = sessions(Server()), [] if version is None else [(b"mcp-protocol-version", version.encode())]
    body = json.dumps({"jsonrpc": "2.0", "method": method, **message}).encode()
    await call(app, http(headers=[(b"content-type", b"application/json"), *versioned]), body)
    found = dict(spans[-1].attributes or {})
    assert found.items() >= {"network.transport": "tcp", "network.protocol.name": "http"}.items()
    return {NAMES[name]: value for name, value in found.items() if name in NAMES}


@pytest.mark.parametrize(
    ("method", "message", "expected"),
    [
        ("tools/call", {"id": 7, "params": {"name": "count"}}, {**CALL, "id": "7", "tool": "count"}),
        ("prompts/get", {"id": "a-1", "params": {"name": "greet"}}, {"id": "a-1", "prompt": "greet"}),
        ("resources/read", {"id": 1, "params": {"uri": "file:///a.pdf"}}, {"id": "1", "uri": "file:///a.pdf"}),
        ("notifications/initialized", {}, {}),
        ("tools/list", {"id": 1, "params": {"name": "x"}}, {"id": "1"}),
        # what often holds credentials in a URI
        *(
            ("resources/read", {"id": 1, "params": {"uri": uri}}, {"id": "1", **kept})
            for uri, kept in {
                "postgres://user:pw@db/cart?sslkey=x#y": {"uri": "postgres://db/cart"},
                "postgres://db/cart": {"uri": "postgres://db/cart"},
                "?sslkey=x": {},
            }.items()
        ),
        # names that are strange, too long or cannot be written
        *(
            ("prompts/get", {"id": 1, "params": {"name": name}}, {"id": "1", **kept})
            for name, kept in (("a\nb", {}), (7, {}), ("x" * 200, {"prompt": "x" * 128}), ("\ud800", {}))
        ),
        *(("ping", {"id": strange}, {}) for strange in ("x" * 65, "a\nb", 10**64)),
        *(("ping", {"id": 1, "version": version}, {"id": "1"}) for version in ("1999-01-01", "2026-07-28, x", "draft")),
        *(("ping", {"id": 1, "version": it}, {"id": "1", "version": it}) for it in (LEGACY, MODERN)),
    ],
    ids=str,
)
async def test_a_message_is_named(
    method: str, message: dict[str, Any], expected: dict[str, str], spans: list[ReadableSpan]
) -> None:
    assert await described(spans, method, **message) == {"method": method, **expected}


async def test_a_session_id_in_the_wrong_place_is_left_out(spans: list[ReadableSpan]) -> None:
    token = (await Client(sessions(Server())).create())["sessionId"]
    await described(spans, "prompts/get", id=1, params={"name": token})
    await described(spans, "resources/read", id=1, params={"uri": f"x://{token}"})
    await described(spans, "ping", id=token, version=token)
    await described(spans, token, id=1)
    assert not any(token.rsplit(".", 1)[1][:16] in span.to_json() for span in spans)
