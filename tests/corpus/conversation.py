"""One scenario: requests to one middleware, each recorded with everything that it caused."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import clients
import msgspec
from anyio.lowlevel import checkpoint
from clients import LEGACY, MODERN, Clock, Header, Incoming, lifespan
from clients import SESSION_KEY as KEY
from opentelemetry.sdk.trace import ReadableSpan
from starlette.authentication import SimpleUser
from starlette.types import ASGIApp, Message

from mcp_sessions import MCPSessionMiddleware

from .fixed import ALIAS, ASKED, Levels, Spans
from .options import SETS, options
from .servers import Server


class Answer(clients.Answer):
    """The answer to a request, read leniently, so that a conversation goes on after a refusal."""

    @property
    def body(self) -> bytes:
        return b"".join(message.get("body", b"") for message in self.messages)

    @property
    def members(self) -> dict[str, Any]:
        """The JSON-RPC answer, from JSON or from the last event, or empty."""
        for text in (self.body, *(line.removeprefix(b"data: ") for line in reversed(self.body.splitlines()))):
            try:
                found = json.loads(text)
            except ValueError:
                continue
            return found if isinstance(found, dict) else {}
        return {}

    @property
    def session(self) -> dict[str, str]:
        """The created, forked or echoed session, as a client holds it."""
        result = self.members.get("result")
        result = result if isinstance(result, dict) else {}
        return clients.credentials(result.get("session") or (result.get("_meta") or {}).get(KEY) or {})

    @property
    def header(self) -> str:
        """The named transport session."""
        heads = [header for message in self.messages for header in message.get("headers", ())]
        return next((value.decode("latin-1") for name, value in heads if name == b"mcp-session-id"), "none")


class Conversation:
    """A client of both eras, and a record of every request.

    Args:
        name: The deployment and the era, as `default/modern`.
        spans: The spans of this process.
        levels: The levels of log lines.
        folder: Where stores may keep files.
        server: The wrapped server's arguments.
    """

    def __init__(self, name: str, spans: Spans, levels: Levels, folder: Path, **server: Any) -> None:
        self.name = name
        self.set, era = name.split("/")[:2]
        self.modern = era == "modern"
        self.user: str | None = None
        self.clock = Clock()
        self.lines: list[dict[str, Any]] = []
        self._spans, self._levels, self._folder, self._server = spans, levels, folder, server
        self._apps: list[ASGIApp] = []
        self._arrived: list[dict[str, Any]] = []
        self._facts: list[Any] = []
        self.arrive = self._arrived.append
        self.app: ASGIApp = Server(self.arrive)

    def middleware(self, set: str) -> MCPSessionMiddleware:
        """Wrap a new server in a new middleware; the folder `missing` is removed once the options are checked."""
        missing = self._folder / "missing"
        missing.mkdir()
        made = MCPSessionMiddleware(Server(self.arrive, **self._server), **self.given(set))
        missing.rmdir()
        return made

    def given(self, set: str) -> dict[str, Any]:
        """Return the options of a deployment in this conversation."""
        flat = {"listen": self._facts.append, "clock": self.clock, **SETS[set]}
        if "store" in flat:
            flat["store"] = flat["store"].format(folder=self._folder)
        return options(**flat)

    @asynccontextmanager
    async def served(self, app: ASGIApp) -> AsyncIterator[None]:
        """Run this application within the block, and send it all requests."""
        outer, self.app = self.app, app
        async with lifespan(app):
            yield
        self.app = outer

    # --- what clients send -----------------------------------------------------------------------

    def message(self, method: str, params: Mapping[str, Any] | None, id: object, session: Any) -> dict[str, Any]:
        """Return a JSON-RPC message of the era."""
        meta = dict((params or {}).get("_meta", {}))
        if self.modern:
            meta["io.modelcontextprotocol/protocolVersion"] = MODERN
            meta["io.modelcontextprotocol/clientCapabilities"] = {}
        if session is not None:
            meta[KEY] = session
        made = {"jsonrpc": "2.0", "method": method, "params": {**(params or {}), **({"_meta": meta} if meta else {})}}
        return made if id is None else {**made, "id": id}

    def headers(self, method: str, params: Mapping[str, Any] | None = None) -> list[Header]:
        """Return the headers of the era's clients."""
        plain = [(b"content-type", b"application/json"), (b"accept", b"application/json, text/event-stream")]
        if not self.modern:
            return [*plain, (b"mcp-protocol-version", LEGACY.encode())]
        named = [(b"mcp-name", str(params["name"]).encode())] if params and "name" in params else []
        return [*plain, (b"mcp-protocol-version", MODERN.encode()), (b"mcp-method", method.encode()), *named]

    async def send(
        self,
        method: str,
        params: Mapping[str, Any] | None = None,
        *headers: Header,
        id: object = 1,
        session: Any = None,
        **fields: Any,
    ) -> Answer:
        """Send one message."""
        body = json.dumps({**self.message(method, params, id, session), **fields}).encode()
        return await self.http("POST", body, *self.headers(method, params), *headers, label=method)

    async def tool(self, name: str, *headers: Header, session: Any = None, **arguments: Any) -> Answer:
        """Call a tool."""
        return await self.send("tools/call", {"name": name, "arguments": arguments}, *headers, session=session)

    async def post(self, body: bytes, *headers: Header, label: str = "body") -> Answer:
        """Send a body as it is, with the headers of a tool call."""
        return await self.http("POST", body, *self.headers("tools/call"), *headers, label=label)

    async def http(
        self,
        method: str,
        body: bytes | Sequence[Message] = b"",
        *headers: Header,
        path: str = "/mcp",
        label: str = "",
        type: str = "http",
    ) -> Answer:
        """Send any request, and record everything that it causes."""
        sent = [*headers, *([(b"x-user", self.user.encode())] if self.user else [])]
        scope: dict[str, Any] = {"type": type, "method": method, "path": path, "headers": [*sent], "extensions": {}}
        if self.user is not None:
            scope["user"] = SimpleUser(self.user)
        whole = body if isinstance(body, bytes) else b"".join(chunk.get("body", b"") for chunk in body)
        chunks = [{"type": "http.request", "body": body}] if isinstance(body, bytes) else body
        answer, raised = Answer(), None
        asked = ASKED.set(True)
        try:
            await self.app(scope, Incoming(*chunks), answer)
        except Exception as error:  # noqa: BLE001  # whatever it is, it is recorded
            raised = error.__class__.__name__
        finally:
            ASKED.reset(asked)
        await checkpoint()  # what goes on in the background
        usual = {**_USUAL, "method": method, "path": path, "headers": sent, "body": whole}
        at = f"{self.name} #{len(self.lines) + 1} {method} {label}".rstrip()
        is_left = scope.get("mcp_session") is not None
        self.lines.append({"at": at, **_answered(answer), **self._came_of_it(usual), "raised": raised, "left": is_left})
        return answer

    # --- what is recorded ------------------------------------------------------------------------

    def _came_of_it(self, usual: Mapping[str, Any]) -> dict[str, Any]:
        """Return what a request caused beside its answer; of a forwarded request only the differences."""
        came = {
            "arrived": [_unlike(one, usual) for one in self._arrived],
            "facts": [
                {"is": type(fact).__name__, **_unlike(msgspec.structs.asdict(fact), _NO_NEWS)} for fact in self._facts
            ],
            "log": list(self._levels.names),
            "spans": sorted(map(_span, self._spans.ended), key=str),
        }
        for kept in (self._arrived, self._facts, self._spans.ended, self._levels.names):
            kept.clear()
        return came


