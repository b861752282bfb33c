"""A SQLite file, where it may lie, and its faults, made for real: each is told by its cause, and ends with it."""

import os
import re
import shutil
import sqlite3
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from functools import partial
from pathlib import Path
from typing import Any, NoReturn

import pytest
from clients import START, Clock
from every_store import memory_folder

from mcp_sessions._errors import ConfigurationError, StoreFull, StoreUnavailable
from mcp_sessions.stores import SQLiteStore
from mcp_sessions.stores import _sql_text as sql
from mcp_sessions.stores import _sqlite_file as sqlite_file
from mcp_sessions.stores._sqlite_file import SQLiteFile

NOBODY = 65534
PATIENT, HASTY = 60, 1  # seconds to wait for a lock


class Case:
    """A path, a clock, and files that are opened there."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "sessions.db"
        self.clock = Clock()
        self.opened: list[SQLiteFile] = []

    def file(self, *, busy: float = PATIENT, clock: Callable[[], float] | None = None) -> SQLiteFile:
        made = SQLiteFile(str(self.path), clock=clock or self.clock, busy_timeout=busy, max_bytes=1 << 18)
        self.opened.append(made)
        return made

    def part(self, end: str) -> Path:
        return Path(f"{self.path}{end}")

    def beside(self) -> list[str]:
        """What lies in the file's folder."""
        return sorted(found.name for found in self.path.parent.iterdir())

    def raw(self) -> Any:
        """Another program's connection."""
        return closing(sqlite3.connect(self.path, isolation_level=None))


@pytest.fixture
def case() -> Iterator[Case]:
    with memory_folder() as folder:
        made = Case(Path(folder))
        yield made
        for file in made.opened:
            file.close()


def add(name: str, *, size: int = 0) -> Callable[[sqlite3.Connection], None]:
    def job(connection: sqlite3.Connection) -> None:
        connection.execute("INSERT INTO sessions (ref, expires_at, part) VALUES (?, 1, 0)", (name + "x" * size,))

    return job


def names(connection: sqlite3.Connection) -> list[str]:
    return [row[0].rstrip("x") for row in connection.execute("SELECT ref FROM sessions ORDER BY ref")]


def epoch(connection: sqlite3.Connection) -> int:
    return int(connection.execute("SELECT epoch FROM store").fetchone()[0])


def pragma(name: str, connection: sqlite3.Connection) -> Any:
    return connection.execute(f"PRAGMA {name}").fetchone()[0]


def refused(call: Callable[..., object], *args: Any) -> str:
    """Why a call is refused."""
    with pytest.raises(StoreUnavailable) as caught:
        call(*args)
    return caught.value.reason


# --- where it may lie ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("path", "remedy"),
    [
        *((path, "takes the path of a file") for path in (None, b"sessions.db")),
        *((path, "use store='memory:'") for path in ("", ":memory:", "file:sessions.db?mode=ro", "a\0b")),
        ("/", "is a folder; name a file in it"),
        ("/missing/sessions.db", "does not exist; create it"),
    ],
)
def test_a_path_that_cannot_be_a_file_is_refused(path: Any, remedy: str) -> None:
    """With the remedy. No folder is created: a mistyped path would be a new, empty store."""
    with pytest.raises(ConfigurationError, match=remedy):
        SQLiteStore(path)


