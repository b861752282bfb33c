"""Sessions in handlers of FastMCP 3 and 4, and FastMCP's own state in them."""

from __future__ import annotations

import json
from contextlib import AbstractAsyncContextManager
from typing import Any

import pytest
from clients import RealClient, lifespan
from environments import needs
from fastmcp import Context, FastMCP
from fastmcp.dependencies import Depends
from key_value.aio.stores.memory import MemoryStore

from integration.servers import ERAS, FASTMCP, KEYS, Cell, bearer, connected, http_app
from mcp_sessions import MCPSessionMiddleware, Session, current_session
from mcp_sessions.integrations.fastmcp import SECTION, SessionStateStore, require_session


@pytest.fixture(params=ERAS, ids=lambda modern: "modern" if modern else "legacy")
def modern(request: pytest.FixtureRequest) -> bool:
    era: bool = request.param
    return era


def served(mcp: Any, *, modern: bool, **options: Any) -> AbstractAsyncContextManager[RealClient]:
    app = http_app(mcp, Cell(FASTMCP))
    return connected(app, modern=modern, **options)


def asking() -> FastMCP:
    """A server whose tools ask for the session, each in its way."""
    mcp = FastMCP("asking")

    @mcp.tool
    async def required(word: str, session: Session = Depends(require_session)) -> str:
        return f"{word} {session.ref}"

    @mcp.tool
    async def optional(word: str, session: Session | None = Depends(current_session)) -> str:
        return f"{word} {'nobody' if session is None else session.ref}"

    return mcp


async def test_a_tool_gets_the_session_that_it_asks_for(modern: bool) -> None:
    """And the schema does not tell."""
    async with served(asking(), modern=modern) as client:
        one, other = await client.create(), await client.create()
        found = [await client.call("required", held, word="I am") for held in (one, other, one)]
        assert found[0] == found[2] != found[1]
        assert await client.call("optional", one, word="I am") == found[0]
        assert await client.call("optional", None, word="I am") == "I am nobody"
        tools = (await client.send("tools/list")).result["tools"]
        assert {tool["name"]: list(tool["inputSchema"]["properties"]) for tool in tools} == {
            "required": ["word"],
            "optional": ["word"],
        }


async def test_a_tool_that_requires_a_session_fails_without(modern: bool) -> None:
    async with served(asking(), modern=modern) as client:
        reply = await client.send("tools/call", {"name": "required", "arguments": {"word": "I am"}})
        assert reply.result["isError"]
        assert reply.text.startswith("Session required: ")
        assert 'set transport="auto"' in reply.text


async def test_a_resource_that_requires_a_session_fails_with_the_protocols_error(modern: bool) -> None:
    mcp = FastMCP("resources", mask_error_details=True)

    @mcp.resource("session://me")
    async def me() -> str:
        return require_session().ref

    async with served(mcp, modern=modern) as client:
        assert (await client.send("resources/read", {"uri": "session://me"}, session=await client.create())).text
        refused = await client.send("resources/read", {"uri": "session://me"})
        assert refused.error["code"] == -31044


def remembering(store: Any) -> FastMCP:
    mcp = FastMCP("remembering", session_state_store=store)

    @mcp.tool
    async def put(value: str, ctx: Context) -> str:
        await ctx.set_state("value", value)
        return "kept"

    @mcp.tool
    async def got(ctx: Context) -> str:
        return str(await ctx.get_state("value"))

    @mcp.tool
    async def drop(ctx: Context) -> str:
        await ctx.delete_state("value")
        return "dropped"

    @mcp.tool
    async def kept(session: Session = Depends(require_session)) -> str:
        return json.dumps(await session.data.get(f"{SECTION}value"))

    @mcp.tool
    async def secret() -> str:
        return "found"

    @mcp.tool
    async def reveal(ctx: Context) -> str:
        await ctx.enable_components(names={"secret"})
        return "revealed"

    mcp.disable(names={"secret"})
    return mcp


async def test_the_state_of_fastmcp_lasts_as_long_as_the_session(modern: bool) -> None:
    """With stateless HTTP and in the modern era, too, where FastMCP's own is new with each request."""
    async with served(remembering(SessionStateStore()), modern=modern) as client:
        one, other = await client.create(), await client.create()
        await client.call("put", one, value="mine")
        assert await client.call("got", one) == "mine"
        assert await client.call("got", other) == "None"
        assert json.loads(await client.call("kept", one))["value"] == "mine"
        await client.call("drop", one)
        assert await client.call("got", one) == "None"


