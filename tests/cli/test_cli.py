"""The command line: what it does and prints, what it never prints, and its exit codes."""

import io
import itertools
import runpy
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import anyio
import msgspec
import pytest
from clients import SECRET
from environments import INSTALLED
from sources import claims

from mcp_sessions import KeyRing, Principal
from mcp_sessions import _cli as cli
from mcp_sessions._tokens import seal
from mcp_sessions._tokens.jwt import Tokens
from mcp_sessions._tokens.keys import base64url
from mcp_sessions.stores import Claims, Record, SessionStatus, SQLiteStore
from mcp_sessions.testing._contract import statuses_in

NOW = 1_800_000_000  # 2027-01-15T08:00:00Z
RING = KeyRing([SECRET])
CLAIMS = claims(jti="A" * 22)
ALICE = Principal(client_id="web", issuer="https://id.example", subject="alice")
PASSWORD = "a-password-of-the-store"
KEYS = ("--keys", "env:SESSION_KEYS")
VERIFY = ("verify", *KEYS)
AS_ALICE = ("--client-id", "web", "--issuer", "https://id.example", "--subject", "alice")
Run = Callable[..., tuple[int, str]]


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    """Run one command beside the servers' store, on a clock that moves at each look; its exit code and what it prints.

    `given` is its standard input.
    """
    monkeypatch.setenv("SESSION_KEYS", SECRET)
    monkeypatch.chdir(tmp_path)

    def run(*words: str, given: str | bytes = "", now: int = NOW, store: str = "sqlite:sessions.db") -> tuple[int, str]:
        typed = given.encode() if isinstance(given, str) else given
        beside = ("--store", store) if {"list", "end", "end-all"} & {*words[:1]} else ()
        with monkeypatch.context() as patch:
            patch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(typed), encoding="latin-1"))
            patch.setattr("time.time", itertools.count(now).__next__)
            code = cli.main([*words, *beside])
        printed = capsys.readouterr()
        return code, printed.out + printed.err

    return run


def token(principal: Principal | None = None, ring: KeyRing = RING) -> str:
    claims = msgspec.structs.replace(CLAIMS, subject=ring.signing.subject(principal))
    return Tokens(issuer="mcp-sessions", audience="mcp-sessions").mint(ring, claims)


# --- keys and session ids ------------------------------------------------------------------------


@pytest.mark.parametrize("options", [(), ("--algorithm", "EdDSA"), ("--algorithm", "ES256")])
def test_a_new_key_can_be_used_as_it_is_printed(options: tuple[str, ...], run: Run, tmp_path: Path) -> None:
    """Redirected to a file, it is a key file, one of several; and it is another one each time."""
    (code, key), (_, other) = run("keygen", *options), run("keygen", *options)
    assert (code, key != other) == (0, True)
    assert KeyRing([key]).signing.algorithm == (options[1] if options else "HS256")
    file, held = tmp_path / "keys", tmp_path / "token"
    file.write_text(key)
    held.write_text(token(ring=KeyRing([key])) + "\n")
    assert run(*VERIFY, "--keys", f"file:{file}", "--file", str(held))[0] == 0


def test_inspect_warns_first_that_nothing_was_verified(run: Run) -> None:
    """A forged signature makes no difference, and times are written out. A state token shows its envelope alone."""
    forged = token()[:-8] + "AAAAAAAA"
    code, printed = run("inspect", given=forged + "\n")
    assert code == 0
    ref = next(line for line in printed.splitlines() if line.startswith("ref "))
    assert ref in run(*VERIFY, given=token())[1].splitlines()
    assert printed.startswith("NOT VERIFIED: anyone could have written what follows.")
    assert "header alg     HS256" in printed
    assert f"header kid     {RING.signing.kid}" in printed
    assert "claim exp      1800003600 (2027-01-15T09:00:00+00:00)" in printed
    assert forged.rsplit(".", 1)[1] not in printed
    assert run(*VERIFY, given=forged) == (1, "refused        token_signature\n")
    sealed = seal.seal(RING.signing, b'{"a":1}', CLAIMS, last_seen=NOW)
    code, printed = run("inspect", given=sealed)
    assert (code, printed.startswith("NOT VERIFIED")) == (0, True)
    assert f"kid            {RING.signing.kid}\nsealed bytes   43\n" in printed
    assert sealed.rsplit(".", 1)[1] not in printed


