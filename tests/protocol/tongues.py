"""The dialects as one: what a client of each does to begin a session, to use it and to end it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from apps import Server
from clients import SESSION_KEY, Answer, Client, Header, call, http
from sep1364 import SERVES, Speaker, Stateful
from starlette.types import ASGIApp

from mcp_sessions import SEP1364Create, SEP1364Initialize


class Tongue:
    """The draft: `_meta`, `sessions/create`, `sessions/delete`. A session is what the client holds of it."""

    options: Mapping[str, Any] = {}  # of the middleware

    @staticmethod
    def around(server: Server) -> ASGIApp:
        """Return the server as one to which the dialect belongs."""
        return server

    def __init__(self, app: ASGIApp) -> None:
        self.client = Client(app, modern=False)
        self.speaker = Speaker(app)

    async def begin(self) -> Answer:
        return await self.client.send("sessions/create")

    def held(self, answer: Answer) -> dict[str, str]:
        """Return the session that an answer names."""
        session = dict(answer.result["session"])
        del session["expiresAt"]
        return session

    async def use(self, session: dict[str, str], tool: str = "whoami", *headers: Header) -> Answer:
        answer = await self.client.tool(tool, *headers, session=session)
        echoed = answer.json.get("result", {}).get("_meta", {}).get(SESSION_KEY, {})
        session.update({name: value for name, value in echoed.items() if name != "expiresAt"})
        return answer

    async def end(self, session: dict[str, str]) -> Answer:
        return await self.client.delete(session)


class TransportHeader(Tongue):
    """The header, `initialize`, HTTP DELETE."""

    async def begin(self) -> Answer:
        return await self.client.send("initialize", {**SERVES, "capabilities": {}})

    def held(self, answer: Answer) -> dict[str, str]:
        return {"sessionId": answer.headers[b"mcp-session-id"].decode()}

    async def use(self, session: dict[str, str], tool: str = "whoami", *headers: Header) -> Answer:
        return await self.client.tool(tool, _mirror(session), *headers)

    async def end(self, session: dict[str, str]) -> Answer:
        return await call(self.client.app, http("DELETE", headers=[_mirror(session)]))


class Bridged(TransportHeader):
    """The same in front of a server that names transport sessions of its own, which travel inside of ours."""

    options: Mapping[str, Any] = {"bridge": True}

    @staticmethod
    def around(server: Server) -> ASGIApp:
        return Stateful(server)


class Alternative1(Tongue):
    """The field, `sessions/create`, `sessions/delete`."""

    options: Mapping[str, Any] = {"dialects": [SEP1364Create()]}

    async def begin(self) -> Answer:
        return await self.speaker.say("sessions/create", {"capabilities": {}})

    def held(self, answer: Answer) -> dict[str, str]:
        return {"sessionId": answer.json["sessionId"]}

    async def use(self, session: dict[str, str], tool: str = "whoami", *headers: Header) -> Answer:
        return await self.speaker.tool(tool, session["sessionId"], *headers)

    async def end(self, session: dict[str, str]) -> Answer:
        return await self.speaker.say("sessions/delete", dict(session))


class Alternative2(Alternative1):
    """The field, `initialize`, `terminate`."""

    options: Mapping[str, Any] = {"dialects": [SEP1364Initialize()]}

    async def begin(self) -> Answer:
        return await self.speaker.initialize()

    async def end(self, session: dict[str, str]) -> Answer:
        return await self.speaker.say("terminate", dict(session))


def _mirror(session: Mapping[str, str]) -> Header:
    return (b"mcp-session-id", session["sessionId"].encode())


TONGUES: Final[Mapping[str, type[Tongue]]] = {
    "draft": Tongue,
    "transport": TransportHeader,
    "bridge": Bridged,
    "alternative 1": Alternative1,
    "alternative 2": Alternative2,
}
