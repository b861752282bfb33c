"""The command line: what it prints, what it never prints, and its exit codes."""

from __future__ import annotations

import io
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

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

NOW = 1_800_000_000
RING = KeyRing([SECRET])
CLAIMS = claims(jti="A" * 22)
Run = Callable[..., tuple[int, str]]


def token(principal: Principal | None = None, *, audience: str = "mcp-sessions", ring: KeyRing = RING) -> str:
    claims = msgspec.structs.replace(CLAIMS, audience=audience, subject=ring.signing.subject(principal))
    return Tokens(issuer="mcp-sessions", audience=audience).mint(ring, claims)


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    """Run one command on standard input at a fixed time; its exit code and all that it prints."""
    monkeypatch.setenv("SESSION_KEYS", SECRET)

    def run(*arguments: str, given: str | bytes = "", now: float = NOW) -> tuple[int, str]:
        typed = given.encode() if isinstance(given, str) else given
        monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(typed), encoding="latin-1"))
        monkeypatch.setattr("time.time", lambda: now)
        code = cli.main(arguments)
        printed = capsys.readouterr()
        return code, printed.out + printed.err

    return run


VERIFY = ("verify", "--keys", "env:SESSION_KEYS")


# --- keygen --------------------------------------------------------------------------------------


@pytest.mark.parametrize("algorithm", ["HS256", "EdDSA", "ES256"])
def test_a_new_key_can_be_used_as_it_is_printed(algorithm: str, run: Run, tmp_path: Path) -> None:
    """Redirected to a file, it is a key file; and it is another one each time."""
    (code, key), (_, other) = run("keygen", "--algorithm", algorithm), run("keygen", "--algorithm", algorithm)
    assert (code, key != other) == (0, True)
    assert KeyRing([key]).signing.algorithm == algorithm
    file = tmp_path / "keys"
    file.write_text(key)
    session_id = token(ring=KeyRing([key]))
    assert run("verify", "--keys", f"file:{file}", given=session_id)[0] == 0


def test_a_secret_is_the_default(run: Run) -> None:
    _, key = run("keygen")
    assert KeyRing([key]).signing.algorithm == "HS256"
    assert len(key.strip()) == 43


# --- inspect -------------------------------------------------------------------------------------


def test_inspect_warns_first_that_nothing_was_verified(run: Run) -> None:
    """A forged signature makes no difference; header and claims are kept apart, and times are written out."""
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


def test_a_state_token_shows_its_envelope_alone(run: Run) -> None:
    sealed = seal.seal(RING.signing, b'{"a":1}', CLAIMS, last_seen=NOW)
    code, printed = run("inspect", given=sealed)
    assert code == 0
    assert printed.startswith("NOT VERIFIED")
    assert f"kid            {RING.signing.kid}" in printed
    assert "sealed bytes   43" in printed
    assert sealed.rsplit(".", 1)[1] not in printed


def envelope(header: str, claims: str) -> str:
    return f"{base64url(header.encode())}.{base64url(claims.encode())}.AAAA"


OURS = '{"alg":"none","typ":"mcp-session+jwt"}'


@pytest.mark.parametrize(
    "text",
    [
        *("", "x", "v1.kkkkkkkk.", "v1.k.AAAA", "v2.kkkkkkkk.AAAA", "v1.kkkkkkkk", "a.b.c"),
        envelope(OURS, "[]"),
        envelope(OURS, "{"),
        envelope(OURS, "[" * 100_000),
        envelope('{"typ":"JWT"}', "{}"),
    ],
)
def test_what_is_neither_is_refused(text: str, run: Run) -> None:
    """With the exit code 1, and it is not repeated."""
    assert run("inspect", given=text) == (
        1,
        "refused        neither a session id nor a state token of mcp-sessions\n",
    )


def test_what_a_stranger_wrote_cannot_steer_the_terminal(run: Run) -> None:
    """Control characters are escaped, in names and in values; a time that is none is shown as it is."""
    written = '{"iat":"\\u001b[2J","exp":-1,"\\u001b]0;x\\u0007":["\\u001b"],"cli":"\\u202e\u00e9"}'
    code, printed = run("inspect", given=envelope(OURS, written))
    assert code == 0
    assert printed.isascii()
    assert printed.replace("\n", "").isprintable()
    assert "claim exp      -1\n" in printed


# --- verify --------------------------------------------------------------------------------------


def test_a_good_session_id_is_accepted(run: Run) -> None:
    """It is printed what was checked, what was not, and the claims; the token itself is not repeated."""
    session_id = token(Principal(subject="alice"))
    code, printed = run(*VERIFY, given=session_id)
    assert code == 0
    assert "accepted       signature, form, issuer, audience, times\n" in printed
    assert "not checked    whose it is, whether it ended\n" in printed
    assert "owner          a principal (hash " in printed
    assert not any(part in printed for part in session_id.split("."))


def test_an_anonymous_session_id_has_no_owner(run: Run) -> None:
    assert "owner          anonymous" in run(*VERIFY, given=token())[1]