def envelope(claims: str, *, kind: str = "mcp-session+jwt") -> str:
    header = f'{{"alg":"none","typ":"{kind}"}}'
    return f"{base64url(header.encode())}.{base64url(claims.encode())}.AAAA"


NEITHER = ["", "v1.k.AAAA", "v2.kkkkkkkk.AAAA", "v1.kkkkkkkk", *map(envelope, ("[]", "{", "[" * 100_000))]


@pytest.mark.parametrize("text", [*NEITHER, envelope("{}", kind="JWT")])
def test_what_is_neither_is_refused_and_not_repeated(text: str, run: Run) -> None:
    refused = "refused        neither a session id nor a state token of mcp-sessions\n"
    assert run("inspect", given=text) == (1, refused)


def test_what_a_stranger_wrote_cannot_steer_the_terminal(run: Run) -> None:
    """Control characters are escaped, in names and in values; a time that is none is shown as it is."""
    written = '{"iat":"\\u001b[2J","exp":-1,"\\u001b]0;x\\u0007":["\\u001b"],"cli":"\\u202e\u00e9"}'
    code, printed = run("inspect", given=envelope(written))
    assert code == 0
    assert printed.isascii()
    assert printed.replace("\n", "").isprintable()
    assert "claim exp      -1\n" in printed


@pytest.mark.parametrize(
    ("principal", "now", "owner"),
    [(Principal(subject="alice"), NOW - 60, "a principal (hash "), (None, NOW + 3599, "anonymous\n")],
)
def test_a_good_session_id_is_accepted(principal: Principal | None, now: int, owner: str, run: Run) -> None:
    """It is printed what was checked, what was not, and the claims; the token itself is not repeated."""
    session_id = token(principal)
    code, printed = run(*VERIFY, given=session_id, now=now)
    assert code == 0
    assert printed.startswith("accepted       signature, form, issuer, audience, times\nnot checked    whose it is, ")
    assert f"owner          {owner}" in printed
    assert not any(part in printed for part in session_id.split("."))


@pytest.mark.parametrize(
    ("options", "now", "reason"),
    [
        (("--audience", "other"), NOW, "token_audience"),
        (("--issuer", "other"), NOW, "token_issuer"),
        ((), NOW + 3600, "expired"),
        ((), NOW - 61, "token_from_the_future"),
    ],
)
def test_a_bad_one_is_refused_with_the_reason(options: tuple[str, ...], now: int, reason: str, run: Run) -> None:
    """The operator, who has the keys, may see what clients never do."""
    assert run(*VERIFY, *options, given=token(), now=now) == (1, f"refused        {reason}\n")


# --- the sessions of a store ---------------------------------------------------------------------


def held(jti: str, principal: Principal | None, *, at: int = NOW - 60) -> Claims:
    return claims(jti=jti, issued_at=at, expires_at=NOW + 3600, subject=RING.signing.subject(principal))


ONE, OTHER, ANONYMOUS = held("a", ALICE, at=NOW - 120), held("b", ALICE), held("c", None)


@pytest.fixture
def recorded(tmp_path: Path) -> Path:
    """A store in which a server has recorded two sessions of a principal and an anonymous one."""
    path = tmp_path / "sessions.db"

    async def record() -> None:
        store = SQLiteStore(path, clock=lambda: NOW - 300)  # it vouches for no session that is older than itself
        for session in (ONE, OTHER, ANONYMOUS):
            hashes = None if session.subject is None else RING.signing.component_hashes(ALICE)
            await store.register(Record.of(session, hashes))
        await store.close()

    anyio.run(record)
    return path


def ended(path: Path) -> list[Claims]:
    """Which of the three a server refuses now."""

    async def judge() -> list[Claims]:
        store = SQLiteStore(path, clock=lambda: NOW)
        refused = [one for one in (ONE, OTHER, ANONYMOUS) if await statuses_in(store, [one]) == [SessionStatus.ENDED]]
        await store.close()
        return refused

    return anyio.run(judge)