_USUAL = {"scope": ["mcp_session"], "session": None, "is_current": True, "in_state": True, "correlation": None}
_NO_NEWS: Mapping[str, Any] = {"ref": None, "trace": None, "method": None, "of_principal": False}


def _unlike(one: Mapping[str, Any], usual: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in one.items() if name not in usual or value != usual[name]}


def _answered(answer: Answer) -> dict[str, Any]:
    """Return the status and headers, the body, the number of its pieces, and all other messages."""
    starts = [message for message in answer.messages if message["type"].endswith(".start")]
    bodies = [message for message in answer.messages if message["type"].endswith(".body")]
    others = [message for message in answer.messages if message not in starts and message not in bodies]
    ends = [place for place, message in enumerate(bodies, 1) if not message.get("more_body", False)]
    return {
        "heads": [[start["status"], list(start.get("headers", ()))] for start in starts],
        "body": answer.body,
        "pieces": len(bodies),
        "ends": None if ends == [len(bodies)] else ends,
        "others": others,
    }


def _span(span: ReadableSpan) -> dict[str, Any]:
    assert span.context is not None
    attributes = span.attributes or {}
    names = ("mcp.session.id", "session.id", ALIAS)
    refs = [attributes.get(name) for name in names]  # another name for one is an alias that another test has given
    came = {
        "name": span.name,
        "kind": span.kind.name,
        "id": f"{span.context.trace_id:x}/{span.context.span_id:x}",
        "parent": None if span.parent is None else f"{span.parent.trace_id:x}/{span.parent.span_id:x}",
        "links": sorted(f"{link.context.trace_id:x}/{link.context.span_id:x}" for link in span.links),
        "attributes": {name: value for name, value in sorted(attributes.items()) if name in names or value not in refs},
        "status": span.status.status_code.name,
        "events": sorted(event.name for event in span.events),
    }
    return _unlike(came, {"parent": None, "links": [], "status": "UNSET", "events": []})
