"""Conversations with faults: in the body, the session, the server or the path."""

from __future__ import annotations

import json
from typing import Any

from clients import SESSION_KEY as KEY
from starlette.applications import Starlette
from starlette.routing import Mount, Route

from mcp_sessions import add_sessions

from .conversation import Conversation
from .servers import SHAPES, Server
from .talks import CLIENT, mirror

CALL = b'{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"whoami"'
BODIES: dict[str, bytes] = {
    "empty": b"",
    "space": b" \r\n\t",
    "not json": b"{",
    "not utf-8": b'{"a":"\xff"}',
    "bom": b"\xef\xbb\xbf" + CALL + b"}}",
    "utf-16": (CALL + b"}}").decode().encode("utf-16"),
    "nan": CALL + b',"arguments":{"x":NaN}}}',
    "infinity": CALL + b',"arguments":{"x":-Infinity}}}',
    "number": CALL + b',"arguments":{"x":' + b"7" * 300 + b"}}}",
    "deep": CALL + b',"arguments":' + b"[" * 60 + b"]" * 60 + b"}}",
    "deeper": CALL + b',"arguments":' + b"[" * 5000 + b"]" * 5000 + b"}}",
    "large": CALL + b',"arguments":{"x":"' + b"x" * 3000 + b'"}}}',
    "truncated": CALL,
    "trailing": CALL + b"}} {}",
    "spaced": b" \n" + CALL.replace(b":", b" : ") + b"}}\r\n",
    "nul": CALL + b',"arguments":"\x00"}}',
    "scalar": b"7",
    "string": b'"tools/call"',
    "null": b"null",
    "object": b"{}",
    "no version": b'{"id":1,"method":"tools/call"}',
    "other version": b'{"jsonrpc":"1.0","id":1,"method":"tools/call"}',
    "method twice": b'{"jsonrpc":"2.0","id":1,"method":"ping","method":"tools/call"}',
    "escaped twice": b'{"jsonrpc":"2.0","id":1,"method":"ping","m\\u0065thod":"tools/call"}',
    "other case": b'{"jsonrpc":"2.0","id":1,"Method":"ping","method":"tools/list"}',
    "name twice": CALL + b',"name":"look"}}',
    "arguments twice": CALL + b',"arguments":{"a":1,"a":2}}}',
    "id twice": b'{"jsonrpc":"2.0","id":1,"id":2,"method":"ping"}',
    "id null": b'{"jsonrpc":"2.0","id":null,"method":"ping"}',
    "id float": b'{"jsonrpc":"2.0","id":1.5,"method":"ping"}',
    "id object": b'{"jsonrpc":"2.0","id":{},"method":"ping"}',
    "id long": b'{"jsonrpc":"2.0","id":' + b"9" * 40 + b',"method":"ping"}',
    "id escaped": b'{"jsonrpc":"2.0","id":"\\u0061\\ud83d\\ude00","method":"tools/list"}',
    "method number": b'{"jsonrpc":"2.0","id":1,"method":1}',
    "method empty": b'{"jsonrpc":"2.0","id":1,"method":""}',
    "method surrogate": b'{"jsonrpc":"2.0","id":1,"method":"\\ud800"}',
    "params list": b'{"jsonrpc":"2.0","id":1,"method":"tools/call","params":[]}',
    "params null": b'{"jsonrpc":"2.0","id":1,"method":"tools/call","params":null}',
    "name number": b'{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":1}}',
    "meta string": CALL + b',"_meta":"x"}}',
    "meta null": CALL + b',"_meta":null}}',
    "meta twice": CALL + b',"_meta":{},"_meta":{}}}',
    "response": b'{"jsonrpc":"2.0","id":1,"result":{}}',
    "response error": b'{"jsonrpc":"2.0","id":1,"error":{"code":1,"message":"no"}}',
    "batch empty": b"[]",
    "batch of scalars": b"[1,2]",
    "batch": b'[{"jsonrpc":"2.0","method":"a"},{"jsonrpc":"2.0","method":"b"},{"jsonrpc":"2.0","method":"c"}]',
    "batch creates": b'[{"jsonrpc":"2.0","id":1,"method":"sessions/create"}]',
    "batch initializes": b'[{"jsonrpc":"2.0","id":1,"method":"initialize"}]',
    "create as notification": b'{"jsonrpc":"2.0","method":"sessions/create"}',
    "delete without": b'{"jsonrpc":"2.0","id":1,"method":"sessions/delete"}',
    "long number": b'{"jsonrpc":"2.0","id":1,"method":"sessions/create","params":{"x":' + b"7" * 5000 + b"}}",
    "field list": b'{"jsonrpc":"2.0","id":1,"method":"tools/call","sessionId":[],"params":{}}',
    "field twice": b'{"jsonrpc":"2.0","id":1,"method":"tools/list","sessionId":"a","sessionId":"b"}',
}
VERSION, CAPABILITIES = (f"io.modelcontextprotocol/{name}" for name in ("protocolVersion", "clientCapabilities"))
METADATA: tuple[Any, ...] = (
    None, 7, "text", [], {}, {"sessionId": None}, {"sessionId": 7}, {"sessionId": ""}, {"sessionId": "a.b.c"},
    {"sessionId": "a", "state": None}, {"sessionId": "a", "state": 7}, {"sessionId": "\ud800"},
    {"sessionId": "x" * 9000}, {"sessionId": "a", "other": {"deep": [1]}},
)  # fmt: skip