def test_sessions_are_listed(recorded: Path, run: Run) -> None:
    """One a line, oldest first, by their public names: those of a principal, or all, which alone takes no keys."""
    code, printed = run("list", *KEYS, *AS_ALICE)
    times = "seen 2027-01-15T07:58:00+00:00  expires 2027-01-15T09:00:00+00:00"
    assert (code, printed.splitlines()[0]) == (0, f"{ONE.ref}  created 2027-01-15T07:58:00+00:00  {times}")
    assert [line.split()[0] for line in printed.splitlines()] == [ONE.ref, OTHER.ref]
    assert "keys= is needed" in run("list", *AS_ALICE)[1]
    everyone = [line.split()[0] for line in run("list")[1].splitlines()]
    assert everyone == [ONE.ref, *sorted([OTHER.ref, ANONYMOUS.ref])]


@pytest.mark.parametrize(
    ("whom", "fits"),
    [
        (AS_ALICE, True),
        (("--subject", "alice"), True),
        (("--subject", "alice", "--issuer", "https://id.example"), True),
        (("--client-id", "alice"), False),
        (("--client-id", "cli", "--subject", "alice"), False),
        (("--client-id", "web", "--issuer", "https://id.example", "--subject", "bob"), False),
        ((*AS_ALICE, "--audience", "other"), False),
    ],
)
def test_parts_left_out_of_a_principal_may_be_any(whom: tuple[str, ...], fits: bool, recorded: Path, run: Run) -> None:
    """A subject alone is the user with every client; what finds no record says so, and has ended the rest."""
    assert run("list", "--count", *KEYS, *whom) == (0, f"sessions       {2 * fits}\n")
    code, printed = run("end-all", *KEYS, *whom)
    if "--subject" not in whom:
        assert (code, "this is a client, which many users may share" in printed) == (2, True)
        return
    assert code == 0
    assert "the principal's sessions created before 2027-01-15T08:00:" in printed
    assert printed.startswith("ended ") is fits
    assert f"recorded       {2 * fits}\n" in printed
    assert ("no session of this principal is recorded" in printed) is not fits
    assert ended(recorded) == [ONE, OTHER] * fits
    assert run("list", "--count", *KEYS, *whom)[1] == "sessions       0\n"


