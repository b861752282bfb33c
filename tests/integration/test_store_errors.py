"""What a client gets if the store fails inside a tool of the official SDK or FastMCP."""

import pytest
from failing import Failing

from mcp_sessions import require_session

from .servers import ERAS, FRAMEWORKS, Cell, connected, made


@pytest.mark.parametrize("modern", ERAS)
@pytest.mark.parametrize("framework", FRAMEWORKS)
async def test_client_of_a_tool_learns_that_the_store_is_unavailable(framework: str, modern: bool) -> None:
    """By a tool error, whether the tool sets a value or counts; SDK 1.x runs plain tools on the event loop."""
    store = Failing()

    async def note(how: str) -> str:
        data = require_session().data
        return str(await (data.increment("n") if how == "increment" else data.set("n", 1)))

    def note_in_thread() -> str:
        return str(require_session().data.sync.increment("n"))

    tools = [note] if framework == "sdk1" else [note, note_in_thread]
    async with connected(made(Cell(framework), *tools), modern=modern, store=store) as client:
        held = await client.create()
        store.failing = {"add", "write"}
        for name, arguments in (("note", {"how": "increment"}), ("note", {"how": "set"}), ("note_in_thread", {})):
            if name in {tool.__name__ for tool in tools}:
                reply = await client.send("tools/call", {"name": name, "arguments": arguments}, session=held)
                assert (reply.status, reply.result["isError"]) == (200, True)
                assert "Session store unavailable" in reply.result["content"][0]["text"]
