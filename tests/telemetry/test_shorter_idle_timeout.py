"""A deployment sets a shorter `idle_timeout`: sessions from before it end as it says, and report their end."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from apps import Server, sessions, sweeper_of
from clients import Client, Clock
from every_store import STORES
from opentelemetry.sdk.trace import ReadableSpan
from recorded import said

from mcp_sessions import EndedSession, SessionCreated, SessionDeleted, SessionEvent

HOUR = 3600


@pytest.mark.parametrize("anyio_backend", ["asyncio"])  # the driver of Redis knows nothing else
@pytest.mark.parametrize("kind", STORES)
async def test_a_session_from_before_ends_at_the_first_sweep(
    kind: str, tmp_path: Path, spans: list[ReadableSpan]
) -> None:
    """Though it was recorded, used and looked at under a longer one, by another process."""
    clock, ran, facts = Clock(), list[tuple[str, str]](), list[SessionEvent]()

    def on_end(session: EndedSession, reason: str) -> None:
        ran.append((session.ref, reason))

    def deployed(idle_timeout: int) -> Any:
        options = {"tracked": True, "clock": clock, "on_end": on_end, "listen": facts.append}
        return sessions(Server(), store=store, idle_timeout=idle_timeout, **options)

    store = STORES[kind](clock, tmp_path)
    before = deployed(100 * HOUR)
    client = Client(before)
    created = [await client.create() for _ in range(2)]
    clock.now += HOUR
    await client.tool(session=created[0])
    await sweeper_of(before).sweep()
    if kind != "memory":
        await store.close()
        store = STORES[kind](clock, tmp_path)
    clock.now += 2 * HOUR
    assert ran == []
    await sweeper_of(deployed(HOUR)).sweep()
    await store.close()
    refs = sorted(fact.ref for fact in facts if isinstance(fact, SessionCreated))
    assert sorted(ran) == [(ref, "idle") for ref in refs]
    ended = [fact for fact in facts if isinstance(fact, SessionDeleted)]
    assert sorted((fact.ref, fact.reason, fact.seconds) for fact in ended) == [(ref, "idle", 3 * HOUR) for ref in refs]
    marked = [said(span, "session.id", "mcp_sessions.reason") for span in spans if span.name == "session end"]
    assert sorted(marked) == [[ref, "idle"] for ref in refs]