def test_a_user_without_a_name_ends_sessions_too(recorded: Path, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """As in a container whose uid is in no file."""

    def unknown() -> str:
        raise KeyError("getpwuid(): uid not found: 10001")

    monkeypatch.setattr("getpass.getuser", unknown)
    assert run("end", "--ref", ONE.ref)[0] == 0


def test_one_session_is_ended(recorded: Path, run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No keys are needed, and a store with a password is named: by a variable or a file."""
    monkeypatch.setenv("SESSION_STORE", f"sqlite:{recorded}")
    (tmp_path / "store").write_text(f"sqlite:{recorded}\n")
    assert run("end", "--ref", ONE.ref, store="env:SESSION_STORE") == (0, f"ended          {ONE.ref}\n")
    assert ended(recorded) == [ONE]
    code, printed = run("end", "--ref", ONE.ref)
    assert (code, printed.partition(";")[0]) == (1, "refused        no live session of this name is recorded")
    assert run("end", "--ref", OTHER.ref, "--reason", "support", store=f"file:{tmp_path / 'store'}")[0] == 0
    assert ended(recorded) == [ONE, OTHER]


@pytest.mark.parametrize("moment", ["2027-01-15T07:59:00Z", "2027-01-15T08:59:00+01:00"])
def test_all_before_a_time_are_ended(moment: str, recorded: Path, run: Run) -> None:
    """Everybody's; what was created at that time or later lives. No keys are needed."""
    assert "in the future" in run("end-all", "--before", "2099-01-01T00:00:00Z")[1]
    assert "needs a time zone" in run("end-all", "--before", moment[:19])[1]
    code, printed = run("end-all", "--before", moment)
    assert (code, printed.startswith("ended          everyone's sessions created before 2027-01-15T0")) == (0, True)
    assert ended(recorded) == [ONE]


def test_a_store_that_does_not_answer_has_an_exit_code_of_its_own(run: Run, tmp_path: Path) -> None:
    """The outcome is unknown, so a script does not take it for "no": here another program holds the file's lock."""
    with closing(sqlite3.connect(tmp_path / "sessions.db", isolation_level=None)) as other:
        (tmp_path / "sessions.db").chmod(0o600)
        other.execute("BEGIN EXCLUSIVE")
        code, printed = run("end", "--ref", "ses_x")
    assert (code, printed.partition(" (")[0]) == (3, "Session store unavailable")
    assert printed.endswith("): the change may or may not have been made; try again\n")


def test_file_of_no_database_says_what_to_do(run: Run, tmp_path: Path) -> None:
    (tmp_path / "sessions.db").write_bytes(b"no database " * 1000)
    code, printed = run("end", "--ref", "ses_x")
    assert code == 2
    assert "it is no SQLite database, or damaged: move it, -wal and -shm away together" in printed


# --- usage ---------------------------------------------------------------------------------------

END = ("end", "--ref", "ses_x")


@pytest.mark.parametrize(
    ("arguments", "store", "remedy"),
    [
        ((), "", "required"),
        (("keygen", "--algorithm", "none"), "", "invalid choice"),
        (("verify",), "", "--keys"),
        (("inspect", "--file", "no/such/file"), "", "--file no/such/file: No such file"),
        (("verify", "--keys", "env:NO_SUCH_VARIABLE"), "", "NO_SUCH_VARIABLE is not set"),
        (("verify", "--keys", "file:no/such/file"), "", "No such file"),
        # Other users of the machine could read a secret there, and the shell remembers it.
        (("verify", "--keys", SECRET), "", "env:NAME or file:PATH"),
        (("list", "--keys", SECRET, "--subject", "alice"), "sqlite:x.db", "env:NAME or file:PATH"),
        (END, f"redis://user:{PASSWORD}@host", "name env:NAME or file:PATH"),
        (END, f"redis://host?password={PASSWORD}", "name env:NAME or file:PATH"),
        (END, "memory:", "pass the object"),
        (END, "mysql:x", "does not name a store"),
        (END, "sqlite:x.db", "an SQLite file that does not exist"),
        (END, "env:NO_SUCH_VARIABLE", "variable NO_SUCH_VARIABLE is not set"),
        (END, "file:no/such/file", "--store file:no/such/file: No such file"),
        (("end",), "sqlite:x.db", "--ref"),
        (("end-all", *KEYS), "sqlite:x.db", "name the principal"),
        (("end-all", "--subject", "alice", "--before", "2026-07-28T12:00:00Z"), "sqlite:x.db", "leave out --before"),
        (("end-all", "--before", "yesterday"), "sqlite:x.db", "as in 2026-07-28T12:00:00Z"),
    ],
)
def test_what_cannot_be_carried_out_says_why(arguments: tuple[str, ...], store: str, remedy: str, run: Run) -> None:
    """With the exit code 2, before a store is made, and without a secret that was given."""
    code, printed = run(*arguments, store=store)
    assert (code, remedy in printed) == (2, True)
    assert SECRET not in printed
    assert PASSWORD not in printed
    assert not Path("x.db").exists()


def test_other_bytes_are_not_read_as_text(run: Run, tmp_path: Path) -> None:
    """Of a file or of standard input, whatever encoding the terminal has; and no file is read without end."""
    (tmp_path / "token").write_bytes(b"\xff\xfe")
    printed = f"--file {tmp_path / 'token'}: not a file of UTF-8 text\n"
    assert run("inspect", "--file", str(tmp_path / "token")) == (2, printed)
    assert run(*VERIFY, given=b"\xff\xfe") == (2, "standard input: not a file of UTF-8 text\n")
    assert run("inspect", "--file", "/dev/zero")[0] == 1


def test_help_and_the_version_are_no_errors(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The package is the command as well: `python -m mcp_sessions`."""
    assert cli.main(["--help"]) == 0
    assert "keygen | inspect | verify | list | end | end-all" in capsys.readouterr().out
    monkeypatch.setattr("sys.argv", ["mcp-sessions", "--version"])
    with pytest.raises(SystemExit) as ended:
        runpy.run_module("mcp_sessions", run_name="__main__")
    assert (ended.value.code, capsys.readouterr().out) == (0, f"mcp-sessions {INSTALLED['mcp-sessions']}\n")
