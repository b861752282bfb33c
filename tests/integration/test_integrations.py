"""Sessions in each framework's own style, as `docs/integrations.md` shows them, whose code runs here."""

import json
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from importlib import import_module
from typing import Annotated, Any, Final

import pytest
from clients import SECRET, Client, Clock, Incoming, RealClient, call, http, lifespan
from environments import needs
from fastapi import Depends, FastAPI, Request
from fastmcp import Context, FastMCP
from fastmcp.dependencies import Depends as FastMCPDepends
from key_value.aio.stores.memory import MemoryStore
from pages import DOCS, blocks, run
from starlette.applications import Starlette
from starlette.responses import JSONResponse
from starlette.types import ASGIApp

import mcp_sessions
from mcp_sessions import ConfigurationError, MCPSessionMiddleware, Session, add_sessions, current_session
from mcp_sessions._errors import StoreUnavailable
from mcp_sessions.integrations.fastapi import add_exception_handlers, optional_session, require_session
from mcp_sessions.integrations.fastmcp import SessionStateStore

from .servers import ERAS, FASTMCP, FRAMEWORKS, KEYS, TOKENS, Cell, bearer, connected, http_app, made

# --- the page ------------------------------------------------------------------------------------

PAGE = (DOCS / "integrations.md").read_text("utf-8")
DEPENDING, RESOLVING, FOR_FASTMCP, *_ = blocks(PAGE)


