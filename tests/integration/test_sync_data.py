"""`session.data.sync` in plain functions of every framework, and what it says where it cannot wait."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import anyio
import pytest
from clients import SECRET
from clients import Client as ASGIClient
from fastapi import Depends, FastAPI

from mcp_sessions import DataError, Session, add_sessions, require_session
from mcp_sessions.integrations.fastapi import require_session as required

from .bearers import connected, made
from .servers import FRAMEWORKS

EXPECTED = [3, ["x", "y"], "none", None]


def notebook() -> str:
    """Use every method, in a plain function."""
    data = require_session().data.sync
    data.set("a", 1)
    data.update("list", lambda kept: [*kept, "x"], default=[])
    data.set("b", "short", ttl=60)
    data.delete("b")
    return json.dumps(
        [data.increment("a", 2), data.update("list", lambda kept: [*kept, "y"]), data.get("b", "none"), data.get("c")]
    )


async def notebook_in_a_thread() -> str:
    return await anyio.to_thread.run_sync(notebook)


async def misused() -> str:
    with pytest.raises(DataError, match=r"On the event loop, await session\.data instead") as refused:
        require_session().data.sync.get("a")
    return str(refused.value)


@pytest.fixture(params=["memory:", "sqlite:{}/sessions.db"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return str(request.param).format(tmp_path)


@pytest.mark.parametrize("anyio_backend", ["asyncio", "trio"])  # each has threads of its own
@pytest.mark.parametrize("framework", FRAMEWORKS)
async def test_a_plain_function_uses_session_data(framework: str, store: str) -> None:
    """Where the framework calls it in a worker thread, or the tool does; SDK 1.x learns why not, and what to do."""
    app = made(framework, notebook, notebook_in_a_thread, misused)
    async with connected(app, modern=framework in {"sdk2", "fastmcp4"}, store=store) as client:
        held = await client.create()
        answer = (await client.send("tools/call", {"name": "notebook", "arguments": {}}, session=held)).text
        if framework == "sdk1":
            assert "SDK 1.x does with tools, make yours `async def`" in answer
        else:
            assert json.loads(answer) == EXPECTED
        held = await client.create()
        assert json.loads(await client.call("notebook_in_a_thread", held)) == EXPECTED
        assert "only worker threads may use it" in await client.call("misused", held)


async def test_a_route_of_fastapi_uses_session_data(store: str) -> None:
    """FastAPI calls plain routes in a worker thread; the session is a dependency of theirs."""

    def route(message: dict[str, Any], session: Annotated[Session, Depends(required)]) -> dict[str, Any]:
        total = session.data.sync.increment("calls")
        assert repr(session.data.sync) == f"<Data of {session.ref}>"
        return {"jsonrpc": "2.0", "id": message["id"], "result": {"content": total}}

    app = FastAPI()
    app.post("/mcp")(route)
    client = ASGIClient(add_sessions(app, path="/mcp", keys=SECRET, store=store, admission="own"), query_string=b"")
    held = await client.create()
    assert [(await client.tool(session=held)).result["content"] for _ in range(2)] == [1, 2]
