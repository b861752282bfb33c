"""`timeline`: the lines that demos print."""

from __future__ import annotations

import io

import example_servers  # noqa: F401  # makes the examples importable
import pytest

from timeline import Timeline


class Terminal(io.StringIO):
    """A stream that claims to be a terminal."""

    def isatty(self) -> bool:
        return True


def written(stream: io.StringIO) -> str:
    """Write every kind of line once, two seconds after the start."""
    timeline = Timeline(stream, clock=iter([10.0, 12.0, 12.0, 12.0]).__next__)
    timeline.title("A title")
    timeline.source("a = 1")
    timeline.event("server", "is up")
    timeline.exchange("server", "A", "read()", "[]")
    timeline.exchange("server", "A", "read()", "refused: -1")
    timeline.end("The end.", good=False)
    timeline.end("The good end.", good=True)
    return stream.getvalue()


PLAIN = """
A title
    a = 1
  2.00 s  server       is up
  2.00 s  server    A  read()                     -> []
  2.00 s  server    A  read()                     -> refused: -1

The end.

The good end.
"""


def test_a_file_gets_plain_text() -> None:
    """A stream that is not a terminal gets no colours."""
    assert written(io.StringIO()) == PLAIN


def test_a_terminal_gets_colours(monkeypatch: pytest.MonkeyPatch) -> None:
    """A refusal and an answer differ in colour."""
    monkeypatch.delenv("NO_COLOR", raising=False)
    text = written(Terminal())
    assert "\x1b[32m[]\x1b[0m" in text
    assert "\x1b[33mrefused: -1\x1b[0m" in text


def test_no_color_is_honoured(monkeypatch: pytest.MonkeyPatch) -> None:
    """A terminal gets no colours where NO_COLOR is set."""
    monkeypatch.setenv("NO_COLOR", "1")
    assert written(Terminal()) == PLAIN
