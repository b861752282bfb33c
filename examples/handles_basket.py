"""Baskets with explicit handles, and everything that can go wrong with them, as a timeline.

No tool remembers a session here: `create_basket` gives a handle, and every other tool takes one. The server is the
official SDK's with bearer tokens, and Ann and Bob talk to it with the SDK's own client, without a network. Each answer
is compared with what the story says; the first that differs ends it with a non-zero exit status. A handle is shown by
the name that the story gives it, never as it is.
Source: SEP-2567 (explicit state handles), and the objections that were raised against it.

    python examples/handles_basket.py
"""

from __future__ import annotations

import json
import re
import sys
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Annotated, Any, Final

import anyio
import httpx2
from mcp import Client
from mcp.client.streamable_http import streamable_http_client
from mcp.server import MCPServer
from mcp.server.auth.provider import AccessToken
from mcp.server.auth.settings import AuthSettings
from mcp.server.mcpserver.exceptions import ToolError

from demo import conclude
from mcp_sessions import Handles, KeyRing
from session_client import ToolFailed, answer
from stage import Differs
from timeline import Timeline

DAY: Final = 86_400
URL: Final = "http://127.0.0.1:8000/mcp"
USERS: Final = ("ann", "bob")


class Clock:
    """The time, which the story can move on."""

    ahead = 0.0

    def __call__(self) -> float:
        """Unix seconds."""
        return time.time() + self.ahead


# --- the server ----------------------------------------------------------------------------------

clock = Clock()
handles = Handles(KeyRing.random(), lifetimes={"basket": DAY}, clock=clock)  # a deployment: "env:MCP_SESSIONS_KEYS"
Basket = Annotated[str, handles.type("basket")]
baskets: dict[str, list[str]] = {}


class Tokens:
    """Whose an access token is: here, the token is the name."""

    async def verify_token(self, token: str) -> AccessToken | None:
        """The user of a token."""
        return AccessToken(token=token, client_id="desk", subject=token, scopes=[]) if token in USERS else None


mcp = MCPServer(
    "shop",
    log_level="WARNING",
    auth=AuthSettings.model_validate({"issuer_url": "https://auth.example", "resource_server_url": None}),
    token_verifier=Tokens(),
)


@mcp.tool()
async def create_basket() -> str:
    """Create an empty basket. Pass its handle to the other tools exactly as it is."""
    handle = handles.mint("basket")
    baskets[handles.verify("basket", handle)] = []
    return handle


@mcp.tool()
async def add_item(basket: Basket, item: str) -> list[str]:
    """Add an item to a basket, and return the basket."""
    _items(basket).append(item)
    return _items(basket)


@mcp.tool()
async def checkout(basket: Basket) -> str:
    """Buy the content of a basket, and delete it. Returns the handle of the order."""
    _items(basket)
    del baskets[basket]
    return handles.mint("order")


def _items(basket: str) -> list[str]:
    """A verified handle says which basket is meant, and not that there still is one."""
    if basket not in baskets:
        raise ToolError("this basket was checked out; create a new basket")
    return baskets[basket]


# --- the story -----------------------------------------------------------------------------------

UNKNOWN: Final = (
    "refused: not one of your basket handles: copy the handle again exactly as it was given, or create a new basket"
)
FORM: Final = "refused: not a basket handle as it stands: "


class Shopper:
    """A user with a client, and the handles by the names that the story gives them."""

    def __init__(self, name: str, client: Client, timeline: Timeline, named: dict[str, str]) -> None:
        self._name = name
        self._client = client
        self._timeline = timeline
        self._named = named

    async def gets(self, tool: str, name: str, **handle: str) -> None:
        """Call a tool that gives a handle, and name it."""
        given = await self._call(tool, handle)
        said = name if re.fullmatch(r"[a-z]+_[0-9a-z]{48}", given) else given
        self._named[name] = given
        self._compare(tool, [*handle.values()], said, name)

    async def adds(
        self, item: str, basket: str, expected: list[str] | str, *, slip: str = "", sent: str | None = None
    ) -> None:
        """Put something into a basket, with its handle as it was given, or as it is sent after a slip."""
        came_back = await self._call("add_item", {"basket": basket, "item": item}, sent)
        self._compare("add_item", [slip or basket, item], came_back, expected)

    def handle(self, name: str) -> str:
        """A handle, for a story that is about to spoil it."""
        return self._named[name]

    async def _call(self, tool: str, arguments: dict[str, str], sent: str | None = None) -> Any:
        """What a tool gave, or what its error says to a model."""
        handle = self._named.get(arguments.get("basket", ""), "") if sent is None else sent
        real = {**arguments, "basket": handle} if "basket" in arguments else arguments
        try:
            return answer(await self._client.call_tool(tool, real))
        except ToolFailed as failure:
            return f"refused: {said_of(str(failure))}"

    def _compare(self, tool: str, shown: list[str], came_back: Any, expected: Any) -> None:
        self._timeline.exchange(self._name, " ", f"{tool}({', '.join(shown)})", text(came_back))
        if came_back != expected:
            raise Differs(f"{self._name}, {tool}: expected {text(expected)}, and got {text(came_back)}")


