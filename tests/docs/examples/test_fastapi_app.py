"""The example `fastapi_app`: a catalogue over HTTP, and a basket for each session."""

from __future__ import annotations

import pytest
from example_servers import client_of, http_of, running

from session_client import HeldSession, ToolFailed
from stage import together


async def test_each_session_fills_a_basket_of_its_own() -> None:
    """Items of parallel calls are all in the basket, and its price comes from the application's catalogue."""
    async with running("fastapi_app") as app, client_of(app, "/api/mcp") as client:
        a, b = await HeldSession.create(client), await HeldSession.create(client)
        await together([a.call("add", item=item) for item in ("pen", "book", "pen")])
        assert await b.call("add", item="book") == ["book"]
        assert [await a.call("total"), await b.call("total")] == [18, 12]
        with pytest.raises(ToolFailed, match="there is no ship; there are: pen, book"):
            await a.call("add", item="ship")


async def test_the_application_is_unchanged() -> None:
    """The application's routes answer, its lifespan ran, and its OpenAPI document has no MCP endpoint."""
    async with running("fastapi_app") as app, http_of(app) as http:
        assert (await http.get("/catalogue")).json() == {"pen": 3, "book": 12}
        assert list((await http.get("/openapi.json")).json()["paths"]) == ["/catalogue"]
