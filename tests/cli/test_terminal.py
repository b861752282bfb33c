"""What the commands read and print: text from files and standard input, and nothing that steers a terminal."""

from __future__ import annotations

import argparse
import io
from pathlib import Path

import pytest

from mcp_sessions.cli import terminal
from mcp_sessions.errors import ConfigurationError


@pytest.mark.parametrize("keys", ["env:NAME", "file:/etc/keys"])
def test_keys_are_named(keys: str) -> None:
    """By a variable or a file."""
    assert terminal.named(keys) == keys


def test_keys_are_not_given() -> None:
    """What could be a key is refused, and not repeated."""
    with pytest.raises(argparse.ArgumentTypeError) as caught:
        terminal.named("a-secret-on-the-command-line")
    assert "a-secret" not in str(caught.value)


@pytest.fixture
def typed(monkeypatch: pytest.MonkeyPatch) -> io.BytesIO:
    """What stands on standard input, whose own encoding is another."""
    typed = io.BytesIO()
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(typed, encoding="latin-1"))
    return typed


def test_text_is_read_from_a_file_or_from_standard_input(typed: io.BytesIO, tmp_path: Path) -> None:
    """As UTF-8, less the white space around it."""
    typed.write(" \u00e9\n".encode())
    typed.seek(0)
    (tmp_path / "a").write_text("\u00e8\n", "utf-8")
    assert terminal.text(None, option="--file ") == "\u00e9"
    assert terminal.text(str(tmp_path / "a"), option="--file ") == "\u00e8"


def test_a_file_that_never_ends_is_not_read_to_its_end() -> None:
    """No token and no address is longer."""
    assert len(terminal.text("/dev/zero", option="--file ")) == 65_536


def test_what_cannot_be_read_is_named_with_its_option(typed: io.BytesIO, tmp_path: Path) -> None:
    """And nothing of it is shown."""
    typed.write(b"\xff\xfe")
    typed.seek(0)
    with pytest.raises(ConfigurationError, match=r"^standard input: not a file of UTF-8 text$"):
        terminal.text(None, option="--file ")
    with pytest.raises(ConfigurationError, match=r"^--store file:.*: Is a directory$"):
        terminal.text(str(tmp_path), option="--store file:")


def test_names_and_values_are_shown_in_plain_ascii(capsys: pytest.CaptureFixture[str]) -> None:
    """Control characters are escaped, in both; other values are JSON."""
    terminal.show({"name": "\x1b[2J\u00e9", "\x07": [None, "\x1b"]})
    assert capsys.readouterr().out == 'name           \\u001b[2J\\u00e9\n\\u0007         [null, "\\u001b"]\n'


def test_a_refusal_is_printed_and_has_its_exit_code(capsys: pytest.CaptureFixture[str]) -> None:
    """In the same columns."""
    assert terminal.refuse("expired") == 1
    assert capsys.readouterr().out == "refused        expired\n"
