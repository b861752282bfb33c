"""A raw client of SEP-1364, and a small server with transport sessions of its own."""

from typing import Any

from apps import Server
from clients import Answer, Client, Header
from starlette.types import Message, Receive, Scope, Send

OWN = "the-server-s-own"
SERVES = {"protocolVersion": "2025-11-25", "clientInfo": {"name": "c", "version": "1"}}


class Speaker:
    """A client that writes a session's id into the field, and mirrors it in the header."""

    def __init__(self, app: Any, *, modern: bool = False) -> None:
        self.client = Client(app, modern=modern)

    async def say(
        self,
        method: str,
        params: dict[str, Any] | None = None,
        *headers: Header,
        mirrored: bool = True,
        id: object = 1,
        **fields: Any,
    ) -> Answer:
        """Send one message with these members beside `params`."""
        message = {**self.client.message(method, params, id=id), **fields}
        named = fields.get("sessionId")
        mirror = [(b"mcp-session-id", str(named).encode())] if mirrored and named is not None else []
        return await self.client.post(message, *mirror, *headers, method=method)

    async def initialize(self, *headers: Header, **fields: Any) -> Answer:
        return await self.say("initialize", {**SERVES, "capabilities": {"sampling": {}}}, *headers, **fields)

    async def create(self, **capabilities: Any) -> str:
        """Create a session by the first alternative."""
        created: str = (await self.say("sessions/create", {"capabilities": capabilities})).result["sessionId"]
        return created

    async def tool(self, name: str, session: str, *headers: Header, **more: Any) -> Answer:
        """Call a tool within a session."""
        return await self.say("tools/call", {"name": name, "arguments": {}}, *headers, sessionId=session, **more)

    async def reply(self, session: object, *headers: Header) -> Answer:
        """Answer a request of the server's, with this session in the field."""
        return await self.client.post({"jsonrpc": "2.0", "id": 7, "result": {}, "sessionId": session}, *headers)


class Stateful:
    """The small server with a transport session, which `initialize` names in a header and DELETE ends."""

    def __init__(self, server: Server) -> None:
        self.server = server
        self.ended: list[str] = []

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["method"] == "DELETE":
            self.ended += [value.decode() for name, value in scope["headers"] if name == b"mcp-session-id"]

        async def naming(message: Message) -> None:
            if message["type"] == "http.response.start" and b'"initialize"' in self.server.last.body:
                message = {**message, "headers": [*message["headers"], (b"mcp-session-id", OWN.encode())]}
            await send(message)

        await self.server(scope, receive, naming)