def test_a_path_is_absolute_from_then_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The server may change its folder later."""
    monkeypatch.chdir(tmp_path)
    assert SQLiteStore("sessions.db").location == f"SQLite file {tmp_path}/sessions.db"


def link(path: Path) -> None:
    path.rename(path.with_suffix(".real"))
    path.symlink_to(path.with_suffix(".real"))


def foreign_log(path: Path) -> None:
    (log := Path(f"{path}-wal")).touch(mode=0o600)
    os.chown(log, 4711, -1)


OTHERS: dict[str, tuple[Callable[[Path], object], str]] = {
    "a folder that all may write to": (lambda path: path.parent.chmod(0o1777), "mkdir -m 700"),
    "a link": (link, "follows no link"),
    "a folder in place of the index": (lambda path: Path(f"{path}-shm").mkdir(), "follows no link"),
    "a file that all may write to": (lambda path: path.chmod(0o602), "chmod o-w"),
    "a file of another user": (lambda path: os.chown(path, 4711, -1), "chmod o-w"),
    "a log of another user": (foreign_log, "chmod o-w"),
}
as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root gives files away")


@as_root
@pytest.mark.parametrize(("change", "remedy"), OTHERS.values(), ids=OTHERS)
def test_what_another_user_could_change_is_not_opened(
    change: Callable[[Path], object], remedy: str, case: Case
) -> None:
    """Nor is anything of it deleted or followed."""
    case.path.touch(mode=0o600)
    change(case.path)
    before = case.beside()
    with pytest.raises(ConfigurationError, match=remedy):
        case.file().open()
    assert case.beside() == before


# --- what is kept --------------------------------------------------------------------------------


def test_a_file_is_durable_and_private(case: Case) -> None:
    """Each commit waits for the disk, and readers and the writer do not wait for each other.

    Its parts name sessions. There is no moment at which others may read them, whatever the process's mask says.
    """
    file, before = case.file(), os.umask(0)
    file.change(add("a"))
    os.umask(before)
    found = [file.read(partial(pragma, name)) for name in ("journal_mode", "synchronous", "fullfsync")]
    assert found == ["wal", 2, 1]
    assert case.file().read(names) == ["a"]
    modes = {found.name: found.stat().st_mode & 0o777 for found in case.path.parent.iterdir()}
    assert modes == dict.fromkeys(("sessions.db", "sessions.db-wal", "sessions.db-shm"), 0o600)


# --- locks ---------------------------------------------------------------------------------------


def test_the_wait_begins_when_the_change_is_asked_for(case: Case) -> None:
    """Whoever stood in a queue has waited; the locks of many would add up."""
    file = case.file()
    assert refused(partial(file.change, deadline=time.monotonic()), add("a")) == "store_locked"
    assert file.read(names) == []


def test_a_file_that_another_process_is_making_is_waited_for(case: Case) -> None:
    """Until it is there, or for as long as for any lock; one that died while making it is not."""
    (making := case.part("-new")).touch()
    assert refused(case.file(busy=HASTY).open) == "store_locked"
    assert case.beside() == ["sessions.db-new"]
    threading.Timer(0.05, making.unlink).start()
    case.file().open()
    case.opened[-1].close()
    case.path.unlink()
    making.touch()
    os.utime(making, (0, 0))
    case.file(busy=HASTY).open()
    assert not making.exists()


def test_a_file_that_was_made_meanwhile_is_not_replaced(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    """By another process, between the look and the turn: what it holds is kept, and so is its log."""
    really = os.open

    def late(*args: Any) -> int:
        for part in ("", "-wal"):
            case.part(part).write_bytes(b"another's")
        return really(*args)

    monkeypatch.setattr(os, "open", late)
    sqlite_file.create_owner_only(str(case.path))
    monkeypatch.undo()
    assert case.path.read_bytes() == case.part("-wal").read_bytes() == b"another's"
    assert case.beside() == ["sessions.db", "sessions.db-wal"]


# --- faults of the file --------------------------------------------------------------------------


def test_a_full_file_refuses_what_is_new_and_keeps_what_it_has(case: Case) -> None:
    """A part of it is kept for what makes room."""
    file, kept = case.file(), list[str]()

    def fill() -> NoReturn:
        while True:
            file.change(add(f"{len(kept):03}", size=2000))
            kept.append(f"{len(kept):03}")

    with pytest.raises(StoreFull) as caught:
        fill()
    assert caught.value.reason == "store_full_disk"
    assert file.read(names) == kept
    file.change(add("new", size=2000), frees=True)
    assert file.read(names) == [*kept, "new"]
    assert case.path.stat().st_size <= 1 << 18


@pytest.mark.parametrize(
    "damaged", [lambda content: b"no database" * 1000, lambda content: content[:-8192] + bytes(8192)]
)
def test_a_file_that_is_no_database_or_a_damaged_one_is_refused(case: Case, damaged: Callable[[bytes], bytes]) -> None:
    """A lost page would read as if nothing had been ended. It is not touched; when it is away, a new one is made."""
    file = case.file()
    for n in range(100):
        file.change(add(f"{n}", size=200))
    file.close()
    content = damaged(case.path.read_bytes())
    case.path.write_bytes(content)
    assert refused(file.open) == refused(file.read, names) == refused(file.change, add("a")) == "store_corrupt"
    assert case.path.read_bytes() == content
    case.path.unlink()
    file.change(add("a"))
    assert file.read(names) == ["a"]


def test_a_database_that_is_damaged_while_open_is_opened_again(case: Case) -> None:
    """Once the damage is seen; and it is refused for as long as it lasts."""
    file = case.file()
    file.change(add("a"))
    with case.raw() as other:
        other.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
    good = case.path.read_bytes()
    os.truncate(case.path, 5000)

    def uncached(connection: sqlite3.Connection) -> list[str]:
        connection.execute("PRAGMA shrink_memory")
        return names(connection)

    assert refused(file.read, uncached) == refused(file.read, names) == "store_corrupt"
    with case.path.open("r+b") as damaged:
        damaged.write(good)
    assert file.read(names) == ["a"]


@contextmanager
def as_nobody() -> Iterator[Case]:
    """A folder, and no right to more than its owner has: root would be let in everywhere."""
    before = os.geteuid()
    folder = Path(tempfile.mkdtemp())
    mine = NOBODY if before == 0 else before
    os.chown(folder, mine, -1)
    os.seteuid(mine)
    case = Case(folder)
    try:
        yield case
        for file in case.opened:
            file.close()
    finally:
        os.seteuid(before)
        shutil.rmtree(folder)


def test_a_file_that_may_not_be_written_is_of_no_use() -> None:
    """Sessions could not be ended, nor could a log lie in the folder. It is, when it may be written."""
    with as_nobody() as case:
        file = case.file()
        case.path.parent.chmod(0o500)
        assert refused(file.open) == "store_cannot_open"
        case.path.parent.chmod(0o700)
        file.change(add("a"))
        file.close()
        case.path.chmod(0o400)
        reader, writer = case.file(), case.file()
        assert refused(reader.read, names) == refused(writer.change, add("b")) == "store_read_only"
        for found in case.path.parent.iterdir():
            found.chmod(0o600)
        writer.change(add("b"))
        assert reader.read(names) == ["a", "b"]


def test_a_place_that_cannot_be_looked_at_is_refused(case: Case) -> None:
    """Nor can it be told whether the file that is open lies there; closing it is then left undone."""
    file = case.file()
    file.change(add("a"))
    case.path.rename(case.path.with_name("away.db"))
    case.path.symlink_to(case.path)
    assert file.read_nowait(names) is None
    assert refused(file.read, names) == "store_cannot_open"
    file.close()


def test_a_file_whose_folder_became_a_file_is_gone(case: Case, caplog: pytest.LogCaptureFixture) -> None:
    folder = case.path.parent / "folder"
    folder.mkdir(mode=0o700)
    case.path = folder / "sessions.db"
    file = case.file()
    file.open()
    folder.rename(folder.with_name("away"))
    folder.touch()
    assert file.read_nowait(names) is None
    assert refused(file.read, names) == "store_cannot_open"
    assert "the session store's file was deleted or replaced: older sessions may be refused" in caplog.messages


FORMATS = (sql.FORMAT + 1, sql.FORMAT - 1)


@pytest.mark.parametrize(
    ("is_ours", "statement", "remedy"),
    [
        (False, "CREATE TABLE theirs (a)", "belongs to another program; give the path"),
        (False, "PRAGMA user_version = 1", "belongs to another program"),
        (False, "PRAGMA application_id = 5", "belongs to another program"),
        *(
            (True, f"PRAGMA user_version = {n}", rf"format {n}, this .* {sql.FORMAT}\); give another path")
            for n in FORMATS
        ),
    ],
)
def test_another_program_s_or_version_s_file_is_refused_untouched(
    case: Case, is_ours: bool, statement: str, remedy: str
) -> None:
    """The error shows the remedy. Another version may end a session in a way that is not known here."""
    if is_ours:
        case.file().open()
        case.opened.pop().close()
    with case.raw() as other:
        other.execute(statement)
    content = case.path.read_bytes()
    file = case.file()
    for call in (file.open, partial(file.read, names), partial(file.change, add("a"))):
        with pytest.raises(ConfigurationError, match=remedy):
            call()
    assert case.path.read_bytes() == content


def test_every_question_about_what_is_over_has_an_index(case: Case) -> None:
    """No sweep, list or claim reads a whole table."""
    case.file().open()
    lists = [sql.list_sessions(of_one=one, with_cut_off=whole) for one in (True, False) for whole in (True, False)]
    with case.raw() as connection:
        for text in (sql.CLAIM, sql.EXPIRED, sql.SWEEP[-2], sql.COUNT, *lists):
            values = {**dict.fromkeys(re.findall(r":(\w+)", text), 1), "refs": "[]"}
            plans = connection.execute(f"EXPLAIN QUERY PLAN {sqlite_file.DIALECT.render(text)}", values)
            assert not [plan[3] for plan in plans if re.match("SCAN.*(sessions|cutoffs|items|kept)$", plan[3])]


def test_without_shared_memory_there_is_no_log(case: Case) -> None:
    """A database in memory stands for a file system that has none."""
    remedy = pytest.raises(ConfigurationError, match="give a path on a local disk")
    with closing(sqlite3.connect(":memory:")) as connection, remedy:
        case.file()._configure(connection)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("locking protocol", "store_locked"),
        ("disk I/O error", "store_io_error"),
        ("something new", "store_unavailable"),
    ],
)
def test_faults_that_no_test_makes_have_their_reasons(text: str, reason: str) -> None:
    """Of one that nobody foresaw it is said that the store is unavailable."""
    assert sqlite_file.cause(sqlite3.OperationalError(text)) == reason


# --- files that vanish ---------------------------------------------------------------------------


@pytest.mark.parametrize("parts", [["", "-wal", "-shm"], [""]])
def test_a_file_that_was_deleted_is_made_anew_and_vouches_for_nothing_older(case: Case, parts: list[str]) -> None:
    """Not even for that second, in which it may have been told something. The others see the same epoch."""
    one, two = case.file(), case.file()
    for now, file in ((START, one), (START + 50, two)):
        case.clock.now = now
        file.change(add(f"{file}"))
        assert file.read(epoch) == START  # opening it again moves nothing
    case.clock.now = START + 100.5
    for part in parts:
        case.part(part).unlink()
    assert one.read(epoch) == START + 101
    case.clock.now = START + 200
    one.change(add("new"))
    assert two.read(epoch) == START + 101
    assert two.read(names) == ["new"]


def test_a_file_that_was_put_in_its_place_vouches_for_nothing_older(case: Case) -> None:
    """An older copy may lack what was ended since; whoever sees it first raises the epoch for all."""
    one, two = case.file(), case.file()
    for file in (one, two):
        file.read(names)
    with case.raw() as other:
        other.execute("VACUUM INTO ?", (f"{case.path}-copy",))
    case.clock.now = START + 100
    one.change(add("a"))
    assert two.read(names) == ["a"]
    for part in ("-wal", "-shm"):
        case.part(part).unlink()
    case.part("-copy").replace(case.path)
    case.clock.now = START + 150
    assert one.read(epoch) == START + 151
    case.clock.now = START + 200
    assert two.read(epoch) == START + 151


def test_a_file_that_vanishes_while_it_is_used_is_not_certain(case: Case) -> None:
    """What was written to it is lost, after a commit, or before it is open."""

    def vanishing() -> float:
        case.path.unlink(missing_ok=True)
        return START

    file = case.file()
    file.open()
    assert refused(file.change, lambda *_: case.path.unlink()) == "store_vanished"
    assert file.read(names) == []
    assert refused(case.file(clock=vanishing).open) == "store_vanished"


def test_a_log_that_was_deleted_stops_all(case: Case, caplog: pytest.LogCaptureFixture) -> None:
    """Others would write one that is not seen here. Only a restart of everybody helps, which loses nothing.

    The log says so once a minute.
    """
    file = case.file()
    file.change(add("a"))
    case.part("-wal").unlink()
    assert refused(file.read, names) == refused(file.change, add("b")) == "store_log_vanished"
    assert len([text for text in caplog.messages if "(-wal) was deleted while in use" in text]) == 1
    file.close()
    assert file.read(names) == ["a"]


# --- the connection that only reads --------------------------------------------------------------


def test_what_has_to_be_opened_or_waited_for_is_not_read_at_once(case: Case) -> None:
    """Whoever may wait opens it; then it is read, and never written, without a wait, until its place has another."""
    file = case.file()
    assert file.read_nowait(names) is None
    file.open()
    case.file().change(add("a"))
    assert file.read_nowait(names) == ["a"]
    with file.lock:
        assert file.read_nowait(names) is None
    assert file.read_nowait(lambda connection: connection.execute("SELECT 1 FROM nothing")) is None
    assert file.read_nowait(lambda connection: connection.execute("DELETE FROM sessions")) is None
    assert file.read_nowait(names) == ["a"]
    case.path.unlink()
    assert file.read_nowait(names) is None
    assert file.read(names) == file.read_nowait(names) == []
