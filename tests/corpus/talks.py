"""Conversations of correct clients, in every dialect."""

from __future__ import annotations

import json
from typing import Any

from clients import Header

from .conversation import Answer, Conversation

CLIENT = {"protocolVersion": "2025-11-25", "clientInfo": {"name": "corpus", "version": "1"}}
LABELS = {"threadId": "thread-1", "baggage": "gen_ai.conversation.id=talk-1,other=2", "openai/session": "s-1"}
DRAFT: dict[str, Any] = {"experimental": {"sessions": {}}}


def mirror(session_id: str) -> Header:
    """Return the header that names a session."""
    return (b"mcp-session-id", session_id.encode())


async def draft(c: Conversation) -> None:
    """Look around, create a session, use it with state and data, fork it, list and end it."""
    c.user = "alice"
    await c.send("initialize", {**CLIENT, "capabilities": DRAFT})
    await c.send("notifications/initialized", id=None)
    for method in ("ping", "server/discover", "tools/list", "prompts/list", "resources/templates/list"):
        await c.send(method)
    await c.tool("whoami", (b"x-own", b"own-1"), _meta=LABELS)
    await c.send("tools/call", {"name": "whoami", "_meta": LABELS}, (b"x-own", b"own-1"))
    await c.send("tools/call", {"name": "remember", "arguments": {}}, id=None)
    session = (await c.send("sessions/create", {"basket": "allowed", "_meta": LABELS})).session or {"sessionId": "none"}
    await c.tool("whoami", session=session)
    session.update((await c.tool("remember", session=session, a=1, b=["é", None])).session)
    session.update((await c.tool("nest", session=session)).session)
    await c.tool("look", mirror(session["sessionId"]), session=session)
    for name in ("grow", "unwritable", "count", "count"):
        await c.tool(name, session=session)
    for method in ("tools/list", "server/discover", "completion/complete", "tasks/get", "subscriptions/listen"):
        await c.send(method, session=session)
    await c.send("resources/read", {"uri": "file:///a"}, session=session, id="text")
    await c.send("resources/read", {"uri": "file:///%61"})
    await c.send("prompts/get", {"name": "p", "_meta": LABELS}, (b"x-own", b"own-2"), session=session, id=2**53)
    await c.send("logging/setLevel", {"level": "info"}, session=session, id=-1)
    await c.send("notifications/progress", {"progress": 1}, session=session, id=None)
    await c.send("notifications/progress", {"progress": 1}, id=None)
    reply = {"jsonrpc": "2.0", "id": 9, "result": {"_meta": {"io.modelcontextprotocol/session": session}}}
    await c.post(json.dumps(reply).encode(), label="response")
    await c.post(
        json.dumps([c.message("ping", None, 1, None), c.message("ping", None, 2, None)]).encode(), label="batch"
    )
    await c.post(json.dumps([c.message("tools/list", None, 1, session)]).encode(), label="batch with session")
    await c.send("sessions/fork", session=session)
    await c.send("sessions/delete", session=session)
    await c.tool("look", session=session)


async def forks(c: Conversation) -> None:
    """Forks, lists of sessions, and every way to an end."""
    c.user = "alice"
    session = (await c.send("sessions/create", {"basket": "allowed"})).session
    session.update((await c.tool("remember", session=session, a=1)).session)
    await c.tool("count", session=session)
    clones = [(await c.send("sessions/fork", params, session=session)).session for params in (None, {"mode": "x"})]
    for clone in clones:
        await c.tool("count", session=clone)
    page = await c.send("sessions/list")
    await c.send(
        "sessions/list", {"cursor": (page.members.get("result") or {}).get("nextCursor", "made-up")}, session=session
    )
    c.clock.now += 100
    session.update((await c.tool("remember", session=session, later=True)).session)
    await c.send("sessions/delete", session=session)
    for named in (session, *clones):
        await c.tool("look", session=named)
    await c.send("sessions/fork", session=session)
    await c.send("sessions/delete", session=session)
    second = (await c.send("sessions/create", {"basket": "allowed"})).session
    await c.tool("end", session=second)
    await c.tool("look", session=second)
    third = (await c.send("sessions/create", {"basket": "none"}, (b"x-guard", b"401"))).session
    await c.tool("look", session=third)
    c.user = None
    await c.send("sessions/list")
    c.clock.now += 8 * 24 * 3600
    await c.tool("look", session=session)


