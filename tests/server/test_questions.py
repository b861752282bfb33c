"""How often each dialect asks the store: the store is the only other service on the path of a request."""

from __future__ import annotations

from collections.abc import Callable
from contextvars import ContextVar
from typing import Any, ClassVar

import pytest
from apps import Server, sessions
from clients import DISCOVER, INITIALIZE, Answer, Client, Clock, call, http, user_of
from sep1364 import Speaker
from stateful import Stateful

from mcp_sessions import TransportSessions
from mcp_sessions.dialects import SEP1364Create
from mcp_sessions.stores import MemoryStore
from mcp_sessions.stores._base import METHODS

ANN = (b"x-user", b"ann")
_is_inside: ContextVar[bool] = ContextVar("_is_inside", default=False)


class Counting(MemoryStore):
    """A store that notes the names of the methods that the middleware calls."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.asked: list[str] = []

    def __getattribute__(self, name: str) -> Any:
        method = super().__getattribute__(name)
        if name not in METHODS or name == "open" or _is_inside.get():
            return method

        async def noted(*args: Any, **options: Any) -> Any:
            self.asked.append(name)
            token = _is_inside.set(True)  # what the store asks of itself is not a question of the middleware
            try:
                return await method(*args, **options)
            finally:
                _is_inside.reset(token)

        return noted

    def taken(self) -> list[str]:
        """Return what was asked since this was last called."""
        asked, self.asked = self.asked, []
        return asked


class Draft:
    """A client of the draft. It holds what it needs for its next request."""

    options: ClassVar[dict[str, Any]] = {}
    modern: ClassVar[bool] = False
    stateful: ClassVar[bool] = False

    def __init__(self, app: Any) -> None:
        self.client = Client(app, modern=self.modern)
        self.held: Any = None

    async def begin(self) -> None:
        self.held = await self.client.create(ANN)

    async def use(self, tool: str) -> Answer:
        answer = await self.client.tool(tool, ANN, session=self.held, a=1)
        if answer.session is not None and "state" in answer.session:
            self.held = {**self.held, "state": answer.session["state"]}
        return answer

    async def end(self) -> Answer:
        return await self.client.send("sessions/delete", None, ANN, session=self.held)


class Header(Draft):
    async def begin(self) -> None:
        answer = await self.client.send("initialize", INITIALIZE, ANN)
        self.held = (b"mcp-session-id", answer.headers[b"mcp-session-id"])

    async def use(self, tool: str) -> Answer:
        return await self.client.tool(tool, self.held, ANN, a=1)

    async def end(self) -> Answer:
        return await call(self.client.app, http("DELETE", headers=[self.held, ANN]))


class Bridged(Header):
    options: ClassVar = {"transport": TransportSessions(bridge=True)}
    stateful = True


class Cookie(Header):
    modern = True

    async def begin(self) -> None:
        answer = await self.client.send(DISCOVER, None, ANN)
        self.held = (b"cookie", answer.headers[b"set-cookie"].partition(b";")[0])


class Field(Draft):
    options: ClassVar = {"dialects": [SEP1364Create()]}

    def __init__(self, app: Any) -> None:
        super().__init__(app)
        self.speaker = Speaker(app)

    async def begin(self) -> None:
        self.held = (await self.speaker.say("sessions/create", {"capabilities": {}}, ANN)).json["sessionId"]

    async def use(self, tool: str) -> Answer:
        return await self.speaker.say("tools/call", {"name": tool, "arguments": {"a": 1}}, ANN, sessionId=self.held)

    async def end(self) -> Answer:
        return await self.speaker.say("sessions/delete", {"sessionId": self.held}, ANN)


class Principal(Draft):
    options: ClassVar = {"transport": TransportSessions(header=False, cookie=False, per_user=True)}

    async def begin(self) -> None:
        await self.use("whoami")

    async def use(self, tool: str) -> Answer:
        return await self.client.tool(tool, ANN, a=1)


DIALECTS = {"draft": Draft, "header": Header, "bridge": Bridged, "cookie": Cookie, "field": Field, "user": Principal}
"""By name, the clients of each dialect. Those of SEP-1364 send a session in a field."""


async def asked(kind: type[Draft], **options: Any) -> dict[str, list[str]]:
    """Return what a worker asks its store for each request of a client."""
    store = Counting(clock=Clock())
    server = Stateful() if kind.stateful else Server()
    app = sessions(server, store=store, clock=store._clock, principal=user_of, **kind.options, **options)
    client, found = kind(app), dict[str, list[str]]()

    async def note(step: str, ask: Callable[..., Any], *args: Any) -> None:
        store.taken()
        await ask(*args)
        found[step] = store.taken()

    await note("begin", client.begin)
    await note("first use", client.use, "whoami")
    await note("use", client.use, "whoami")
    if not kind.stateful:
        await note("changed state", client.use, "remember")
        await note("unchanged state", client.use, "remember")
    if kind not in {Principal, Cookie}:
        await note("end", client.end)
    return found


@pytest.mark.parametrize("tracked", [False, True])
@pytest.mark.parametrize("name", DIALECTS)
async def test_a_request_asks_the_store_once(name: str, tracked: bool) -> None:
    """A changed state that its client does not carry is a second question."""
    kind = DIALECTS[name]
    found = await asked(kind, tracked=tracked)
    assert found["use"] == ["look_up"]
    if not kind.stateful:
        assert found["changed state"] == (["look_up"] if name == "draft" else ["look_up", "write"])
        assert found["unchanged state"] == ["look_up"]


@pytest.mark.parametrize("tracked", [False, True])
@pytest.mark.parametrize("name", DIALECTS)
async def test_a_session_is_created_and_ended_in_few_questions(name: str, tracked: bool) -> None:
    """One creates it, and one ends it after its client was found to be in it."""
    found = await asked(DIALECTS[name], tracked=tracked)
    register = "register" if tracked else "register_at_epoch"
    expected = {
        "field": [register, "write"],  # the capabilities of its client
        "cookie": ["register_at_epoch"],  # only offered
    }
    if name != "user":  # whose session is found, or created, in the same request
        assert found["begin"] == expected.get(name, [register])
    first = ["look_up", *(["register"] if tracked else []), "compare_and_swap"]
    assert found["first use"] == (first if name == "cookie" else ["look_up"])
    assert found.get("end", ["look_up", "revoke"]) == ["look_up", "revoke"]