async def bodies(c: Conversation) -> None:
    """Send bad bodies and headers."""
    for label, body in BODIES.items():
        await c.post(body, label=label)
    for metadata in METADATA:
        for request_id in (1, None):
            await c.send("tools/call", {"name": "whoami", "_meta": {KEY: metadata}}, id=request_id)
    for headers in (
        [(b"content-encoding", b"gzip")],
        [(b"content-encoding", b"Identity")],
        [(b"content-length", b"99999999999")],
        [(b"content-length", b"x")],
        [mirror("a"), mirror("a")],
        [mirror("a"), mirror("b.c.d")],
        [mirror("")],
        [(b"content-type", b"text/plain")],
        [(b"mcp-method", b"ping")],
        [(b"mcp-protocol-version", b"2099-01-01")],
        [(b"origin", b"https://example.com"), (b"traceparent", b"00-" + b"1" * 32 + b"-" + b"2" * 16 + b"-01")],
    ):
        for method in ("tools/call", "sessions/create"):
            await c.send(method, {}, *headers)
    other = c.message("sessions/create", None, 1, None)
    other["params"] = {"_meta": {VERSION: "2099-01-01", CAPABILITIES: {}}}
    for method in ("sessions/create", "tools/call"):
        await c.http("POST", json.dumps(other).encode(), *c.headers(method), label="other version")
    pieces = [{"type": "http.request", "body": piece, "more_body": True} for piece in (CALL, b"}}")]
    plain = c.headers("tools/call")
    await c.http("POST", [*pieces, {"type": "http.request"}], *plain, label="in pieces")
    await c.http("POST", [pieces[0], {"type": "http.disconnect"}], *plain, label="cut short")
    await c.http("POST", [{"type": "http.disconnect"}], *plain, label="left at once")
    await c.http("POST", CALL + b"}}", label="without headers")
    if c.set == "small":
        await c.http("POST", pieces[:1], *plain, label="too slow")


async def refused(c: Conversation) -> None:
    """Use sessions that are forged, foreign, of another kind or deployment, in the wrong place, or over."""
    c.user = "alice"
    session = (await c.send("sessions/create")).session
    transport = (await c.send("initialize", {**CLIENT, "capabilities": {}})).header
    field = (await c.send("sessions/create", {"capabilities": {}})).members.get("sessionId", "none")
    session.update((await c.tool("remember", session=session, a=1)).session)
    token, state = session["sessionId"], session.get("state", "none")
    head, payload, signature = token.split(".")
    forged = [token[:-1], token + "A", f"{head}.{payload}.", f"{head}..{signature}", f"{payload}.{head}.{signature}"]
    forged += [head, f"{head}.{payload}.{signature[::-1]}", f" {token}", token.upper(), "." * 50, transport, field]
    for named in forged:
        await c.tool("look", session={"sessionId": named})
        await c.tool("look", mirror(named))
    for sealed in (state[:-2], state[::-1], "", "v1.a.b", state + state, "x" * 5000):
        await c.tool("look", session={"sessionId": token, "state": sealed})
    await c.tool("look", mirror(token))
    await c.tool("look", mirror(transport), session=session)
    for method in ("sessions/create", "sessions/delete", "sessions/fork", "tools/list", "ping"):
        await c.send(method, session={"sessionId": "made-up"})
        await c.send(method, session={"sessionId": "made-up"}, id=None)
    for user in ("mallory", None):
        c.user = user
        await c.tool("look", session=session)
        await c.tool("look", mirror(transport))
        await c.send("sessions/delete", session=session)
        await c.http("DELETE", b"", mirror(transport))
    c.user = "alice"
    for other in (
        "other_audience",
        "other_issuer",
        "rotated",
        "eddsa",
        "no_store",
        "no_store_allowed",
        "tracked",
        "bridge",
        "sessionless",
    ):
        await _elsewhere(c, other, session, transport)
    for seconds in (110, 130, 400, 8 * 24 * 3600):
        c.clock.now += seconds
        session.update((await c.tool("remember", session=session, later=seconds)).session)
        await c.send("tools/list", session=session)
        await c.tool("look", mirror(transport))
    c.clock.now -= 9 * 24 * 3600
    await c.tool("look", session=session)


