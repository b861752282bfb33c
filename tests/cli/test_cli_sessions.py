"""The commands that list and end sessions: what they do in the servers' store, and what they print."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from pathlib import Path

import anyio
import pytest
from clients import SECRET
from sources import claims

from mcp_sessions import Claims, KeyRing, Principal, Record, SessionStatus
from mcp_sessions import _cli as cli
from mcp_sessions.stores import SQLiteStore, Store

NOW = 1_800_000_000  # 2027-01-15T08:00:00Z
KEYS = ("--keys", "env:SESSION_KEYS")
ALICE = Principal(client_id="web", issuer="https://id.example", subject="alice")
AS_ALICE = ("--client-id", "web", "--issuer", "https://id.example", "--subject", "alice")
KEY = KeyRing([SECRET]).signing
Run = Callable[..., tuple[int, str]]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "sessions.db"


@pytest.fixture
def run(path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    """Run one command beside the servers' store, on a clock that moves by a second at each look."""
    monkeypatch.setenv("SESSION_KEYS", SECRET)

    def run(*arguments: str, store: str = f"sqlite:{path}") -> tuple[int, str]:
        ticks = itertools.count(NOW)
        with monkeypatch.context() as patch:
            patch.setattr("time.time", lambda: next(ticks))
            code = cli.main([arguments[0], "--store", store, *arguments[1:]])
        printed = capsys.readouterr()
        return code, printed.out + printed.err

    return run


def held(jti: str, principal: Principal | None, *, at: int = NOW - 60) -> Claims:
    return claims(jti=jti, issued_at=at, expires_at=NOW + 3600, subject=KEY.subject(principal))


ONE, OTHER, ANONYMOUS = held("a", ALICE, at=NOW - 120), held("b", ALICE), held("c", None)


@pytest.fixture
def recorded(path: Path) -> Path:
    """A store in which a server has recorded two sessions of a principal and an anonymous one."""

    async def record() -> None:
        store = SQLiteStore(path, clock=lambda: NOW - 300)  # it vouches for no session that is older than itself
        for session in (ONE, OTHER, ANONYMOUS):
            await store.register(Record.of(session, None if session.subject is None else KEY.component_hashes(ALICE)))
        await store.close()

    anyio.run(record)
    return path


def ended(path: Path) -> list[Claims]:
    """Which of the three a server refuses now."""

    async def judge() -> list[SessionStatus]:
        store: Store = SQLiteStore(path, clock=lambda: NOW)
        standings = await store.statuses([ONE, OTHER, ANONYMOUS])
        await store.close()
        return standings

    judged = zip((ONE, OTHER, ANONYMOUS), anyio.run(judge), strict=True)
    return [session for session, standing in judged if standing is SessionStatus.ENDED]


def test_a_principal_s_sessions_are_listed(recorded: Path, run: Run) -> None:
    """One a line, oldest first, by their public names."""
    code, printed = run("list", *KEYS, *AS_ALICE)
    times = "seen 2027-01-15T07:58:00+00:00  expires 2027-01-15T09:00:00+00:00"
    assert code == 0
    assert printed.splitlines()[0] == f"{ONE.ref}  created 2027-01-15T07:58:00+00:00  {times}"
    assert [line.split()[0] for line in printed.splitlines()] == [ONE.ref, OTHER.ref]


FITS = {
    ("--subject", "alice"): True,
    ("--client-id", "web"): True,
    ("--subject", "alice", "--issuer", "https://id.example"): True,
    ("--subject", "bob"): False,
    ("--client-id", "alice"): False,
    ("--client-id", "web", "--issuer", "https://id.example", "--subject", "bob"): False,
    ("--client-id", "cli", "--subject", "alice"): False,
}


@pytest.mark.parametrize("whom", FITS)
def test_what_is_left_out_of_a_principal_may_be_any(whom: tuple[str, ...], recorded: Path, run: Run) -> None:
    """A subject alone is the user with every client; what ends nobody says so and exits with 1."""
    count = 2 if FITS[whom] else 0
    assert run("list", "--count", *KEYS, *whom) == (0, f"sessions       {count}\n")
    code, printed = run("end-all", *KEYS, *whom)
    is_whole = len(whom) == 6
    assert (code, "recorded       2" in printed, "no recorded session matches" in printed) == (
        int(not count and not is_whole),
        bool(count),
        not count and not is_whole,
    )
    assert ended(recorded) == [ONE, OTHER] * FITS[whom]
    assert run("list", "--count", *KEYS, *whom)[1] == "sessions       0\n"


def test_without_a_principal_all_are_listed(recorded: Path, run: Run) -> None:
    """The anonymous, too; that takes no keys."""
    assert [line.split()[0] for line in run("list")[1].splitlines()] == [
        ONE.ref,
        *sorted([OTHER.ref, ANONYMOUS.ref]),
    ]


