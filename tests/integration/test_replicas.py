"""Restarts and replicas: another process needs the keys and nothing else."""

from __future__ import annotations

import pytest

from .servers import COVERING, KEYS, Cell, running
from .wire import Held

covering = pytest.mark.parametrize("cell", COVERING, ids=str)


@covering
async def test_sessions_survive_a_restart(cell: Cell) -> None:
    """A new process with the same keys goes on with both sessions and their states."""
    async with running(cell) as server:
        client = await server.connected()
        sessions = [await client.create(), await client.create()]
        before = [await client.call("whoami", held) for held in sessions]
        await client.call("count", sessions[0])
    async with running(cell) as server:
        client = await server.connected()
        assert [await client.call("whoami", held) for held in sessions] == before
        assert [await client.call("count", held) for held in sessions] == ["2", "1"]


@covering
async def test_any_replica_serves_any_session(cell: Cell) -> None:
    async with running(cell) as one, running(cell) as two:
        clients = [await one.connected(), await two.connected()]
        held = await clients[0].create()
        assert [await clients[turn % 2].call("count", held) for turn in range(4)] == ["1", "2", "3", "4"]


@covering
async def test_rolled_keys_keep_old_sessions(cell: Cell) -> None:
    """A worker that signs with a new key accepts sessions of the old one, and a worker without the old key none."""
    new = "the next secret of the integration tests, 32 bytes and more"
    async with running(cell) as old:
        client = await old.connected()
        held = await client.create()
        await client.call("count", held)
    async with running(cell, keys=[new, KEYS]) as rolled:
        assert await (await rolled.connected()).call("count", held) == "2"
    async with running(cell, keys=new) as stranger:
        client = await stranger.connected()
        unchanged = Held(dict(held.metadata))
        refused = await client.request("tools/call", {"name": "whoami", "arguments": {}}, unchanged)
    assert refused.error["code"] == -32043
    assert "reason" not in refused.error["data"]
