"""A scripted model carries its session as an argument: with the frameworks' own servers and clients, on two workers."""

import re
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from typing import Any

import anyio
import pytest
from apps import grouped
from starlette.types import Scope

from mcp_sessions import MCPSessionMiddleware, current_session
from mcp_sessions.stores import MemoryStore

from .servers import CELLS, KEYS, Cell, made
from .serving import Peer, peer, serving

HANDLE = re.compile(r"ses_[0-9a-z]{48}")


async def add(item: str) -> str:
    """Put an item into the cart."""
    session = current_session()
    assert session is not None
    session.state["cart"] = [*session.state.get("cart", []), item]
    return ",".join(session.state["cart"])


async def cart() -> dict[str, list[str]]:
    """Return the cart, with structured content."""
    session = current_session()
    assert session is not None
    return {"items": session.state.get("cart", [])}


async def weather() -> str:
    """Use no session."""
    return "sunny"


async def fail() -> str:
    """Fail after using the session."""
    await add("broken")
    raise ValueError("no")


def user_of(scope: Scope) -> str | None:
    return str(scope["query_string"].decode()) or None


class Model:
    """What a model does with the tools of one connection: it reads texts and writes arguments."""

    def __init__(self, client: Peer) -> None:
        self.client = client
        self.texts: list[str] = []  # of the last result

    @property
    def told(self) -> str | None:
        """The session that the last result told, if it told one."""
        return next((found[0] for text in self.texts if (found := HANDLE.findall(text))), None)

    async def call(self, tool: str, **arguments: Any) -> str:
        """Call a tool, and return the first text that it gives, or that of its error."""
        try:
            result = await self.client.call(tool, arguments)
        except Exception as error:  # noqa: BLE001  # FastMCP's client raises what the SDK's returns
            self.texts = [str(error)]
        else:
            self.texts = [block.text for block in result.content]
        return self.texts[0]


@asynccontextmanager
async def models(cell: Cell, *users: str) -> AsyncIterator[list[Model]]:
    """Connect a model of each user to each of two workers."""
    store = MemoryStore()
    given = grouped(**{"transport": "off", "transport.argument": "session", "keys": KEYS, "principal": user_of})
    async with AsyncExitStack() as stack:
        servers = [made(cell, add, cart, weather, fail) for _ in range(2)]
        urls = [
            await stack.enter_async_context(serving(MCPSessionMiddleware(server, store=store, **given)))
            for server in servers
        ]
        yield [Model(await stack.enter_async_context(peer(cell, f"{url}?{user}"))) for user in users for url in urls]


every_cell = pytest.mark.parametrize("cell", CELLS, ids=str)
few_cells = pytest.mark.parametrize("cell", [cell for cell in CELLS if not (cell.stateful or cell.json)], ids=str)


@every_cell
async def test_model_that_copies_has_one_session_on_every_worker(cell: Cell) -> None:
    """Results with structured content stay as their schemas say, which the clients check."""
    async with models(cell, "ann") as (here, there):
        assert await here.call("weather") == "sunny"
        assert len(here.texts) == 1
        assert await here.call("add", item="tea") == "tea"
        handle = here.told
        assert await there.call("add", item="milk", session=handle) == "tea,milk"
        assert there.told is None
        assert "milk" in await here.call("cart", session=handle)
        assert await there.call("weather", session=handle) == "sunny"


@few_cells
async def test_tools_have_the_argument_last_and_optional(cell: Cell) -> None:
    async with models(cell, "ann") as (here, _):
        listed = await here.client.session.list_tools()
        tools = {tool.name: tool.model_dump(by_alias=True)["inputSchema"] for tool in listed.tools}
    assert [*tools] == ["add", "cart", "weather", "fail", "begin_session"]
    for name in ("add", "cart", "weather", "fail"):
        assert [*tools[name]["properties"]][-1] == "session"
        assert "session" not in tools[name].get("required", [])
    assert tools["begin_session"]["properties"] == {}


@few_cells
async def test_model_that_forgets_is_told_each_time(cell: Cell) -> None:
    """Forgetting is not silent; each session stays, so the model may go back to the first."""
    async with models(cell, "ann") as (here, there):
        assert await here.call("add", item="tea") == "tea"
        first = here.told
        assert await there.call("add", item="milk") == "milk"
        assert there.told not in {first, None}
        assert await there.call("add", item="milk", session=first) == "tea,milk"


@few_cells
async def test_model_that_misquotes_or_invents_learns_how_to_go_on(cell: Cell) -> None:
    """Nothing runs meanwhile, so nothing lands in another session."""
    async with models(cell, "ann") as (here, there):
        await here.call("add", item="tea")
        handle = here.told or ""
        for wrong in (
            handle[:-1],
            handle.replace("ses_", "sess_"),
            handle[:20] + handle[21:22] + handle[20:21] + handle[22:],
        ):
            if wrong != handle:
                assert "copy it exactly" in await there.call("add", item="no", session=wrong)
        assert await there.call("add", item="milk", session=handle) == "tea,milk"
        for invented in ("session-1", "default", "3f2504e0-4f89-11d3-9a0c-0305e82c3301"):
            assert 'pass "new"' in await here.call("add", item="no", session=invented)
        assert await here.call("add", item="bread", session="new") == "bread"
        assert here.told not in {handle, None}


@few_cells
async def test_planted_handle_of_another_user_is_refused(cell: Cell) -> None:
    """A page says: use session ses_...; the model does, and its calls do not run."""
    async with models(cell, "mallory", "ann") as (mallory, _, ann, ann_there):
        await mallory.call("add", item="bait")
        planted = mallory.told
        await ann.call("add", item="tea")
        own = ann.told
        for model in (ann, ann_there):
            assert "Nothing was done" in await model.call("add", item="secret", session=planted)
        assert await ann_there.call("add", item="milk", session=own) == "tea,milk"
        assert "secret" not in await mallory.call("cart", session=planted)


@few_cells
async def test_planted_handle_joins_anonymous_callers(cell: Cell) -> None:
    """A limit: without authentication, whoever knows a handle has the session."""
    async with models(cell, "") as (attacker, victim):
        await attacker.call("add", item="bait")
        assert await victim.call("add", item="secret", session=attacker.told) == "bait,secret"


@few_cells
async def test_failed_tool_tells_its_session(cell: Cell) -> None:
    """FastMCP's client shows the first text of an error only."""
    async with models(cell, "ann") as (here, there):
        await here.call("fail")
        if cell.framework.startswith("sdk"):
            assert await there.call("add", item="tea", session=here.told) == "broken,tea"


@few_cells
async def test_begin_tool_serves_hosts_that_show_structured_content(cell: Cell) -> None:
    async with models(cell, "ann") as (here, there):
        result = await here.client.call("begin_session", {})
        content = getattr(result, "structured_content", None) or result.structuredContent
        handle = content["session"]
        assert await there.call("add", item="tea", session=handle) == "tea"
        assert await here.call("add", item="milk", session=handle) == "tea,milk"


async def test_parallel_calls_with_the_handle_of_begin_session_share_it() -> None:
    """None of them begins another session."""
    cell = next(cell for cell in CELLS if not cell.stateful)
    async with models(cell, "ann") as (here, there):
        await here.call("begin_session")
        handle = here.told
        async with anyio.create_task_group() as tasks:
            for number, model in enumerate((here, there)):
                tasks.start_soon(partial(model.call, "add", item=f"{number}", session=handle))
        assert (here.told, there.told) == (None, None)
        assert await here.call("cart", session=handle) not in {"", "[]"}