async def header(c: Conversation) -> None:
    """Act as unchanged clients of the legacy era."""
    c.user = "alice"
    opened = await c.send("initialize", {**CLIENT, "capabilities": {}})
    named = mirror(opened.header)
    await c.send("notifications/initialized", None, named, id=None)
    for name in ("whoami", "remember", "look", "count", "count", "grow", "unwritable", "nest", "look"):
        await c.tool(name, named, a=1)
    await c.tool("remember", named, b=2, _meta={"threadId": "t"})
    for method in ("tools/list", "ping", "server/discover", "resources/read", "initialize"):
        await c.send(method, {}, named)
    await c.send("notifications/cancelled", None, named, id=None)
    await c.post(b'{"jsonrpc":"2.0","id":4,"result":{}}', named, label="response")
    await c.post(b'[{"jsonrpc":"2.0","id":4,"method":"tools/list"}]', named, label="batch")
    session = (await c.send("sessions/create", {"basket": "allowed"}, named)).session
    await c.tool("remember", named, session=session, c=3)
    await c.send("sessions/list", None, named)
    await c.send("sessions/fork", {}, named)
    for method in ("GET", "OPTIONS", "PUT", "HEAD"):
        await c.http(method, b"", named)
    await c.http("GET", b"", named, (b"accept", b"text/event-stream"), (b"last-event-id", b"41"))
    await c.tool("look", named, named)
    other = mirror((await c.send("initialize", {**CLIENT, "capabilities": {}})).header)
    await c.tool("look", other)
    c.clock.now += 200
    await c.tool("look", named)
    await c.http("DELETE", b"", named, (b"x-guard", b"403"))
    await c.http("DELETE", b"", named)
    await c.http("DELETE", b"", named)
    await c.tool("look", named)
    await c.send("tools/call", {"name": "look"}, named, id=None)
    await c.http("GET", b"", named, (b"last-event-id", b"41"))
    await c.tool("end", other)
    await c.tool("look", other)
    c.clock.now += 31 * 24 * 3600
    await c.tool("look", other)


def _field(answer: Answer) -> str:
    """Return the session that an answer names as SEP-1364 does."""
    found = answer.members.get("sessionId", "none")
    return found if isinstance(found, str) else "none"


async def field(c: Conversation) -> None:
    """Use both alternatives of SEP-1364."""
    c.user = "alice"
    opened = await c.send("initialize", {**CLIENT, "capabilities": {"sampling": {}}})
    await c.send("tools/list", None, mirror("early"), sessionId=None)
    created = await c.send("sessions/create", {"capabilities": {"sampling": {}}})
    for named in (_field(opened), _field(created)):
        await c.send("notifications/initialized", None, mirror(named), id=None, sessionId=named)
        for tool in ("whoami", "can", "count", "remember", "look"):
            params = {"name": tool, "arguments": {"a": 1}}
            await c.send("tools/call", params, mirror(named), sessionId=named)
        await c.send("tools/list", None, mirror(named), sessionId=named)
        await c.send("tools/call", {"name": "whoami"}, sessionId=named)
        await c.send("tools/call", {"name": "whoami"}, mirror("another"), sessionId=named)
        await c.send("tools/call", {"name": "whoami"}, mirror(named))
        await c.send("tools/call", {"name": "whoami"}, session={"sessionId": named})
        await c.send("sessions/fork", {}, mirror(named), sessionId=named)
        await c.post(json.dumps({"jsonrpc": "2.0", "id": 7, "result": {}, "sessionId": named}).encode(), mirror(named))
        await c.http("GET", b"", mirror(named))
    draft = (await c.send("sessions/create")).session
    await c.tool("remember", session=draft, a=1)
    await c.send("tools/call", {"name": "look"}, sessionId=draft.get("sessionId"), session=draft)
    await c.send("tools/call", {"name": "look"}, mirror("x"), sessionId="x", session=draft)
    await c.send("tools/call", {"name": "look"}, sessionId=7)
    await c.send("tools/call", {"name": "look"}, mirror("made-up"), sessionId="made-up")
    for method, named in (("session/delete", _field(created)), ("terminate", _field(opened))):
        await c.send(method, {"sessionId": named}, id=None)
        await c.send(method, {"sessionId": named})
        await c.send(method, {"sessionId": named})
        await c.send("tools/call", {"name": "look"}, mirror(named), sessionId=named)


