"""The response cache of the SDK's 2.x client, which knows nothing of sessions, does not mix them up."""

from __future__ import annotations

from typing import Any, Final

import anyio
from clients import RealClient
from environments import require

require("mcp>=2")

from clients import SESSION_KEY
from mcp import Client
from mcp.client.caching import CacheConfig
from mcp.server.caching import CacheHint
from mcp.server.mcpserver import MCPServer

from client.peers import Log, streams_of
from mcp_sessions import MCPSessionMiddleware
from mcp_sessions.client import with_sessions

from .servers import DEADLINE, KEYS, ref
from .serving import serving

FRESH: Final = CacheHint(ttl_ms=3_600_000, scope="public")


def server(served: list[str]) -> Any:
    """Wrap a server whose resource answers with its session's ref and may be cached for an hour."""
    mcp = MCPServer("cached", cache_hints={"resources/read": FRESH, "tools/list": FRESH})

    @mcp.resource("session://me")
    async def me() -> str:
        served.append(ref())
        return ref()

    return MCPSessionMiddleware(mcp.streamable_http_app(stateless_http=True), keys=KEYS)


async def test_two_sessions_of_one_cached_client_read_their_own() -> None:
    """With the cache on, each session and a reader without one get their own answer, in any order."""
    served: list[str] = []
    app = server(served)
    with anyio.fail_after(DEADLINE):
        async with serving(app) as url, Client(url, mode="2026-07-28", cache=CacheConfig()) as client:
            wire = RealClient(app, modern=True)
            first, second = await wire.create(), await wire.create()

            async def read(held: dict[str, str] | None) -> str:
                meta: Any = None if held is None else {SESSION_KEY: held}
                result: Any = await client.read_resource("session://me", meta=meta)
                return str(result.contents[0].text)

            mine, yours = await read(first), await read(second)
            assert [await read(None), await read(None)] == ["nobody", "nobody"]
            assert served == [mine, yours, "nobody"]  # the cache is on: it answered the last read
            assert [await read(held) for held in (first, None, second, None)] == [mine, "nobody", yours, "nobody"]
    assert len({mine, yours, "nobody"}) == 3


async def test_each_session_reads_its_own_and_a_call_without_one_reads_nothing_of_them() -> None:
    """In any order of reading: the client knows of no session, so its cache could not keep them apart."""
    log = Log(server([]))
    with anyio.fail_after(DEADLINE):
        async with serving(log) as url:
            sessions = with_sessions(streams_of(url))
            async with Client(sessions, mode="2026-07-28", cache=CacheConfig(default_ttl_ms=60_000)) as client:

                async def read(session: Any) -> str:
                    with sessions.use(session):
                        result: Any = await client.read_resource("session://me")
                        await client.list_tools()
                    return str(result.contents[0].text)

                first, second = sessions.new(), sessions.new()
                texts = [await read(session) for session in (None, first, second, None, second, first)]
    assert texts == ["nobody", texts[1], texts[2], "nobody", texts[2], texts[1]]
    assert len(set(texts)) == 3
    assert len(log.sent("tools/list")) == len(texts)
