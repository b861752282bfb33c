"""The page shows what every client can do on every server."""

import pages
from environments import require

require("mcp>=2")

from compatibility import matrix


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
