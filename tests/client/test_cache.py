"""The response cache of the SDK's 2.x client, which knows nothing of sessions, serves none of them another's."""

from __future__ import annotations

from typing import Any

import anyio
from environments import require

require("mcp>=2")

from mcp import Client
from mcp.client.caching import CacheConfig

from integration.servers import DEADLINE
from integration.serving import serving
from integration.test_cache import server
from mcp_sessions.client import with_sessions

from .peers import Log, streams_of


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