async def test_without_a_session_state_is_kept_where_it_was_before(modern: bool) -> None:
    otherwise = MemoryStore()
    async with served(remembering(SessionStateStore(otherwise)), modern=modern) as client:
        assert await client.call("put", None, value="nobody's") == "kept"
        assert await client.call("got", None) == "None"
        [key] = await otherwise.keys("fastmcp_state")
        assert key.endswith(":value")


async def test_components_are_shown_to_one_session_alone() -> None:
    """FastMCP's visibility rules are state, so a session of the legacy era keeps its own list of tools."""
    async with served(remembering(SessionStateStore()), modern=False) as client:
        one, other = await client.create(), await client.create()
        await client.call("reveal", one)
        lists = [(await client.send("tools/list", session=held)).result["tools"] for held in (one, other)]
        assert ["secret" in {tool["name"] for tool in tools} for tools in lists] == [True, False]
        assert await client.call("secret", one) == "found"


@needs("fastmcp>=4")
async def test_what_fastmcp_keeps_per_user_stays_the_users() -> None:
    """`UserSession` of FastMCP 4 is one per user: it follows the user through sessions, and no session holds it."""
    from fastmcp.server.auth.providers.jwt import StaticTokenVerifier
    from fastmcp.server.sessions import UserSession

    from mcp_sessions import add_sessions

    tokens: dict[str, Any] = {name: {"client_id": name, "scopes": []} for name in ("ann", "bob")}
    mcp = FastMCP("users", auth=StaticTokenVerifier(tokens), session_state_store=SessionStateStore())

    async def remember(fact: str, session: UserSession) -> str:
        facts: list[str] = [*await session.get("facts", []), fact]
        await session.set("facts", facts)
        return " ".join(facts)

    remember.__annotations__["session"] = UserSession  # FastMCP looks a name up where the function's module ends
    mcp.tool(remember)
    app = add_sessions(mcp.http_app(stateless_http=True, allowed_hosts=["127.0.0.1:8000"]), keys=KEYS)
    async with lifespan(app):
        ann, bob = (RealClient(app, modern=True, headers=bearer(name)) for name in tokens)
        one, other = await ann.create(), await ann.create()
        assert await ann.call("remember", one, fact="a") == "a"
        assert await ann.call("remember", other, fact="b") == "a b"
        assert await bob.call("remember", None, fact="c") == "c"


async def test_the_store_is_a_whole_key_value_store() -> None:
    store = SessionStateStore()
    mcp = FastMCP("store")

    async def use(prefix: str) -> list[Any]:
        keys = [f"{prefix}a", f"{prefix}b"]
        await store.put_many(keys, [{"n": 1}, {"n": 2}], ttl=60)
        return [
            await store.get(keys[0]),
            await store.get_many(keys),
            [value for value, _ in await store.ttl_many(keys)],
            await store.delete_many([*keys, f"{prefix}c"]),
            await store.get(keys[0]),
        ]

    @mcp.tool
    async def inside(ctx: Context) -> str:
        return json.dumps([await use(f"{ctx.session_id}:"), await use("session:anon:x")])

    uses = [{"n": 1}, [{"n": 1}, {"n": 2}], [{"n": 1}, {"n": 2}], 2, None]
    async with served(mcp, modern=False) as client:
        assert json.loads(await client.call("inside", await client.create())) == [uses, uses]
    assert await use("") == uses


async def test_what_fastmcp_does_not_handle_is_no_state_of_the_session() -> None:
    """A request of a session that an application of one's own handles, with no FastMCP around."""
    store, otherwise = None, MemoryStore()
    store = SessionStateStore(otherwise)

    async def app(scope: Any, receive: Any, send: Any) -> None:
        await store.put("x:y", {"n": 1})
        await send({"type": "http.response.start", "status": 202, "headers": []})
        await send({"type": "http.response.body", "body": b""})

    client = RealClient(MCPSessionMiddleware(app, keys=KEYS, admission="own"))
    held = await client.create()
    await client.send("tools/call", {"name": "any"}, session=held)
    assert await otherwise.get("x:y") == {"n": 1}
