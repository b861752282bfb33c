"""Every client is tried on every server, and the page shows the results."""

from __future__ import annotations

import json

import pages
import pytest
from environments import require

require("mcp>=2")

from compatibility import matrix
from compatibility.host import hosting
from compatibility.visit import visit


def test_the_page_promises_sessions_for_every_client() -> None:
    """In their default settings all clients have sessions with every server, as has the draft where it is spoken."""
    lines = pages.part(matrix.PAGE, matrix.COMMAND).splitlines()
    rows = [line.strip("| ").split(" | ") for line in lines if line.startswith("| ")][2:]
    assert lines[0].count(",") == 3
    cells = [(client, works, servers) for works, servers, clients in rows for client in clients.split("; ")]
    for client, works, servers in cells:
        if "versionNegotiation" in client:
            assert works in {"U", matrix.NOTHING}  # in the modern era, Node keeps no cookies
        else:
            assert (works, servers) == ("U" if client.startswith("TypeScript") else "U D", "every server")
    assert len({client for client, _, _ in cells}) == 9


@pytest.mark.nightly
@pytest.mark.filterwarnings("ignore:Unclosed <MemoryObject:ResourceWarning")
@pytest.mark.parametrize("anyio_backend", ["asyncio"])  # uvicorn runs on nothing else
async def test_every_client_visits_every_server(capsys: pytest.CaptureFixture[str]) -> None:
    """Python and JavaScript clients visit by HTTP, and each result is printed as a line."""
    async with hosting(["sdk2"]) as urls:
        assert len(urls) == 4
        [(server, url)] = [(server, url) for server, url in urls.items() if server.endswith("|stateful|SSE")]
        await visit({server: url}, ["sdk2"])
        [typescript] = await matrix.visited_by_javascript({server: url}, ["typescript 1"])
    results = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [result["works"] for result in results] == ["UD", "UD"]
    assert (typescript.server, typescript.works) == (server, "U")
