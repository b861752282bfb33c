"""The wrapped applications: plain ASGI, whose answers have the shape that a request's `x-shape` header names."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from apps import read
from starlette.types import Receive, Scope, Send

from mcp_sessions import Session, current_correlation
from mcp_sessions._server.current import MISSING_SESSION_KEY
from mcp_sessions._session.session import find_session

JSON = (b"content-type", b"application/json")
SSE = (b"content-type", b"text/event-stream")
NOTE = b'event: message\ndata: {"jsonrpc":"2.0","method":"notifications/message","params":{"level":"info"}}\n\n'
RESULTS: Mapping[str, dict[str, Any]] = {
    "ping": {},
    "initialize": {"protocolVersion": "2025-11-25", "capabilities": {"tools": {}}},
    "server/discover": {"supportedVersions": ["2026-07-28"], "capabilities": {"tools": {}}},
    "tools/list": {"tools": [{"name": "whoami"}], "ttlMs": 60_000, "cacheScope": "public"},
    "prompts/get": {"messages": [], "_meta": {"kept": True}},
    "resources/read": {"contents": []},
}


class Shaped(NamedTuple):
    """A response with its body in pieces."""

    status: int
    headers: tuple[tuple[bytes, bytes], ...]
    pieces: list[bytes]


def _json(text: bytes, *, status: int = 200, type: bytes = JSON[1]) -> Shaped:
    return Shaped(status, ((b"content-type", type), (b"content-length", b"%d" % len(text))), [text])


def _sse(*pieces: bytes) -> Shaped:
    return Shaped(200, (SSE, (b"cache-control", b"no-cache")), list(pieces))


def _every(text: bytes, size: int) -> list[bytes]:
    return [text[at : at + size] for at in range(0, len(text), size)]


def _event(text: bytes, *, end: bytes = b"\n", before: bytes = b"event: message") -> bytes:
    return before + end + b"data: " + text + end + end


def _pretty(text: bytes) -> bytes:
    return json.dumps(json.loads(text), indent=1).encode()


def _changed(text: bytes, **members: Any) -> bytes:
    return json.dumps({**json.loads(text), **members}).encode()


def _lines(text: bytes) -> bytes:
    return b"".join(b"data: " + line + b"\n" for line in _pretty(text).splitlines()) + b"\n"


def _failed(text: bytes) -> bytes:
    return json.dumps({"jsonrpc": "2.0", "id": json.loads(text)["id"], "error": {"code": 7, "message": "no"}}).encode()


OTHERS = {"sessionId": "the server's", "expiresAt": "2030-01-01T00:00:00Z"}
OWN_META = {"_meta": {"io.modelcontextprotocol/session": OTHERS, "kept": 1}, "content": []}
SHAPES: Mapping[str, Callable[[bytes], Shaped]] = {
    "json": _json,
    "json_chunks": lambda text: Shaped(200, (JSON,), [*_every(text, 9), b""]),
    "json_pretty": lambda text: _json(_pretty(text)),
    "json_charset": lambda text: _json(text, type=b"Application/JSON; charset=utf-8"),
    "sse": lambda text: _sse(NOTE + _event(text)),
    "sse_pieces": lambda text: _sse(NOTE, _event(text), b""),
    "sse_crlf": lambda text: _sse(NOTE.replace(b"\n", b"\r\n"), _event(text, end=b"\r\n")),
    "sse_cr": lambda text: _sse(_event(text, end=b"\r")),
    "sse_comments": lambda text: _sse(b": hello\n\n", b"retry: 100\n\n", b": x\n" + _event(text), b": bye\n\n"),
    "sse_odd": lambda text: _sse(*_every(NOTE + _event(text, end=b"\r\n"), 7)),
    "sse_bytes": lambda text: _sse(*_every(_event(text), 1)),
    "sse_ids": lambda text: _sse(b"id: 40\ndata:\n\n", _event(text, before=b"id: 41")),
    "sse_lines": lambda text: _sse(_lines(text)),
    "sse_bom": lambda text: _sse(b"\xef\xbb\xbf" + _event(text)),
    "sse_twice": lambda text: _sse(_event(text) + _event(text)),
    "sse_after": lambda text: _sse(_event(text), NOTE),
    "sse_endless": lambda text: _sse(_event(text).rstrip()),
    "sse_error": lambda text: _sse(_event(_failed(text))),
    "sse_other_id": lambda text: _sse(_event(_changed(text, id="another"))),
    "sse_junk": lambda text: _sse(b"data: {junk\n\n", _event(text)),
    "html": lambda text: _json(b"<html></html>", type=b"text/html"),
    "text": lambda text: _json(text, type=b"text/plain"),
    "other_id": lambda text: _json(_changed(text, id="another")),
    "no_id": lambda text: _json(b'{"jsonrpc":"2.0","result":{}}'),
    "error": lambda text: _json(_failed(text)),
    "error_400": lambda text: _json(_failed(text), status=400),
    "plain_404": lambda text: _json(b"gone", status=404, type=b"text/plain"),
    "result_500": lambda text: _json(text, status=500),
    "accepted": lambda text: Shaped(202, (), [b""]),
    "no_body": lambda text: Shaped(200, (JSON,), [b""]),
    "no_content": lambda text: Shaped(204, (), [b""]),
    "short_length": lambda text: Shaped(200, (JSON, (b"content-length", b"3")), [text]),
    "long_length": lambda text: Shaped(200, (JSON, (b"Content-Length", b"999")), [text]),
    "two_lengths": lambda text: Shaped(200, (JSON, (b"content-length", b"1"), (b"content-length", b"2")), [text]),
    "gzip": lambda text: Shaped(200, (JSON, (b"content-encoding", b"gzip")), [b"\x1f\x8b" + text]),
    "cookies": lambda text: Shaped(200, (JSON, (b"set-cookie", b"a=1"), (b"set-cookie", b"b=2")), [text]),
    "truncated": lambda text: _json(text[:-2]),
    "trailing": lambda text: _json(text + b" \n"),
    "junk_behind": lambda text: _json(text + b"x"),
    "not_utf8": lambda text: _json(text[:-1] + b',"x":"\xff"}'),
    "bom": lambda text: _json(b"\xef\xbb\xbf" + text),
    "array": lambda text: _json(b"[" + text + b"]"),
    "result_null": lambda text: _json(_changed(text, result=None)),
    "result_list": lambda text: _json(_changed(text, result=[1])),
    "result_empty": lambda text: _json(_changed(text, result={})),
    "result_twice": lambda text: _json(text[:-1] + b',"result":{"second":true}}'),
    "meta_null": lambda text: _json(_changed(text, result={"_meta": None})),
    "meta_list": lambda text: _json(_changed(text, result={"_meta": []})),
    "meta_own": lambda text: _json(_changed(text, result=OWN_META)),
    "meta_empty": lambda text: _json(_changed(text, result={"_meta": {}, "x": "é\u2028"})),
    "field_own": lambda text: _json(_changed(text, sessionId="the server's")),
    "id_number": lambda text: _json(text.replace(b'"id": 1', b'"id": 1.0')),
    "deep": lambda text: _json(_changed(text, result={"x": json.loads("[" * 60 + "]" * 60)})),
    "names_header": lambda text: Shaped(200, (JSON, (b"Mcp-Session-Id", b"the-servers")), [text]),
}


async def _tool(session: Session | None, name: str, given: dict[str, Any]) -> Any:
    """Run a tool in a session."""
    if session is None:
        return "nobody"
    if name == "remember":
        session.state.update(given)
    elif name == "grow":
        session.state["long"] = "x" * 5000
    elif name == "unwritable":
        session.state["set"] = {1}
    elif name == "nest":
        session.state.setdefault("list", []).append(len(session.state))
    elif name == "count":
        return await session.data.increment("calls")
    elif name == "end":
        await session.end("by tool")
    elif name == "can":
        return await session.client_capabilities()
    return dict(session.state) if name in {"remember", "look", "nest"} else session.ref


class Server:
    """An MCP server.

    Args:
        seen: Called with each request as it arrived.
        shape: The shape of answers to requests that do not name another.
        stateful: Whether it keeps transport sessions of its own.
    """

    def __init__(self, seen: Callable[[dict[str, Any]], None], *, shape: str = "json", stateful: bool = False) -> None:
        self._seen = seen
        self._shape = shape
        self._stateful = stateful
        self._own: set[str] = set()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            for moment in ("startup", "shutdown"):
                await receive()
                await send({"type": f"lifespan.{moment}.complete"})
            return
        if scope["type"] == "websocket":
            await send({"type": "websocket.close", "code": 1000})
            return
        body = await read(receive)
        self._seen(_seen(scope, body))
        headers = {name: value.decode("latin-1") for name, value in scope["headers"]}
        await self._send(send, headers, await self._response(scope, body, headers))

    async def _send(self, send: Send, headers: Mapping[bytes, str], shaped: Shaped) -> None:
        shape = headers.get(b"x-shape")
        if shape == "raises":
            raise RuntimeError("before the start")
        if shape == "silent":
            return
        await send({"type": "http.response.start", "status": shaped.status, "headers": list(shaped.headers)})
        if shape == "raises_late":
            raise RuntimeError("after the start")
        for place, piece in enumerate(shaped.pieces, 1):
            more = place < len(shaped.pieces)
            await send({"type": "http.response.body", "body": piece, "more_body": more})

    async def _response(self, scope: Scope, body: bytes, headers: Mapping[bytes, str]) -> Shaped:
        guard = headers.get(b"x-guard")
        own = headers.get(b"mcp-session-id")
        if guard is not None:
            return _json(b'{"error":"not you"}', status=int(guard))
        if self._stateful and own is not None and own not in self._own:
            return _json(b'{"error":"no such transport session"}', status=404)
        if scope["method"] != "POST":
            return self._bodyless(scope["method"], own, headers)
        message = json.loads(body) if body.startswith(b"{") else {}
        if "id" not in message or "method" not in message:
            return Shaped(202, (), [b""])
        text = json.dumps({"jsonrpc": "2.0", "id": message["id"], **await self._answer(scope, message)}).encode()
        shaped = SHAPES.get(headers.get(b"x-shape", self._shape), _json)(text)
        if self._stateful and message["method"] == "initialize" and own is None:
            own = f"servers-{len(self._own) + 1}"
            self._own.add(own)
        return shaped._replace(headers=(*shaped.headers, *self._names(own)))

    def _names(self, own: str | None) -> tuple[tuple[bytes, bytes], ...]:
        return ((b"Mcp-Session-Id", own.encode("latin-1")),) if self._stateful and own is not None else ()

    def _bodyless(self, method: str, own: str | None, headers: Mapping[bytes, str]) -> Shaped:
        if method == "GET" and (self._stateful or b"last-event-id" in headers):
            return _sse(NOTE, b"id: 42\n" + NOTE)._replace(headers=(SSE, *self._names(own)))
        if method == "DELETE" and self._stateful and own is not None:
            self._own.discard(own)
            return Shaped(200, self._names(own), [b""])
        return Shaped(405, ((b"allow", b"POST"),), [b""])

    async def _answer(self, scope: Scope, message: dict[str, Any]) -> dict[str, Any]:
        params = message.get("params") or {}
        if message["method"] == "tools/call":
            try:
                content = await _tool(scope.get("mcp_session"), params.get("name", ""), params.get("arguments") or {})
            except ValueError as error:
                content = type(error).__name__
            return {"result": {"content": content}}
        if message["method"] in RESULTS:
            return {"result": RESULTS[message["method"]]}
        return {"error": {"code": -32601, "message": "Method not found"}}


def _seen(scope: Scope, body: bytes) -> dict[str, Any]:
    """Return one request as it arrived, with its session."""
    session: Session | None = scope.get("mcp_session")
    correlation = current_correlation()
    return {
        "method": scope["method"],
        "path": scope["path"],
        "headers": scope["headers"],
        "body": body,
        "scope": sorted(name for name in scope if name.startswith("mcp") and name != MISSING_SESSION_KEY),
        "session": None if session is None else _facts(session),
        "is_current": find_session() is session,
        "in_state": scope.get("state", {}).get("mcp_session") is session,
        "correlation": None if correlation is None else [correlation.id, correlation.source],
    }


def _facts(session: Session) -> dict[str, Any]:
    who = session.principal
    facts = {
        "ref": session.ref,
        "id": session.id,
        "client": session.client,
        "trace": session.traceparent,
        "principal": None if who is None else [who.client_id, who.issuer, who.subject],
        "created": int(session.created_at.timestamp()),
        "expires": int(session.expires_at.timestamp()),
    }
    return {name: value for name, value in facts.items() if value is not None}