@pytest.mark.parametrize(
    ("arguments", "given", "now", "reason"),
    [
        ((), token()[:-8] + "AAAAAAAA", NOW, "token_signature"),
        ((), "a" * 3000, NOW, "token_size"),
        ((), "", NOW, "token_shape"),
        ((), token(audience="other"), NOW, "token_audience"),
        (("--audience", "other"), token(), NOW, "token_audience"),
        (("--issuer", "other"), token(), NOW, "token_issuer"),
        ((), token(ring=KeyRing.random()), NOW, "token_key_unknown"),
        ((), token(), NOW + 3600, "expired"),
        ((), token(), NOW - 61, "token_from_the_future"),
    ],
)
def test_a_bad_one_is_refused_with_the_reason(
    arguments: tuple[str, ...], given: str, now: float, reason: str, run: Run
) -> None:
    """The operator, who has the keys, may see what clients never do."""
    assert run(*VERIFY, *arguments, given=given, now=now) == (1, f"refused        {reason}\n")


@pytest.mark.parametrize("now", [NOW - 60, NOW + 3599])
def test_times_are_judged_as_the_middleware_does(now: float, run: Run) -> None:
    assert run(*VERIFY, given=token(), now=now)[0] == 0


def test_a_file_may_hold_the_token_and_several_places_the_keys(run: Run, tmp_path: Path) -> None:
    held, keys = tmp_path / "token", tmp_path / "keys"
    held.write_text(token() + "\n")
    keys.write_text("another secret of the tests, at least 32 bytes\n")
    assert run("verify", "--keys", f"file:{keys}", "--keys", "env:SESSION_KEYS", "--file", str(held))[0] == 0


# --- usage ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "remedy"),
    [
        ((), "required"),
        (("sign",), "invalid choice"),
        (("keygen", "--algorithm", "none"), "invalid choice"),
        (("verify",), "--keys"),
        (("inspect", "--file", "no/such/file"), "--file no/such/file: No such file"),
        (("inspect", "--file", "/"), "--file /: Is a directory"),
        (("verify", "--keys", "env:NO_SUCH_VARIABLE"), "NO_SUCH_VARIABLE is not set"),
        (("verify", "--keys", "file:no/such/file"), "No such file"),
    ],
)
def test_what_cannot_be_carried_out_says_why(arguments: tuple[str, ...], remedy: str, run: Run) -> None:
    code, printed = run(*arguments)
    assert code == 2
    assert remedy in printed


def test_a_file_of_other_bytes_is_not_read_as_text(run: Run, tmp_path: Path) -> None:
    (tmp_path / "token").write_bytes(b"\xff\xfe")
    code, printed = run("inspect", "--file", str(tmp_path / "token"))
    assert (code, printed) == (2, f"--file {tmp_path / 'token'}: not a file of UTF-8 text\n")


def test_a_file_that_never_ends_is_not_read_to_its_end(run: Run) -> None:
    """No token is longer than 64 KiB."""
    assert run("inspect", "--file", "/dev/zero")[0] == 1


@pytest.mark.parametrize("command", [("inspect",), VERIFY])
def test_other_bytes_on_standard_input_are_not_read_as_text(command: tuple[str, ...], run: Run) -> None:
    """Like a file of them, whatever encoding the terminal has."""
    assert run(*command, given=b"\xff\xfe") == (2, "standard input: not a file of UTF-8 text\n")


def test_a_secret_on_the_command_line_is_refused_and_not_repeated(run: Run) -> None:
    """Other users of the machine could read it there, and the shell remembers it."""
    code, printed = run("verify", "--keys", SECRET, given=token())
    assert code == 2
    assert "env:NAME or file:PATH" in printed
    assert SECRET not in printed


def test_a_store_that_does_not_answer_has_an_exit_code_of_its_own(run: Run, tmp_path: Path) -> None:
    """The outcome is unknown, so a script does not take it for "no": here the file is damaged."""
    (tmp_path / "sessions.db").write_bytes(b"no database " * 1000)
    code, printed = run("end", "--ref", "ses_x", "--store", f"sqlite:{tmp_path / 'sessions.db'}")
    assert code == 3
    assert printed.startswith("Session store unavailable (")
    assert printed.endswith("): the change may or may not have been made; try again\n")


def test_help_is_no_error(run: Run) -> None:
    code, printed = run("--help")
    assert code == 0
    assert "keygen | inspect | verify | list | end | end-all" in printed


def test_the_version_is_that_of_the_package(run: Run) -> None:
    """It is a line that a bug report can hold."""
    assert run("--version") == (0, f"mcp-sessions {INSTALLED['mcp-sessions']}\n")


def test_the_package_is_the_command() -> None:
    """`python -m mcp_sessions`, in a process of its own."""
    ended = subprocess.run(
        [sys.executable, "-m", "mcp_sessions", "inspect"], input=token(), capture_output=True, text=True, check=False
    )
    assert (ended.returncode, ended.stderr) == (0, "")
    assert ended.stdout.startswith("NOT VERIFIED")
