"""A SQLite file, where it may lie, and its faults, made for real: each is told by its cause, and ends with it."""

import os
import re
import shutil
import sqlite3
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any, NoReturn

import pytest
from clients import Clock
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
    return [row[0].rstrip("x") for row in connection.execute("SELECT ref FROM sessions WHERE ref <> '' ORDER BY ref")]


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
    """Each commit waits for the disk, readers and the writer do not wait for each other, and the log shrinks again.

    Its parts name sessions. There is no moment at which others may read them, whatever the process's mask says.
    """
    file, before = case.file(), os.umask(0)
    file.change(add("a"))
    os.umask(before)
    settings = ("journal_mode", "synchronous", "fullfsync", "journal_size_limit", "trusted_schema", "cell_size_check")
    assert [file.read(partial(pragma, name)) for name in settings] == ["wal", 2, 1, 16 << 20, 0, 1]
    assert case.file().read(names) == ["a"]
    modes = {found.name: found.stat().st_mode & 0o777 for found in case.path.parent.iterdir()}
    assert modes == dict.fromkeys(("sessions.db", "sessions.db-wal", "sessions.db-shm"), 0o600)


def test_a_trap_in_the_schema_runs_no_function(case: Case) -> None:
    """A view or trigger of whoever wrote the file gets nothing that reaches beyond it."""
    case.file().open()
    case.opened.pop().close()
    with case.raw() as other:
        other.execute("CREATE TRIGGER trap AFTER INSERT ON sessions BEGIN SELECT checked_sum(NULL, 1); END")
    file = case.file()
    assert refused(file.change, add("a")) == "store_unavailable"


# --- locks ---------------------------------------------------------------------------------------


def test_a_file_that_another_process_is_creating_is_waited_for(case: Case) -> None:
    """Before there is a log, SQLite does not always wait by itself."""
    case.path.touch(mode=0o600)
    other = sqlite3.connect(case.path, isolation_level=None, check_same_thread=False)
    other.execute("BEGIN EXCLUSIVE")
    assert refused(case.file(busy=HASTY).open) == "store_locked"
    other.rollback()
    other.execute("BEGIN")
    other.execute("SELECT * FROM sqlite_master").fetchall()
    threading.Timer(0.3, other.rollback).start()
    case.file().open()
    other.close()


def test_a_file_that_is_busy_for_a_moment_is_opened(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    """SQLite gives up by itself if processes begin to use the log at the same moment."""
    connect, refusals = sqlite3.connect, ["locking protocol"]

    def busy(*args: Any, **options: Any) -> sqlite3.Connection:
        if refusals:
            raise sqlite3.OperationalError(refusals.pop())
        made: sqlite3.Connection = connect(*args, **options)
        return made

    monkeypatch.setattr(sqlite3, "connect", busy)
    case.file().open()
    assert refusals == []


# --- faults of the file --------------------------------------------------------------------------


def test_a_full_file_refuses_what_is_new_and_keeps_what_it_has(case: Case) -> None:
    """A part of it is kept for what makes room."""
    file, kept = case.file(), list[str]()

    def fill() -> NoReturn:
        while True:
            file.change(add(f"{len(kept):03}", size=2000))
            kept.append(f"{len(kept):03}")

    with pytest.raises(StoreFull, match="Session store") as caught:
        fill()
    assert caught.value.reason == "store_full_disk"
    assert f"{case.path} is as large as it may be: raise max_bytes=" in caught.value.cause
    assert file.read(names) == kept
    file.change(add("new", size=2000), frees=True)
    assert file.read(names) == [*kept, "new"]
    assert case.path.stat().st_size <= 1 << 18


def test_full_disk_is_told_from_a_full_file(case: Case) -> None:
    """SQLite has one message for both."""
    file = SQLiteFile(str(case.path), clock=case.clock, busy_timeout=PATIENT, max_bytes=1 << 30)
    case.opened.append(file)

    def fill(_: sqlite3.Connection) -> NoReturn:
        raise sqlite3.OperationalError("database or disk is full")

    with pytest.raises(StoreFull) as caught:
        file.change(fill)
    assert f"the disk of {case.path} is full: free space on it" in caught.value.cause


def test_a_file_that_is_no_database_is_refused(case: Case) -> None:
    """It is not touched; when it is away, a new one is created."""
    content = b"no database" * 1000
    case.path.write_bytes(content)
    file = case.file()
    assert refused(file.open) == refused(file.read, names) == refused(file.change, add("a")) == "store_corrupt"
    assert case.path.read_bytes() == content
    case.path.unlink()
    file.change(add("a"))
    assert file.read(names) == ["a"]


def test_a_lost_page_is_not_read_as_empty(case: Case) -> None:
    """Or what had ended would read as live. Opening a file does not read it whole."""
    file = case.file()
    for n in range(100):
        file.change(add(f"{n}", size=200))
    file.close()
    content = case.path.read_bytes()
    for at in range(4096, len(content), 4096):  # all but the first
        case.path.write_bytes(content[:at] + bytes(4096) + content[at + 4096 :])
        found: list[str] = []
        with suppress(StoreUnavailable):
            found += case.file().read(names)
        assert sorted(found) in ([], sorted(map(str, range(100))))
        case.opened.pop().close()


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


FORMATS = (sql.FORMAT + 1, min(sql.MIGRATIONS) - 1)


@pytest.mark.parametrize(
    ("is_ours", "statement", "remedy"),
    [
        (False, "CREATE TABLE theirs (a)", "belongs to another program; give the path"),
        (False, "PRAGMA user_version = 1", "belongs to another program"),
        (False, "PRAGMA application_id = 5", "belongs to another program"),
        *(
            (True, f"PRAGMA user_version = {n}", rf"format {n}, this .* {sql.FORMAT}\); install that version again")
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
        for text in (sql.CLAIM_DUE, sql.CLAIM_IDLE, sql.CLAIMED, sql.EXPIRED, *sql.SWEEP[-2:], sql.COUNT, *lists):
            values = {**dict.fromkeys(re.findall(r":(\w+)", text), 1), "refs": "[]"}
            plans = connection.execute(f"EXPLAIN QUERY PLAN {sqlite_file.DIALECT.render(text)}", values)
            assert not [plan[3] for plan in plans if re.match("SCAN.*(sessions|cutoffs|items|amounts|kept)$", plan[3])]


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
    assert sqlite_file.reason_of(sqlite3.OperationalError(text)) == reason


# --- the connection that only reads --------------------------------------------------------------


def test_what_has_to_be_opened_or_waited_for_is_not_read_at_once(case: Case) -> None:
    """Whoever may wait opens it; then it is read, and never written, without a wait."""
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
