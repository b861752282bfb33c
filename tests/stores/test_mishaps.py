"""What operators do to a shared store by mistake, or put in front of it, and clocks that are wrong."""

import os
import shutil
import sqlite3
import sys
import time
from collections.abc import Iterator
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import environments
import postgres_servers
import psycopg
import pytest
from every_store import STORES, memory_folder, name
from postgres_servers import USER, Server
from servers import Process, running

from mcp_sessions._errors import ConfigurationError
from mcp_sessions.stores import SessionStatus
from mcp_sessions.stores._sqlite import SQLiteStore
from mcp_sessions.testing._contract import (
    START,
    Clock,
    at_once,
    namespace,
    register,
    revoke,
    session,
    status_in,
    statuses_in,
    touch_in,
)


@pytest.fixture
def anyio_backend() -> str:
    """PostgreSQL's store refuses trio."""
    return "asyncio"


@pytest.fixture
def path() -> Iterator[Path]:
    with memory_folder() as folder:
        yield Path(folder, "sessions.db")


# --- SQLite ---------------------------------------------------------------------------------------


async def test_no_database_stops_the_start(path: Path, clock: Clock) -> None:
    """Waiting would not help; the message names the file and the remedy."""
    await anyio.Path(path).write_bytes(b"no database" * 1000)
    with pytest.raises(ConfigurationError, match=rf"{path}: .*it is no SQLite database, or damaged: move it"):
        await SQLiteStore(path, clock=clock).open()


