"""The examples that place sessions in an application, or show them to its operator."""

from __future__ import annotations

import json
import sys
from typing import Any

import pytest
from clients import Clock
from example_servers import (
    HeldSession,
    ToolFailed,
    call_without_session,
    client_of,
    connected,
    http_of,
    running,
    together,
)
from mcp import Client, MCPError


async def listed(client: Client, session: HeldSession | None = None) -> set[str]:
    """Return the names of the listed tools."""
    tools = await client.list_tools(meta=None if session is None else session.meta)
    return {tool.name for tool in tools.tools}


class TestFastAPIApp:
    """The example `fastapi_app`: a catalogue over HTTP, and a basket for each session."""

    async def test_each_session_fills_a_basket_of_its_own(self) -> None:
        """Items of parallel calls are all in the basket, and its price comes from the application's catalogue."""
        async with running("fastapi_app") as app, client_of(app, "/api/mcp") as client:
            a, b = await HeldSession.create(client), await HeldSession.create(client)
            await together([a.call("add", item=item) for item in ("pen", "book", "pen")])
            assert await b.call("add", item="book") == ["book"]
            assert [await a.call("total"), await b.call("total")] == [18, 12]
            with pytest.raises(ToolFailed, match="there is no ship; there are: pen, book"):
                await a.call("add", item="ship")

    async def test_the_application_is_unchanged(self) -> None:
        """The application's routes answer, its lifespan ran, and its OpenAPI document has no MCP endpoint."""
        async with running("fastapi_app") as app, http_of(app) as http:
            assert (await http.get("/catalogue")).json() == {"pen": 3, "book": 12}
            assert list((await http.get("/openapi.json")).json()["paths"]) == ["/catalogue"]


class TestStarletteApp:
    """The example `starlette_app`: responses that name the session for an access log."""

    async def test_a_session_remembers_who_was_greeted(self) -> None:
        """A name is remembered within its session alone."""
        async with running("starlette_app") as app, client_of(app, "/tools/mcp") as client:
            a, b = await HeldSession.create(client), await HeldSession.create(client)
            assert await a.call("greet", name="Ann") == "Hello, Ann."
            assert await a.call("greet", name="Ann") == "Hello again, Ann."
            assert await b.call("greet", name="Ann") == "Hello, Ann."

    async def test_a_response_names_the_session_of_its_request(self) -> None:
        """Responses name the session by its ref, and those without a session name none."""
        async with running("starlette_app") as app, http_of(app) as http:
            accept = {"accept": "application/json, text/event-stream"}

            async def post(method: str, params: dict[str, Any]) -> Any:
                body = {"jsonrpc": "2.0", "id": 1, "method": method, "params": params}
                return await http.post("/tools/mcp", json=body, headers=accept)

            created = (await post("sessions/create", {})).json()["result"]["session"]
            meta = {"io.modelcontextprotocol/session": {"sessionId": created["sessionId"]}}
            refs = [(await post("ping", {"_meta": meta})).headers.get("x-session-ref") for _ in range(2)]
            assert refs[0] == refs[1]
            assert str(refs[0]).startswith("ses_")
            assert "x-session-ref" not in (await post("ping", {})).headers
            health = await http.get("/health")
            assert (health.text, health.headers.get("x-session-ref")) == ("well", None)


class TestFastMCPApp:
    """The example `fastmcp_app`: FastMCP's state, kept for a session."""

    pytestmark = pytest.mark.filterwarnings("ignore:Unclosed <MemoryObject:ResourceWarning")

    async def test_a_session_keeps_its_language(self) -> None:
        """A session keeps its language, though every request has a connection of its own."""
        async with connected("fastmcp_app") as client:
            a, b = await HeldSession.create(client), await HeldSession.create(client)
            assert await a.call("choose_language", language="Greek") == "From now on: Greek."
            assert await a.call("say", word="moon") == "moon, in Greek"
            assert await b.call("say", word="moon") == "moon, in English"
            assert await a.call("say", word="sun") == "sun, in Greek"
            assert [await a.call("history"), await b.call("history")] == [["moon", "sun"], ["moon"]]

    async def test_a_call_without_a_session_fails(self) -> None:
        """The error of a call without a session names what is missing."""
        async with running("fastmcp_app") as app, http_of(app) as http:
            assert "Session required" in await call_without_session(http, "say", word="moon")

    async def test_a_model_does_not_see_the_session(self) -> None:
        """The schema of a tool has its own arguments alone."""
        async with connected("fastmcp_app") as client:
            asked = {tool.name: sorted(tool.input_schema["properties"]) for tool in (await client.list_tools()).tools}
            assert asked == {"choose_language": ["language"], "say": ["word"], "history": []}


