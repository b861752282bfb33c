"""Where keys come from, when they are read again, and what the error says when they cannot be."""

import logging
import os
import resource
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from signers import ED25519, P256, private_pem, public_pem
from signers import NEW as TWO
from signers import OLD as ONE

from mcp_sessions._errors import ConfigurationError
from mcp_sessions._tokens.keyfile import KeySource, key_source
from mcp_sessions._tokens.keys import KeyRing

NOW = 1_800_000_000.0
EC_PEM = P256.private_bytes(Encoding.PEM, PrivateFormat.TraditionalOpenSSL, NoEncryption()).decode()
ED_PEM, ED_PUBLIC = private_pem(ED25519), public_pem(ED25519)
EC_PARAMETERS = "-----BEGIN EC PARAMETERS-----\nBggqhkjOPQMBBw==\n-----END EC PARAMETERS-----\n"


def kids(ring: KeyRing) -> list[str]:
    return repr(ring).removeprefix("<KeyRing ").removesuffix(">").split(" ")


def kid(secret: str) -> str:
    return KeyRing([secret]).signing.kid


def read(keys: str | bytes | Sequence[str | bytes], **environ: str) -> list[str]:
    with patch.dict(os.environ, environ):
        return kids(key_source(keys)(NOW))


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A file with a key."""
    path = tmp_path / "keys"
    path.write_text(ONE, "utf-8")
    return path


@pytest.fixture
def source(path: Path, caplog: pytest.LogCaptureFixture) -> KeySource:
    caplog.set_level(logging.INFO, "mcp_sessions")
    return key_source(f"file:{path}")


def test_no_keys_make_a_random_ring_and_one_warning(caplog: pytest.LogCaptureFixture) -> None:
    """It is the same ring on every request, and the log says once what it means and what to do."""
    source = key_source(None)
    assert source(NOW).ephemeral
    assert source(NOW + 99) is source(NOW)
    assert [(record.name, record.levelname) for record in caplog.records] == [("mcp_sessions", "WARNING")]
    meaning = "keys=None: using random session keys, for this process only; its sessions end with it. "
    assert caplog.messages == [meaning + 'Set keys="env:NAME" or keys="file:PATH" to share and keep them']


def test_keys_are_a_secret_a_ring_or_a_list_that_mixes_all_kinds_in_order(path: Path) -> None:
    forms: list[Any] = [ONE, ONE.encode(), (ONE.encode(),)]
    assert [read(form) for form in forms] == [[kid(ONE)]] * 3
    ring = KeyRing([ONE])
    assert key_source(ring)(NOW) is ring
    path.write_text(f"{TWO}\n", "utf-8")
    assert read([f"file:{path}", "env:KEYS", ED_PEM], KEYS=ONE) == [kid(TWO), kid(ONE), kid(ED_PEM)]


@pytest.mark.parametrize("keys", [7, {ONE}])
def test_keys_of_another_type_are_refused_with_the_remedy(keys: Any) -> None:
    with pytest.raises(ConfigurationError, match=f"secrets or their location, not {type(keys).__name__}; .*urlsafe"):
        key_source(keys)


@pytest.mark.parametrize(
    ("keys", "place"),
    [
        ("short", "keys[0]"),
        ([ONE, b"short"], "keys[1]"),
        ("env:WEAK", 'keys="env:WEAK"'),
        ([ONE, "env:MORE"], 'keys="env:MORE", secret 2'),
        ("file:{path}", 'keys="file:{path}"'),
    ],
)
def test_a_weak_secret_is_named_by_where_it_is(path: Path, keys: Any, place: str) -> None:
    path.write_text("short\n", "utf-8")
    option = keys.format(path=path) if isinstance(keys, str) else keys
    with pytest.raises(ConfigurationError, match="too short") as refused:
        read(option, WEAK="short", MORE=f"{TWO},short")
    assert str(refused.value).startswith(place.format(path=path) + " is too short")
    assert ('write "env:NAME"' in str(refused.value)) is place.startswith("keys[")


ODD = ONE.replace("u", "\\n")
FORMS = [f" {ONE} ,\n {TWO},", f"# two\n{ONE}\r\n{TWO}\n"]


@pytest.mark.parametrize(
    ("value", "secrets"),
    [
        *((form, [ONE, TWO]) for form in FORMS),
        *((f"{ONE},{pem}", [ONE, ED_PEM]) for pem in (ED_PEM.replace("\n", "\\n"), ED_PEM.strip())),
        (ODD, [ODD]),  # a secret may hold what a PEM key takes for a line end
    ],
)
def test_a_variable_holds_secrets_and_pem_keys_between_commas_or_lines(value: str, secrets: list[str]) -> None:
    assert read("env:KEYS", KEYS=value) == list(map(kid, secrets))


@pytest.mark.parametrize("environ", [{}, {"KEYS": " ,\n# none\n"}])
def test_a_variable_that_is_not_set_or_empty_is_refused(environ: dict[str, str]) -> None:
    with pytest.raises(ConfigurationError, match=r'keys="env:KEYS": the variable KEYS is not set or empty; .*urlsafe'):
        read("env:KEYS", **environ)


def test_a_file_holds_a_secret_a_line_and_pem_blocks(path: Path) -> None:
    """In any order, with comments, a byte order mark, and what openssl writes before a P-256 key."""
    commented = "".join(f"# {line}\n" for line in ED_PEM.splitlines())
    path.write_text(f"\ufeff# keys\n\n{ONE}\n{commented}{EC_PARAMETERS}{EC_PEM}\n  {TWO}\n{ED_PUBLIC}", "utf-8")
    assert read(f"file:{path}") == [kid(ONE), kid(EC_PEM), kid(TWO), kid(ED_PEM)]


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        (None, "No such file"),
        (b"# later\n", "holds no secret"),
        (b"\xff\xfe", "UTF-8"),
        (b"short\n", "too short"),
        (ED_PEM.encode()[:-9], "openssl genpkey"),
    ],
)
def test_a_file_that_cannot_be_used_is_refused_at_start(path: Path, content: bytes | None, complaint: str) -> None:
    path.unlink()
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(ConfigurationError, match=complaint):
        key_source(f"file:{path}")
    for impossible in ("", "a\x00b"):
        with pytest.raises(ConfigurationError):
            key_source(f"file:{impossible}")


def test_a_file_of_equal_size_and_time_is_read_again_where_it_was_replaced_or_may_be_read_at_last(
    path: Path, source: KeySource, caplog: pytest.LogCaptureFixture
) -> None:
    other = path.with_name("other")
    other.write_text(TWO, "utf-8")
    os.utime(other, ns=(path.stat().st_atime_ns, path.stat().st_mtime_ns))
    other.rename(path)
    assert kids(source(NOW)) == [kid(TWO)]
    written = path.stat().st_ctime_ns
    while path.stat().st_ctime_ns == written:  # a file system's clock may be coarse
        path.chmod(0o400)
    assert kids(source(NOW + 1)) == [kid(TWO)]
    assert [record.levelname for record in caplog.records] == ["INFO", "INFO"]


def test_the_file_is_looked_at_once_a_second_at_most(path: Path, source: KeySource) -> None:
    """A request costs a comparison, and a clock that was set back does not stop the looking."""
    assert kids(source(NOW)) == [kid(ONE)]
    path.write_text(f"{TWO}\n{ONE}", "utf-8")
    assert kids(source(NOW + 0.999)) == [kid(ONE)]
    assert kids(source(NOW + 1)) == [kid(TWO), kid(ONE)]
    path.write_text(TWO, "utf-8")
    assert kids(source(NOW - 3600)) == [kid(TWO)]


@pytest.mark.parametrize("broken", [ED_PEM[:60], "", f"{TWO}\n{TWO}", None])
def test_a_broken_change_keeps_the_keys_and_is_logged_once(
    path: Path, source: KeySource, broken: str | None, caplog: pytest.LogCaptureFixture
) -> None:
    """Sessions go on; the log names the trouble and no part of the file; the next good file is taken."""
    ring = source(NOW)
    path.unlink()
    if broken is not None:
        path.write_text(broken, "utf-8")
    for later in range(1, 9):
        assert source(NOW + later) is ring
    assert [record.levelname for record in caplog.records] == ["ERROR"]
    assert caplog.messages[0].startswith("key file changed but cannot be used; keeping the previous keys: ")
    assert not broken or broken not in caplog.text.replace("too short", "")
    path.write_text(f"{TWO}\n{ONE}\n", "utf-8")
    assert kids(source(NOW + 10)) == [kid(TWO), kid(ONE)]
    assert [record.levelname for record in caplog.records] == ["ERROR", "INFO"]
    assert caplog.messages[1] == f"key file changed: now using {KeyRing([TWO, ONE])!r}"
    assert ONE not in caplog.text
    assert TWO not in caplog.text


def test_a_reading_that_failed_is_tried_again_while_the_file_stays_the_same(
    path: Path, source: KeySource, caplog: pytest.LogCaptureFixture
) -> None:
    """Each trouble is logged once, and once again when it comes back after a good reading."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    for start, secret in ((0, TWO), (100, ONE)):
        path.write_text(f"{secret}\n# {start}\n", "utf-8")
        resource.setrlimit(resource.RLIMIT_NOFILE, (0, hard))  # it can be looked at, not opened
        try:
            before = [kids(source(NOW + start + later)) for later in range(1, 5)]
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        assert kids(source(NOW + start + 4.9)) == before[0] != [kid(secret)]
        assert kids(source(NOW + start + 5)) == [kid(secret)]
        ring = source(NOW + start + 6)
        assert source(NOW + start + 9) is ring
    assert caplog.text.count("Too many open files") == 2


def test_two_troubles_are_two_lines(path: Path, source: KeySource, caplog: pytest.LogCaptureFixture) -> None:
    for later, broken in enumerate(["", "short", "", "short"]):
        path.write_text(broken, "utf-8")
        source(NOW + later)
    assert [message.count("holds no secret") for message in caplog.messages] == [1, 0]