async def test_older_copy_over_a_file_in_use_is_noticed(
    path: Path, clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    """By whichever worker first finds a session missing; one warning names the file, and sessions of before end."""
    one, other = SQLiteStore(path, clock=clock), SQLiteStore(path, clock=clock)
    await one.open()
    await revoke(one, session("ended before"))
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
    copy = await anyio.Path(path).read_bytes()
    await register(one, session("new"))
    await revoke(one, session("ended"))
    assert await touch_in(other, session("new"), idle_timeout=None) is SessionStatus.LIVE
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
    await anyio.Path(path).write_bytes(copy)
    for worker in (one, other):
        worker._file.read(lambda connection: connection.execute("PRAGMA shrink_memory").fetchall())
        worker._file.read_nowait(lambda connection: connection.execute("PRAGMA shrink_memory").fetchall())
    clock.now += 10
    assert await touch_in(one, session("new"), idle_timeout=None) is SessionStatus.UNKNOWN
    for worker in (other, one):
        assert await status_in(worker, session("ended")) is SessionStatus.UNKNOWN
        assert await status_in(worker, session("later", issued_at=clock.now + 1)) is SessionStatus.LIVE
    (told,) = (text for text in caplog.messages if "older copy" in text)
    assert f"the session store's file {path} was replaced by an older copy" in told
    await one.close()
    await other.close()


AHEAD_PROGRAM = """
import sys, time
true, ahead = time.time, [float(sys.argv[2])]
time.time = lambda: true() + ahead[0]
import anyio
from mcp_sessions.stores import SQLiteStore
async def main():
    store = SQLiteStore(sys.argv[1])
    await store.open()
    ahead[0] += float(sys.argv[3])
    for _ in range(2):
        found = await store.claim_ended(audience='mcp-sessions', idle_timeout=60, lease=30, limit=9)
        print(len(found))
    await store.close()
anyio.run(main)
"""


@pytest.mark.parametrize(("ahead", "step"), [(660, 0), (0, 3600)], ids=["at its start", "by a step"])
async def test_a_process_whose_machine_clock_is_ahead_ends_nothing_in_a_file(
    ahead: int, step: int, tmp_path: Path
) -> None:
    """It sees what the others of the machine agree on, at its start and at every sweep."""
    path = tmp_path / "sessions.db"
    store = STORES["sqlite"](time.time, tmp_path)
    await store.open()
    await register(store, one := session("live", issued_at=time.time(), expires_at=int(time.time()) + 300))
    command = [sys.executable, "-c", AHEAD_PROGRAM, str(path), str(ahead), str(step)]
    ran = await anyio.run_process(command)
    assert ran.stdout.split() == [b"0", b"0"]
    assert f"the clock jumped {ahead + step} s ahead".encode() in ran.stderr
    assert await touch_in(store, one, idle_timeout=60) is SessionStatus.LIVE
    await store.close()


# --- PostgreSQL -----------------------------------------------------------------------------------


EMPTIED = ["store", "sessions", "cutoffs", "store, sessions, cutoffs, items"]


@pytest.mark.parametrize("tables", EMPTIED)
async def test_emptied_tables_vouch_for_no_session_from_before(
    clock: Clock, tmp_path: Path, caplog: pytest.LogCaptureFixture, tables: str
) -> None:
    """As dropped ones: some of these sessions may have ended. Sessions that are created later live."""
    one, other = (STORES["postgres"](clock, tmp_path) for _ in range(2))
    schema = name(tmp_path)
    await one.open()
    await revoke(one, ended := session("ended"))
    postgres_servers.shared().execute(f"TRUNCATE {', '.join(f'{schema}.{table}' for table in tables.split(', '))}")
    clock.now += 5
    new, last = (session(name, issued_at=START + 9) for name in ("new", "last"))
    await register(one, new, max_sessions=5)
    assert await statuses_in(other, [session("old"), new, last]) == [
        *[SessionStatus.UNKNOWN, SessionStatus.LIVE, SessionStatus.LIVE]
    ]
    assert await statuses_in(other, [ended]) != [SessionStatus.LIVE]
    assert sum("the session store's tables were emptied" in text for text in caplog.messages) == 1
    await one.close()
    await other.close()


class Bouncer(Process):
    """PgBouncer in front of a server, with two connections to it."""

    starts_as = USER

    def __init__(self, folder: Path, server: Server, mode: str) -> None:
        super().__init__(folder)
        self.url = f"postgresql://postgres@/postgres?host={folder}&port=6432"
        settings = {
            "pool_mode": mode,
            "default_pool_size": 2,
            "unix_socket_dir": folder,
            "listen_addr": "",
            "auth_type": "any",
        }
        lines = [f"{name} = {value}" for name, value in settings.items()]
        databases = f"[databases]\npostgres = host={server.folder} user=postgres\n[pgbouncer]\n"
        (folder / "pgbouncer.ini").write_text(databases + "\n".join(lines))
        for path in (folder, *folder.iterdir()):
            path.chmod(0o700)
            shutil.chown(path, USER.get("user", os.geteuid()))

    def command_line(self) -> list[str]:
        return [str(environments.program("pgbouncer")), str(self.folder / "pgbouncer.ini")]

    def answers(self) -> bool:
        try:
            psycopg.connect(self.url).close()
        except psycopg.OperationalError:
            return False
        return True


@pytest.mark.parametrize("mode", ["transaction", "session"])
async def test_a_store_behind_pgbouncer_answers_every_call(clock: Clock, tmp_path: Path, mode: str) -> None:
    """Each transaction may use another connection of the server: nothing is prepared, no setting stays there."""
    server = postgres_servers.shared()
    with running(partial(Bouncer, server=server, mode=mode)) as bouncer:
        connections = 2 if mode == "session" else 10
        store = STORES["postgres"](clock, tmp_path, url=bouncer.url, timeout=20, connections=connections)
        await store.open()
        places = [namespace(session(f"{n}")) for n in range(100)]
        calls: list[Any] = [partial(store.add, place, "n", 1) for place in places]
        calls += [partial(revoke, store, session(f"r{n}")) for n in range(100)]
        calls += [partial(status_in, store, session(f"{n}")) for n in range(100)]
        found = await at_once(calls)
        assert found == [*[1] * 100, *[True] * 100, *[SessionStatus.LIVE] * 100]
        if mode == "transaction":
            with psycopg.connect(bouncer.url) as other:
                assert other.execute("SHOW search_path").fetchone() == ('"$user", public',)
        await store.close()
