"""Instances that cache data for each session, behind nginx, which routes a session to the same instance.

Nothing here depends on it: any instance answers any call, and where one is replaced the next answers, cold at first. So
routing only saves time, by hashing the header that names the session. Clients of the legacy era send it, and so do
those of `mcp_sessions.client`; requests without it are spread. `python examples/routing.py PORT SERVER_PORT...` writes
the configuration.

    MCP_SESSIONS_STORE=sqlite:sessions.db MCP_SESSIONS_KEYS=... uvicorn --app-dir examples --port 8001 routing:app
"""

from __future__ import annotations

import os
import secrets
import sys
from typing import Annotated

from mcp.server import MCPServer
from mcp.server.mcpserver import Resolve

from mcp_sessions import MCPSessionMiddleware, Session, require_session
from mcp_sessions.events import EndedSession

NGINX = """\
daemon off;
pid nginx.pid;
error_log stderr notice;
events {{}}
http {{
    access_log off;
    map $http_mcp_session_id $place {{
        "" $request_id;  # no session: anywhere
        default $http_mcp_session_id;
    }}
    upstream mcp {{
        hash $place consistent;  # where a server comes or goes, most sessions stay where they are
{servers}
    }}
    server {{
        listen 127.0.0.1:{port};
        location / {{
            proxy_pass http://mcp;
            proxy_set_header Host $http_host;
            proxy_buffering off;
            proxy_read_timeout 1h;
        }}
    }}
}}
"""
INSTANCE = secrets.token_hex(4)
mcp = MCPServer("warm")
warm: dict[str, list[str]] = {}


@mcp.tool()
async def look_up(prefix: str, session: Annotated[Session, Resolve(require_session)]) -> dict[str, str | list[str]]:
    """Return the words with a prefix, from a list that is built once per session."""
    found = "warm" if session.ref in warm else "cold"
    words = warm.setdefault(session.ref, sorted("sock shirt shoe scarf hat".split()))
    return {"instance": INSTANCE, "found": found, "words": [word for word in words if word.startswith(prefix)]}


def forget(session: EndedSession, _reason: str) -> None:
    """Drop the cache; only the instance that ends a session is called, others drop theirs later."""
    warm.pop(session.ref, None)


app = MCPSessionMiddleware(
    mcp.streamable_http_app(stateless_http=True),
    keys="env:MCP_SESSIONS_KEYS",
    store=os.environ.get("MCP_SESSIONS_STORE", "memory:"),
    on_end=forget,
)


def configuration(port: int, *servers: int) -> str:
    """The configuration of nginx on a port, for servers on other ports of this machine."""
    lines = "\n".join(f"        server 127.0.0.1:{each};" for each in servers)
    return NGINX.format(port=port, servers=lines)


if __name__ == "__main__":
    print(configuration(*map(int, sys.argv[1:])))