async def renewed(c: Conversation) -> None:
    """Resume sessions of SEP-1364, and create some with too little or too much."""
    c.user = "alice"
    named = _field(await c.send("session/create", {"capabilities": {"roots": {}}, "basket": 1}))
    again = {"sessionId": named, "capabilities": {"elicitation": {}}}
    await c.send("sessions/create", again, mirror(named))
    await c.send("tools/call", {"name": "can"}, mirror(named), sessionId=named)
    for member, value in (("capabilities", []), ("sessionId", 7), ("sessionId", None)):
        await c.send("sessions/create", {member: value})
    await c.send("sessions/create", {"capabilities": {"x": "y" * 20_000}})
    await c.send("session/create")
    await c.send("session/create", {"capabilities": {}}, id=None)
    await c.send("session/create", {"capabilities": {}, "sessionId": "made-up"})
    begun = _field(await c.send("initialize", {**CLIENT, "capabilities": {"roots": {}}}))
    await c.send("initialize", {**CLIENT, "capabilities": {"sampling": {}}}, mirror(begun), sessionId=begun)
    await c.send("tools/call", {"name": "can"}, mirror(begun), sessionId=begun)
    await c.send("initialize", {**CLIENT, "protocolVersion": "2024-11-05"})
    await c.send("initialize", {**CLIENT, "capabilities": DRAFT})
    await c.send("initialize", CLIENT, mirror("made-up"), sessionId="made-up")
    await c.send("initialize", CLIENT, (b"x-shape", b"error"))
    await c.send("initialize", CLIENT, (b"x-shape", b"sse_error"))
    c.user = "mallory"
    await c.send("tools/call", {"name": "can"}, mirror(named), sessionId=named)
    c.user = "alice"
    c.clock.now += 32 * 24 * 3600
    await c.send("tools/call", {"name": "can"}, mirror(named), sessionId=named)
    await c.send("initialize", CLIENT, mirror(begun), sessionId=begun)


async def bridge(c: Conversation) -> None:
    """Use a server that keeps transport sessions of its own."""
    c.user = "alice"
    await c.tool("whoami")
    opened = await c.send("initialize", {**CLIENT, "capabilities": {}})
    named, second = mirror(opened.header), mirror((await c.send("initialize", CLIENT)).header)
    await c.send("notifications/initialized", None, named, id=None)
    fields = {"sessionId": opened.members["sessionId"]} if "sessionId" in opened.members else {}
    for name in ("whoami", "remember", "look", "count"):
        await c.send("tools/call", {"name": name, "arguments": {"a": 1}}, named, **fields)
    await c.tool("look", second)
    await c.send("tools/list", None, named)
    session = (await c.send("sessions/create", None, named)).session
    await c.tool("remember", named, session=session, b=2)
    await c.send("sessions/delete", None, named, session=session)
    created = _field(await c.send("sessions/create", {"capabilities": {}}, named))
    await c.send("tools/call", {"name": "can"}, named, sessionId=created)
    await c.send("terminate", {"sessionId": created}, named)
    for event in ((), ((b"last-event-id", b"41"),), ((b"last-event-id", b"42"),)):
        await c.http("GET", b"", named, (b"accept", b"text/event-stream"), *event)
    await c.http("OPTIONS", b"", named)
    for value in ("servers-1", "servers-9", "made.up.id", "\u00e9"):
        await c.tool("whoami", mirror(value))
    await c.send("initialize", CLIENT, named)
    await c.send("initialize", CLIENT, (b"x-shape", b"error"))
    c.user = "mallory"
    await c.tool("whoami", named)
    c.user = "alice"
    await c.http("DELETE", b"", named)
    await c.http("DELETE", b"", named)
    await c.tool("whoami", named)
    await c.http("GET", b"", named)
    await c.send("terminate", fields, second)
    c.clock.now += 31 * 24 * 3600
    await c.tool("whoami", second)


async def streams(c: Conversation) -> None:
    """Resume streams while their session lives, and after its end."""
    c.user = "alice"
    session = (await c.send("sessions/create")).session
    await c.tool("whoami", (b"x-shape", b"sse_ids"), session=session)
    for event in (b"40", b"41", b"42", b"77", b""):
        await c.http("GET", b"", (b"accept", b"text/event-stream"), (b"last-event-id", event))
    await c.tool("end", (b"x-shape", b"sse_ids"), session=session)
    await c.http("GET", b"", (b"last-event-id", b"41"))
    other = (await c.send("sessions/create")).session
    await c.tool("remember", (b"x-shape", b"sse_ids"), session=other, a=1)
    c.clock.now += 8 * 24 * 3600
    await c.http("GET", b"", (b"last-event-id", b"41"))
    await c.http("POST", b"", (b"last-event-id", b"41"))