async def _elsewhere(c: Conversation, other: str, session: dict[str, str], transport: str) -> None:
    """Use the same ids at another deployment."""
    async with c.served(c.middleware(other)):
        await c.tool("look", session=session)
        await c.tool("look", mirror(transport))
        await c.send("sessions/delete", session=session)
        await c.http("DELETE", b"", mirror(transport))


async def shapes(c: Conversation) -> None:
    """Get every shape of answer, within a session and without one."""
    session = (await c.send("sessions/create")).session
    field = (await c.send("sessions/create", {"capabilities": {}})).members.get("sessionId")
    for shape in (*SHAPES, "raises", "raises_late", "silent"):
        asked = (b"x-shape", shape.encode())
        await c.tool("whoami", asked)
        await c.tool("remember", asked, session=session, shape=shape)
        if field is not None:
            await c.send("tools/call", {"name": "look"}, asked, mirror(field), sessionId=field)
    for guard in (b"401", b"403", b"500"):
        for method in ("sessions/create", "sessions/delete", "tools/call", "tools/list"):
            await c.send(method, None, (b"x-guard", guard), session=None if method == "sessions/create" else session)
    for shape in ("error", "sse", "html", "result_500", "other_id", "raises", "silent"):
        await c.send("sessions/create", None, (b"x-shape", shape.encode()))


async def handshakes(c: Conversation) -> None:
    """Get every shape of answer to `initialize` and `server/discover`."""
    for shape in (*SHAPES, "raises", "raises_late", "silent"):
        opened = await c.send("initialize", {**CLIENT, "capabilities": {}}, (b"x-shape", shape.encode()))
        await c.tool("whoami", mirror(opened.header))
        await c.send("server/discover", None, (b"x-shape", shape.encode()))


async def places(c: Conversation) -> None:
    """Use methods and paths, with and without a session."""
    session = (await c.send("sessions/create")).session or {"sessionId": "a.b.c"}
    call = json.dumps(c.message("tools/call", {"name": "whoami"}, 1, session)).encode()
    plain = c.headers("tools/call")
    for path in ("/mcp", "/mcp/", "/mcp/more", "/mcpx", "/other", "/", "", "/MCP"):
        await c.http("POST", call, *plain, path=path, label=path)
        await c.http("GET", b"", mirror(session["sessionId"]), path=path, label=path)
    for method in ("GET", "DELETE", "OPTIONS", "PUT", "PATCH", "HEAD"):
        await c.http(method, b"", *plain)
        await c.http(method, call, *plain, label="body")
        await c.http(method, b"", mirror("made.up.id"), label="header")
    await c.http("POST", b"a=b", (b"content-type", b"application/x-www-form-urlencoded"), label="form")
    await c.http("GET", type="websocket")


async def routed(c: Conversation) -> None:
    """Use `add_sessions` on a routed application, and on a mounted one."""
    server = Server(c.arrive, shape="sse")
    for app, path in (
        (Starlette(routes=[Route("/mcp", server, methods=["GET", "POST", "DELETE"])]), "/mcp"),
        (Starlette(routes=[Mount("/api", app=Starlette(routes=[Mount("/mcp", app=server)]))]), "/api/mcp"),
    ):
        async with c.served(add_sessions(app, path=path, **c.given(c.set))):
            session: dict[str, str] = {}
            for method, named in (("sessions/create", None), ("tools/call", session), ("sessions/delete", session)):
                body = json.dumps(c.message(method, {"name": "whoami"}, 1, named)).encode()
                session.update((await c.http("POST", body, *c.headers(method), path=path, label=method)).session)
            await c.http("GET", path=path)
            await c.http("POST", b"{}", *c.headers("ping"), path="/elsewhere")
