"""Files and schemas that an older version wrote: they are upgraded in place, and their sessions go on."""

import sqlite3
from collections.abc import AsyncIterator, Callable
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import postgres_servers
import pytest
from every_store import STORES, memory_folder, name

from mcp_sessions._errors import PrincipalDataTooLarge, StoreUnavailable
from mcp_sessions._session.claims import AUDIENCE
from mcp_sessions._session.data import Namespace
from mcp_sessions.stores import SessionStatus
from mcp_sessions.stores import _sql_text as sql
from mcp_sessions.stores._base import Ended, Record
from mcp_sessions.testing._contract import (
    ALICE,
    BOB,
    LATER,
    START,
    Clock,
    at_once,
    claim,
    listed,
    register,
    revoke,
    session,
    statuses_in,
    touch_in,
)

FORMATS = Path(__file__).parent / "formats"
"""Dumps of what each version wrote for the sessions below."""
LIVE, ANONYMOUS, ENDED, PURGED = (
    session("live"),
    session("anonymous", subject=None),
    session("ended"),
    session("purged"),
)
CUT_OFF, BARE = session("cut", issued_at=START - 10, subject=BOB), session("bare-ended")
PLACE = Namespace(LIVE.ref, LATER, 10_000, ALICE, 10_000)
Make = Callable[[], Any]


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


def load(kind: str, folder: Path, found: int) -> None:
    text = (FORMATS / f"{found}.{kind}.sql").read_text("utf-8")
    if kind == "postgres":
        postgres_servers.shared().execute(text.replace("mcp_sessions", name(folder)))
        return
    path = folder / "sessions.db"
    with closing(sqlite3.connect(path)) as connection:
        connection.executescript(text)
        connection.execute(f"PRAGMA application_id = {sql.APPLICATION_ID}")
        connection.execute(f"PRAGMA user_version = {found}")
    path.chmod(0o600)


@pytest.fixture(params=[(kind, found) for kind in ("sqlite", "postgres") for found in sql.MIGRATIONS], ids=str)
async def make(request: pytest.FixtureRequest, clock: Clock) -> AsyncIterator[Make]:
    """What makes stores on what an older version wrote."""
    kind, found = request.param
    made = []

    def make_one() -> Any:
        made.append(STORES[kind](clock, Path(folder)))
        return made[-1]

    with memory_folder() as folder:
        load(kind, Path(folder), found)
        yield make_one
        for one in made:
            await one.close()


async def test_sessions_of_an_older_format_go_on(make: Make, caplog: pytest.LogCaptureFixture) -> None:
    """Their statuses, records, data and limits; workers that start at once upgrade the tables once."""
    workers = [make() for _ in range(3)]
    await at_once([one.open for one in workers])
    assert sum("upgraded the session store from format" in text for text in caplog.messages) == 1
    store = workers[-1]
    live, ended = SessionStatus.LIVE, SessionStatus.ENDED
    asked = [LIVE, ANONYMOUS, ENDED, PURGED, CUT_OFF, BARE]
    assert await statuses_in(store, asked) == [live, live, ended, ended, ended, ended]
    assert await touch_in(store, LIVE, idle_timeout=60) is live
    assert await listed(store) == [replace(Record.of(LIVE), principal_hashes="of alice")]
    assert await store.read(PLACE, "cart") == b'["tea"]'
    with pytest.raises(PrincipalDataTooLarge):
        await store.write(PLACE, "large", b"x" * 9_500)
    # LIVE, ANONYMOUS and CUT_OFF, and until its `on_end` has run, ENDED.
    assert [await store.count(audience=audience) for audience in (AUDIENCE, "other")] == [4, 1]


async def test_sessions_of_an_older_format_end(make: Make, clock: Clock) -> None:
    """By a lease that began before, by expiry, and by name; then they are not counted any more."""
    store = make()
    await store.open()
    clock.now = START + 30
    assert [one.record.ref for one in await claim(store)] == [ENDED.ref]
    await store.purge(ENDED.ref)
    assert await revoke(store, LIVE, lease=None)
    assert await store.count(audience=AUDIENCE) == 2
    clock.now = LATER
    found = await claim(store)
    assert {(one.record.ref, one.reason) for one in found} == {(one.ref, "expired") for one in (ANONYMOUS, CUT_OFF)}
    assert isinstance(found[0], Ended)
    await store.purge(*(one.record.ref for one in found))
    assert await store.count(audience=AUDIENCE) == 0


async def test_a_server_of_the_older_version_creates_no_more_sessions(make: Make) -> None:
    """Its statements fail, since what it records would not be counted."""
    store = make()
    await store.open()
    with pytest.raises(StoreUnavailable):
        await store._change(("INSERT INTO usage (name, hour, part, amount) VALUES ('sessions x', 0, 0, 1)", {}))
    await register(store, session("new"))