def text(value: Any) -> str:
    """What came back, as it is shown."""
    return value if isinstance(value, str) else json.dumps(value)


def said_of(error: str) -> str:
    """What an error says, without the SDK's words around it."""
    argument = re.search(r"^  (.*) \[type=handle", error, re.MULTILINE)
    return argument[1] if argument else re.sub(r"^Error executing tool \w+: ", "", error)


async def as_meant(ann: Shopper, bob: Shopper) -> None:
    """Two users, three baskets, and each item lands where it should."""
    await ann.gets("create_basket", "ann's first")
    await ann.gets("create_basket", "ann's second")
    await bob.gets("create_basket", "bob's")
    await ann.adds("shoes", "ann's first", ["shoes"])
    await ann.adds("socks", "ann's first", ["shoes", "socks"])
    await ann.adds("tea", "ann's second", ["tea"])
    await bob.adds("a hat", "bob's", ["a hat"])


async def mistyped(ann: Shopper) -> None:
    """What a model may do to a handle in a long context; each error says what to do next."""
    given = ann.handle("ann's first")
    place = next(place for place in range(10, len(given)) if given[place] != given[place + 1])
    slips = {
        "one wrong": (given[:-1] + ("0" if given[-1] != "0" else "1"), UNKNOWN),
        "two swapped": (given[:place] + given[place + 1] + given[place] + given[place + 2 :], UNKNOWN),
        "cut short": (given[:-4], "refused: this basket handle was cut short: copy all 55 characters of it"),
        "`quoted`": (f"`{given}`", FORM + "send it alone, with no spaces, quotes or punctuation around it"),
        "CAPITALS": (given.upper(), FORM + "handles are lower case; copy it again exactly as it was given"),
    }
    for slip, (sent, expected) in slips.items():
        await ann.adds("a pen", "ann's first", expected, slip=slip, sent=sent)


async def mixed_up(ann: Shopper, bob: Shopper) -> None:
    """Another's handle, another type's, and the one mix-up that nothing can see."""
    await bob.adds("a coat", "ann's first", UNKNOWN)
    await ann.gets("checkout", "ann's order", basket="ann's second")
    await ann.adds("a pen", "ann's order", "refused: not a basket handle: it is an order handle")
    await ann.adds("a pen", "ann's second", "refused: this basket was checked out; create a new basket")


async def not_seen(ann: Shopper) -> None:
    """Ann means her new basket and names the first: both are hers, and both are baskets."""
    await ann.gets("create_basket", "ann's third")
    await ann.adds("a cup", "ann's first", ["shoes", "socks", "a cup"])


async def a_day_later(ann: Shopper) -> None:
    """A handle's time is in the handle."""
    clock.ahead += DAY
    await ann.adds("gloves", "ann's first", "refused: expired: basket handles live 24 h; create a new basket")
    await ann.gets("create_basket", "ann's fourth")
    await ann.adds("gloves", "ann's fourth", ["gloves"])


async def tell(ann: Shopper, bob: Shopper, timeline: Timeline) -> None:
    """Run the whole timeline."""
    timeline.title("As it is meant: every call says which basket")
    await as_meant(ann, bob)
    timeline.title("A handle that was mistyped is found out, and the error says what to do")
    await mistyped(ann)
    timeline.title("So is one from another user's chat, and one of another type")
    await mixed_up(ann, bob)
    timeline.title("What no handle can show: a mix-up of two of one's own baskets")
    await not_seen(ann)
    timeline.title("A day later")
    await a_day_later(ann)


@asynccontextmanager
async def shoppers(timeline: Timeline) -> AsyncIterator[list[Shopper]]:
    """The server, and a client of it for each user."""
    app = mcp.streamable_http_app(stateless_http=True)
    named: dict[str, str] = {}
    async with AsyncExitStack() as stack:
        await stack.enter_async_context(app.router.lifespan_context(app))
        clients = []
        for user in USERS:
            transport = httpx2.ASGITransport(app=app)
            http = httpx2.AsyncClient(transport=transport, headers={"authorization": f"Bearer {user}"})
            await stack.enter_async_context(http)
            clients.append(await stack.enter_async_context(Client(streamable_http_client(URL, http_client=http))))
        yield [Shopper(user, client, timeline, named) for user, client in zip(USERS, clients, strict=True)]


async def play(timeline: Timeline) -> str:
    """Tell the story; what differed, or an empty text."""
    async with shoppers(timeline) as (ann, bob):
        try:
            await tell(ann, bob, timeline)
        except Differs as difference:  # caught inside of the clients, whose task groups would wrap it
            return str(difference)
    return ""


def main() -> int:
    """Run the story.

    Returns:
        The exit status: 0 where everything was as the story says, else 1.
    """
    timeline = Timeline(sys.stdout)
    return conclude(timeline, anyio.run(play, timeline))


if __name__ == "__main__":
    sys.exit(main())