@pytest.fixture(autouse=True)
def keys(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MCP_SESSIONS_KEYS", SECRET)


async def test_the_page_s_endpoint_of_fastapi() -> None:
    client = Client(run(DEPENDING)["app"], query_string=b"")
    assert (await client.tool(session=await client.create())).result["ref"].startswith("ses_")
    assert (await client.tool()).error["code"] == -31044


@needs("mcp>=2")
async def test_the_page_s_server_of_the_sdk() -> None:
    app = run(RESOLVING)["app"]
    async with lifespan(app):
        client = RealClient(app, modern=True)
        held = await client.create()
        assert [await client.call("note", held, text=text) for text in ("one", "two")] == ["1", "2"]
        reply = await client.send("tools/call", {"name": "note", "arguments": {"text": "lost"}})
        assert reply.error["code"] == -31044


async def test_the_page_s_server_of_fastmcp() -> None:
    allowed = 'stateless_http=True, allowed_hosts=["127.0.0.1:8000"]'
    app = run(FOR_FASTMCP.replace("stateless_http=True", allowed))["app"]
    async with lifespan(app):
        client = RealClient(app)
        held = await client.create()
        assert [await client.call("note", held, text=text) for text in ("one", "two")] == ["1", "2"]
        for color, before in (("red", "None"), ("blue", "red")):
            assert await client.call("color", held, name=color) == f"{color}, and before it {before}"


# --- tools of the SDK and FastMCP ----------------------------------------------------------------

every_era = pytest.mark.parametrize("modern", ERAS)


def resolved(*, of_sdk: bool) -> list[Any]:
    """Tools that ask for the session in their framework's way."""

    async def required(word: str, session: Session = FastMCPDepends(mcp_sessions.require_session)) -> str:
        return f"{word} {session.ref}"

    async def optional(word: str, session: Session | None = FastMCPDepends(current_session)) -> str:
        return f"{word} {'nobody' if session is None else session.ref}"

    if of_sdk:
        resolve = import_module("mcp.server.mcpserver").Resolve
        required.__annotations__["session"] = Annotated[Session, resolve(mcp_sessions.require_session)]
        optional.__annotations__["session"] = Annotated[Session | None, resolve(current_session)]
        required.__defaults__ = optional.__defaults__ = None
    return [required, optional]


async def called(word: str) -> str:
    return f"{word} {mcp_sessions.require_session().ref}"


@every_era
@pytest.mark.parametrize("framework", [name for name in FRAMEWORKS if name != "sdk1"])
async def test_a_tool_gets_the_session_that_it_asks_for(framework: str, modern: bool) -> None:
    """And a model sees the tool's own arguments alone."""
    tools = resolved(of_sdk=framework == "sdk2")
    async with connected(made(Cell(framework), *tools), modern=modern) as client:
        one, other = await client.create(), await client.create()
        found = [await client.call("required", held, word="I am") for held in (one, other, one)]
        assert found[0] == found[2] != found[1]
        assert await client.call("optional", one, word="I am") == found[0]
        assert await client.call("optional", word="I am") == "I am nobody"
        listed = (await client.send("tools/list")).result["tools"]
        assert [list(tool["inputSchema"]["properties"]) for tool in listed] == [["word"], ["word"]]


@every_era
@pytest.mark.parametrize("framework", FRAMEWORKS)
async def test_a_session_that_a_tool_requires_is_asked_for(framework: str, modern: bool) -> None:
    """By the protocol's error, as `require=` does, or in a failed call where a framework makes that of all errors."""
    tools = [called, resolved(of_sdk=False)[0]] if framework == FASTMCP else [called]
    async with connected(made(Cell(framework), *tools), modern=modern) as client:
        for tool in tools:
            reply = await client.send("tools/call", {"name": tool.__name__, "arguments": {"word": "I am"}})
            if framework == "sdk2":
                assert reply.error["code"] == -31044
            else:
                assert reply.result["isError"]
            text = reply.error["message"] if framework == "sdk2" else reply.text
            assert "Session required: " in text
            assert 'set transport="auto"' in text


def served(mcp: FastMCP, *, modern: bool) -> AbstractAsyncContextManager[RealClient]:
    return connected(http_app(mcp, Cell(FASTMCP)), modern=modern)


@every_era
async def test_a_resource_that_requires_a_session_fails_with_the_protocols_error(modern: bool) -> None:
    mcp = FastMCP("resources", mask_error_details=True)

    @mcp.resource("session://me")
    async def me() -> str:
        return mcp_sessions.require_session().ref

    async with served(mcp, modern=modern) as client:
        assert (await client.send("resources/read", {"uri": "session://me"}, session=await client.create())).text
        refused = await client.send("resources/read", {"uri": "session://me"})
        assert refused.error["code"] == -31044


# --- the state of FastMCP ------------------------------------------------------------------------


def remembering(store: Any) -> FastMCP:
    mcp = FastMCP("remembering", session_state_store=store)

    @mcp.tool
    async def swap(ctx: Context, value: str | None = None) -> str:
        """Set the value, or delete it, and return the one before."""
        before = await ctx.get_state("value")
        await (ctx.delete_state("value") if value is None else ctx.set_state("value", value))
        return str(before)

    @mcp.tool
    async def secret() -> str:
        return "found"

    @mcp.tool
    async def reveal(ctx: Context) -> str:
        await ctx.enable_components(names={"secret"})
        return "revealed"

    mcp.disable(names={"secret"})
    return mcp


@every_era
async def test_the_state_of_fastmcp_lasts_as_long_as_the_session(modern: bool) -> None:
    """With stateless HTTP and in the modern era, too, where FastMCP's own is new with each request."""
    async with served(remembering(SessionStateStore()), modern=modern) as client:
        one, other = await client.create(), await client.create()
        assert await client.call("swap", one, value="mine") == "None"
        assert await client.call("swap", other) == "None"
        assert [await client.call("swap", one) for _ in range(2)] == ["mine", "None"]


@every_era
async def test_no_name_in_data_reaches_fastmcps_state(modern: bool) -> None:
    """So a client that chooses a name cannot show itself components; the name stays the application's."""
    mcp = remembering(SessionStateStore())

    @mcp.tool
    async def keep(key: str, session: Session = FastMCPDepends(mcp_sessions.require_session)) -> str:
        await session.data.set(key, {"value": "forged"})
        return str(await session.data.get(key))

    async with served(mcp, modern=modern) as client:
        held = await client.create()
        await client.call("swap", held, value="mine")
        for key in ("fastmcp:value", "value", "fastmcp/value", "fastmcp:_visibility_rules"):
            assert await client.call("keep", held, key=key) == "{'value': 'forged'}"
        assert await client.call("swap", held) == "mine"


@every_era
async def test_without_a_session_state_is_kept_where_it_was_before(modern: bool) -> None:
    otherwise = MemoryStore()
    async with served(remembering(SessionStateStore(otherwise)), modern=modern) as client:
        for _ in range(2):
            assert await client.call("swap", value="nobody's") == "None"
        assert {key.rpartition(":")[2] for key in await otherwise.keys("fastmcp_state")} == {"value"}


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

    mcp = FastMCP("users", auth=StaticTokenVerifier(TOKENS), session_state_store=SessionStateStore())

    async def remember(fact: str, session: UserSession) -> str:
        facts: list[str] = [*await session.get("facts", []), fact]
        await session.set("facts", facts)
        return " ".join(facts)

    remember.__annotations__["session"] = UserSession  # FastMCP looks a name up where the function's module ends
    mcp.tool(remember)
    app = add_sessions(http_app(mcp, Cell(FASTMCP)), keys=KEYS)
    async with lifespan(app):
        ann, bob = (RealClient(app, modern=True, headers=bearer(name)) for name in ("ann", "bob"))
        one, other = await ann.create(), await ann.create()
        assert await ann.call("remember", one, fact="a") == "a"
        assert await ann.call("remember", other, fact="b") == "a b"
        assert await bob.call("remember", fact="c") == "c"


async def test_value_that_was_put_with_a_ttl_expires() -> None:
    """By the middleware's clock, after that many seconds; one without stays."""
    clock, store = Clock(), SessionStateStore()
    mcp = FastMCP("ttl")

    @mcp.tool
    async def put(ctx: Context) -> str:
        await store.put(f"{ctx.session_id}:brief", {"n": 1}, ttl=60)
        await store.put(f"{ctx.session_id}:kept", {"n": 2})
        return "put"

    @mcp.tool
    async def found(ctx: Context) -> str:
        return json.dumps([await store.get(f"{ctx.session_id}:{name}") for name in ("brief", "kept")])

    async with connected(http_app(mcp, Cell(FASTMCP)), modern=False, clock=clock) as client:
        session = await client.create()
        await client.call("put", session)
        clock.now += 59
        assert json.loads(await client.call("found", session)) == [{"n": 1}, {"n": 2}]
        clock.now += 1
        assert json.loads(await client.call("found", session)) == [None, {"n": 2}]


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
    otherwise = MemoryStore()

    async def app(scope: Any, receive: Any, send: Any) -> None:
        await SessionStateStore(otherwise).put("x:y", {"n": 1})
        await JSONResponse({}, 202)(scope, receive, send)

    client = RealClient(MCPSessionMiddleware(app, keys=KEYS, admission="own"))
    await client.tool("any", session=await client.create())
    assert await otherwise.get("x:y") == {"n": 1}


# --- FastAPI -------------------------------------------------------------------------------------

WHY: Final = "it sent no cookie, and is not known to keep any"
REQUIRED: Final = {"code": -31044, "message": f'Session required: {WHY}; set wire=Wire(era="auto")'}


def answer(message: dict[str, Any], session: Session | None) -> dict[str, Any]:
    return {"jsonrpc": "2.0", "id": message["id"], "result": {"content": session and session.ref}}


async def required(message: dict[str, Any], session: Annotated[Session, Depends(require_session)]) -> dict[str, Any]:
    return answer(message, session)


async def requiring(message: dict[str, Any]) -> dict[str, Any]:
    return answer(message, mcp_sessions.require_session())


async def optional(
    message: dict[str, Any], session: Annotated[Session | None, Depends(optional_session)]
) -> dict[str, Any]:
    return answer(message, session)


async def raw(request: Request, session: Annotated[Session, Depends(require_session)]) -> None: ...


async def streamed(request: Request) -> None:
    _ = [piece async for piece in request.stream()]
    raise StoreUnavailable


def endpoints() -> FastAPI:
    app = FastAPI()
    add_exception_handlers(app)
    for endpoint in (required, requiring, optional, raw, streamed):
        app.api_route(f"/{endpoint.__name__}", methods=["POST", "GET"])(endpoint)
    return app


def added(path: str) -> ASGIApp:
    return add_sessions(endpoints(), path=path, keys=SECRET, admission="own")


def in_front(path: str) -> ASGIApp:
    return MCPSessionMiddleware(endpoints(), path=path, keys=SECRET, admission="own")


@pytest.mark.parametrize("place", [added, in_front])
@pytest.mark.parametrize(
    ("path", "lacking"),
    [
        ("/required", {"error": REQUIRED}),
        ("/requiring", {"error": REQUIRED}),
        ("/optional", {"result": {"content": None}}),
    ],
)
async def test_an_endpoint_gets_the_session_that_it_depends_on(
    place: Callable[[str], ASGIApp], path: str, lacking: dict[str, Any]
) -> None:
    client = Client(place(path), path=path, query_string=b"")
    one, other = await client.create(), await client.create()
    found = [(await client.tool(session=held)).result["content"] for held in (one, other, one)]
    assert found[0] == found[2] != found[1]
    without = await client.send("tools/call", {"name": "whoami"}, id="seven")
    assert without.json == {"jsonrpc": "2.0", "id": "seven", **lacking}


@pytest.mark.parametrize("kind", [FastAPI, Starlette])
async def test_add_sessions_makes_a_required_session_an_answer_by_itself(kind: Any) -> None:
    async def endpoint(request: Request) -> JSONResponse:
        return JSONResponse(answer(await request.json(), mcp_sessions.require_session()))

    app = kind()
    app.add_route("/mcp", endpoint, methods=["POST"])
    client = Client(add_sessions(app, path="/mcp", keys=SECRET, admission="own"))
    assert (await client.tool(session=await client.create())).result["content"].startswith("ses_")
    assert (await client.tool()).error == REQUIRED


async def test_what_is_no_single_message_has_no_id_to_answer_to() -> None:
    """Nor has one that the endpoint read itself. Whatever the refusal, which also says when to try again."""
    batch, left = b'[{"jsonrpc": "2.0", "id": 1, "method": "ping"}]', Incoming({"type": "http.disconnect"})
    for receive in (batch, b"no JSON", left):
        refused = await call(endpoints(), http(path="/raw", query_string=b"", mcp_session=None), receive)
        assert (refused.json["id"], refused.error["code"]) == (None, -31044)
    refused = await call(endpoints(), http(path="/streamed", query_string=b""), b'{"id": 1}')
    assert (refused.status, refused.headers[b"retry-after"], refused.json["id"]) == (503, b"1", None)
    assert refused.error["message"] == "Session store unavailable"


@pytest.mark.parametrize(
    ("app", "method"), [(endpoints, "POST"), (lambda: added("/raw"), "GET")], ids=["no middleware", "no message"]
)
async def test_a_request_that_no_middleware_looks_at_says_so(app: Callable[[], ASGIApp], method: str) -> None:
    """Rather than being taken for one without a session."""
    with pytest.raises(ConfigurationError, match=rf"looked for a session in {method} /raw: .* add_sessions\("):
        await call(app(), http(method, "/raw", query_string=b""), b"{}")


@pytest.mark.parametrize("app", [endpoints, lambda: added("/optional")], ids=["no middleware", "no message"])
async def test_an_optional_session_is_none_in_any_other_request(app: Callable[[], ASGIApp]) -> None:
    answered = await call(app(), http("GET", "/optional", query_string=b""), b'{"id": 1}')
    assert answered.result == {"content": None}


def test_the_openapi_document_does_not_tell() -> None:
    documents = []
    for endpoint in (required, optional, requiring):
        app = FastAPI()
        app.post("/mcp", name="endpoint", operation_id="endpoint", response_model=dict[str, Any])(endpoint)
        documents.append(app.openapi())
    assert documents[0] == documents[1] == documents[2]