class TestAuditLog:
    """The example `audit_log`: users, actions and sessions as JSON lines."""

    async def test_each_line_names_the_user_the_action_and_the_session(
        self, capsys: pytest.CaptureFixture[str]
    ) -> None:
        """The log covers a session from its beginning to its end, with a failed and a refused call."""
        async with running("audit_log") as app:
            async with client_of(app, token="token-of-ann") as client:
                session = await HeldSession.create(client)
                assert await session.call("pay", amount=5) == "paid 5"
                with pytest.raises(ToolFailed, match="more than 100"):
                    await session.call("pay", amount=500)
                await session.delete()
            async with client_of(app, token="token-of-bob") as client:
                with pytest.raises(MCPError, match="Session not found"):
                    await HeldSession(client, session.metadata).call("pay", amount=5)
        lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
        ref = next(line["session"] for line in lines if line["what"] == "call")
        assert ref.startswith("ses_")
        own = [line for line in lines if line["session"] == ref]  # the clients also have a session by a cookie each
        assert [{name: line[name] for name in line if name != "time"} for line in own] == [
            {"who": "ann", "session": ref, "what": "begin"},
            {"who": "ann", "session": ref, "what": "call", "tool": "pay", "outcome": "done"},
            {"who": "ann", "session": ref, "what": "call", "tool": "pay", "outcome": "failed"},
            {"who": None, "session": ref, "what": "end", "reason": "deleted"},
            {"who": None, "session": ref, "what": "refuse", "reason": "token_principal"},
        ]


class TestRateLimit:
    """The example `rate_limit`: a budget for each user, over all of the user's sessions."""

    @pytest.fixture
    def clock(self) -> Clock:
        return Clock()

    async def test_a_new_session_brings_no_fresh_budget(self, clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
        """The sessions of a user share a budget, which is renewed after a minute; another user has another."""
        async with running("rate_limit") as app:
            monkeypatch.setattr(sys.modules["rate_limit"], "clock", clock)
            async with client_of(app, token="token-of-ann") as ann, client_of(app, token="token-of-bob") as bob:
                one, other = await HeldSession.create(ann), await HeldSession.create(ann)
                for session in (one, one, other, other):
                    await session.call("search", words="socks")
                clock.now += 18
                text = await other.call("search", words="socks")
                assert text == "search 3 of this session for socks; 0 more this minute"
                for session in (one, await HeldSession.create(ann)):
                    with pytest.raises(ToolFailed, match=r"all used; wait 42 s\. A new session brings no new ones"):
                        await session.call("search", words="socks")
                assert (await (await HeldSession.create(bob)).call("search", words="hats")).endswith(
                    "4 more this minute"
                )
                clock.now += 42
                assert (await one.call("search", words="socks")).endswith("3 more this minute")

    async def test_an_unknown_token_is_refused(self) -> None:
        async with running("rate_limit") as app:
            body = {"jsonrpc": "2.0", "id": 1, "method": "sessions/create"}
            async with http_of(app, authorization="Bearer token-of-nobody") as http:
                assert (await http.post("/mcp", json=body)).status_code == 401


class TestProgressiveTools:
    """The example `progressive_tools`: tools that a session unlocks."""

    # asyncio closes the event streams that the SDK's client leaves open in the legacy era.
    pytestmark = pytest.mark.parametrize("anyio_backend", ["asyncio"])

    async def test_the_modern_era_guards_calls(self) -> None:
        """The list is the same for all sessions, and the error of an early call names the tool to call first."""
        async with connected("progressive_tools") as client:
            early, late = await HeldSession.create(client), await HeldSession.create(client)
            with pytest.raises(ToolFailed, match="that is not the word"):
                await late.call("unlock", word="now")
            assert await late.call("unlock", word="please") == "restart is unlocked"
            assert await late.call("restart") == "restarted"
            with pytest.raises(ToolFailed, match="locked in this session; call unlock first"):
                await early.call("restart")
            assert [await listed(client, session) for session in (early, late, None)] == [{"unlock", "restart"}] * 3

    async def test_the_legacy_era_changes_lists(self) -> None:
        """The list of the session that unlocked the tool grows, and calls are guarded too."""
        async with connected("progressive_tools", mode="legacy") as client:
            early, late = await HeldSession.create(client), await HeldSession.create(client)
            assert [await listed(client, session) for session in (early, late)] == [{"unlock"}, {"unlock"}]
            await late.call("unlock", word="please")
            assert [await listed(client, session) for session in (early, late)] == [{"unlock"}, {"unlock", "restart"}]
            assert await late.call("restart") == "restarted"
            with pytest.raises(ToolFailed, match="locked in this session; call unlock first"):
                await early.call("restart")