def test_sessions_are_those_of_one_audience(recorded: Path, run: Run) -> None:
    """An audience that is not the default has to be named."""
    assert run("list", *KEYS, *AS_ALICE, "--audience", "other") == (0, "")
    assert run("end-all", *KEYS, *AS_ALICE, "--audience", "other")[0] == 0
    assert ended(recorded) == []


def test_one_session_is_ended(recorded: Path, run: Run) -> None:
    """No keys are needed; a second time there is nothing to end."""
    assert run("end", "--ref", ONE.ref, "--reason", "support") == (0, f"ended          {ONE.ref}\n")
    assert ended(recorded) == [ONE]
    code, printed = run("end", "--ref", ONE.ref)
    assert code == 1
    assert printed.startswith("refused        no live session of this name is recorded")


def test_all_sessions_of_a_principal_are_ended(recorded: Path, run: Run) -> None:
    code, printed = run("end-all", *KEYS, *AS_ALICE)
    assert (code, printed.startswith("ended          the principal's sessions created before 2027-01-15T08:00:")) == (
        0,
        True,
    )
    assert ended(recorded) == [ONE, OTHER]


@pytest.mark.parametrize("moment", ["2027-01-15T07:59:00Z", "2027-01-15T08:59:00+01:00"])
def test_all_before_a_time_are_ended(moment: str, recorded: Path, run: Run) -> None:
    """Everybody's; what was created at that time or later lives. No keys are needed."""
    code, printed = run("end-all", "--before", moment)
    assert (code, printed.startswith("ended          everyone's sessions created before 2027-01-15T0")) == (0, True)
    assert ended(recorded) == [ONE]


def test_the_store_may_be_named_by_a_variable_or_a_file(
    recorded: Path, run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So that a password need not stand on the command line."""
    monkeypatch.setenv("SESSION_STORE", f"sqlite:{recorded}")
    (tmp_path / "store").write_text(f"sqlite:{recorded}\n")
    assert run("end", "--ref", ONE.ref, store="env:SESSION_STORE")[0] == 0
    assert run("end", "--ref", OTHER.ref, store=f"file:{tmp_path / 'store'}")[0] == 0
    assert ended(recorded) == [ONE, OTHER]


@pytest.mark.parametrize(
    "store",
    ["redis://user:a-password-of-the-store@host", "redis://host?password=a-password-of-the-store"],
)
def test_a_password_on_the_command_line_is_refused_and_not_repeated(store: str, run: Run) -> None:
    """Other users of the machine could read it there, and the shell remembers it."""
    code, printed = run("end", "--ref", ONE.ref, store=store)
    assert code == 2
    assert "name env:NAME or file:PATH" in printed
    assert "a-password-of-the-store" not in printed


@pytest.mark.parametrize(
    ("arguments", "store", "remedy"),
    [
        (("end-all", *KEYS), "sqlite:x.db", "name the principal"),
        (("end-all", "--subject", "alice", "--before", "2026-07-28T12:00:00Z"), "sqlite:x.db", "leave out --before"),
        (("end-all", "--before", "yesterday"), "sqlite:x.db", "as in 2026-07-28T12:00:00Z"),
        (("end",), "sqlite:x.db", "--ref"),
        (("list", "--keys", SECRET, "--subject", "alice"), "sqlite:x.db", "env:NAME or file:PATH"),
        (("end", "--ref", "ses_x"), "memory:", "pass the object"),
        (("end", "--ref", "ses_x"), "mysql:x", "does not name a store"),
        (("end", "--ref", "ses_x"), "sqlite:x.db", "an SQLite file that does not exist"),
        (("end", "--ref", "ses_x"), "env:NO_SUCH_VARIABLE", "variable NO_SUCH_VARIABLE is not set"),
        (("end", "--ref", "ses_x"), "file:no/such/file", "--store file:no/such/file: No such file"),
    ],
)
def test_what_cannot_be_carried_out_says_why(arguments: tuple[str, ...], store: str, remedy: str, run: Run) -> None:
    """With the exit code 2, and before a store is made."""
    code, printed = run(*arguments, store=store)
    assert code == 2
    assert remedy in printed
    assert not Path("x.db").exists()


def test_a_moment_ahead_and_a_missing_key_are_refused(recorded: Path, run: Run) -> None:
    assert "in the future" in run("end-all", "--before", "2099-01-01T00:00:00Z")[1]
    assert "needs a time zone" in run("end-all", "--before", "2026-01-01T00:00:00")[1]
    assert "keys= is needed" in run("list", *AS_ALICE)[1]
