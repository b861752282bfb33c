"""`mcp-sessions tail` shows what a middleware sends, as a tree, in colours where a terminal shows them."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from mcp_sessions import cli
from mcp_sessions.cli.tail import Tree, event_in

CREATED = {"event": "created", "ref": "ses_a", "expires_at": 9, "parent": None}
CALL = {"event": "call", "ref": "ses_a", "name": "tools/call buy", "seconds": 0.0123, "error": None, "reason": None}
REFUSED = {"event": "refused", "ref": None, "reason": "parse_error"}
ENDED = {"event": "ended", "ref": "ses_a", "reason": "deleted", "seconds": 90, "trace": None}
EVENTS: list[dict[str, Any]] = [
    CREATED,
    CALL,
    {**CALL, "ref": None, "name": "ping\x1b[2J", "error": "-32043", "reason": "token_signature"},
    {**CREATED, "ref": "ses_b", "parent": "ses_a"},
    {**CALL, "ref": "ses_b", "error": "tool_error"},
    REFUSED,
    ENDED,
]
SHOWN = """\
ses_a
  created
  tools/call buy  12.3 ms
(no session)
  ping\\u001b[2J  12.3 ms  -32043 (token_signature)
ses_b
  created as a fork of ses_a
  tools/call buy  12.3 ms  tool_error
(no session)
  refused: parse_error
ses_a
  ended: deleted, after 90 s
"""
SECONDS = 30  # after which a test that hangs fails


def shown(*events: dict[str, Any], colours: bool = False) -> str:
    """What is written of events."""
    tree = Tree(colours=colours)
    found = [event_in(json.dumps(event).encode()) for event in events]
    return "".join(tree.lines(event) for event in found if event is not None)


def test_a_session_stands_above_what_happens_in_it() -> None:
    """Once, until another one's turn comes; what a client wrote cannot steer the terminal."""
    assert shown(*EVENTS) == SHOWN


def test_colours_change_no_word() -> None:
    coloured = shown(*EVENTS, colours=True)
    for code in ("\x1b[31m", "\x1b[32m", "\x1b[2m", "\x1b[1m"):
        assert code in coloured
        coloured = coloured.replace(code, "")
    assert coloured.replace("\x1b[0m", "") == SHOWN


@pytest.mark.parametrize(
    ("event", "member"),
    [(CREATED, "ref"), (CREATED, "parent"), (CALL, "ref"), (CALL, "name"), (CALL, "error"), (REFUSED, "reason")],
)
def test_no_text_in_an_event_steers_the_terminal(event: dict[str, Any], member: str) -> None:
    lines = shown({**event, member: "a\x1b[2J\u2713"})
    assert "a\\u001b[2J\\u2713" in lines
    assert lines.replace("\n", "").isprintable()


STRANGE: list[Any] = [
    *([], "created", 7, None, {}, {"event": []}, {"event": "other"}, {"event": "created"}),
    *({**CREATED, "ref": None}, {**CREATED, "parent": 7}, {**CALL, "seconds": "long"}, {**CALL, "error": []}),
]
TIMELESS = [
    json.dumps({**CALL, "seconds": "?"}).replace('"?"', no).encode() for no in ("1e999", "NaN", "1" + "0" * 400)
]
DATAGRAMS = [b"", b"\xff", b"{", b"[" * 60_000, *TIMELESS, *(json.dumps(event).encode() for event in STRANGE)]


@pytest.mark.parametrize("datagram", DATAGRAMS, ids=range(len(DATAGRAMS)))
def test_what_is_no_event_is_passed_over(datagram: bytes) -> None:
    """No JSON, no object, no event that is known, or none with its members."""
    assert event_in(datagram) is None


@pytest.mark.parametrize("seconds", [0, 90, 10**18, 1e308, -1])
def test_any_number_of_seconds_can_be_shown(seconds: float) -> None:
    for event in (CALL, ENDED):
        assert shown({**event, "seconds": seconds}).count("\n") == 2


def send(path: Path, event: dict[str, Any]) -> None:
    """Send an event, as soon as the socket is there."""
    until = time.monotonic() + SECONDS
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
        while sender.connect_ex(str(path)):
            assert time.monotonic() < until
            time.sleep(0.01)
        sender.send(json.dumps(event).encode())


@contextmanager
def tailing(path: Path, stdout: int) -> Iterator[subprocess.Popen[str]]:
    """The command, for as long as the block lasts. It hears interrupts, as no child of a background job does.

    Args:
        path: Its socket.
        stdout: What it writes to.
    """
    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # what is ignored here stays so in a new program
    command = [sys.executable, "-m", "mcp_sessions", "tail", str(path)]
    process = subprocess.Popen(command, stdout=stdout, stderr=subprocess.PIPE, text=True)
    signal.signal(signal.SIGINT, before or signal.SIG_DFL)
    with process:
        try:
            yield process
        finally:
            process.kill()


def test_the_command_listens_until_it_is_interrupted(tmp_path: Path) -> None:
    """On a socket that it makes, over one that an earlier run left, and takes away again; strange words end nothing.

    It says at once what it waits for, beside what it shows.
    """
    path = tmp_path / "tail"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as earlier:
        earlier.bind(str(path))
    with tailing(path, subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        for event in ({"event": "other"}, *EVENTS):
            send(path, event)
        lines = [process.stdout.readline() for _ in SHOWN.splitlines()]
        process.send_signal(signal.SIGINT)
        assert process.wait(SECONDS) == 0
        assert process.stderr.read() == f"listening for servers with tail={str(path)!r}; Ctrl-C ends it\n"
    assert "".join(lines) == SHOWN
    assert not path.exists()


def test_on_a_terminal_it_is_in_colours(tmp_path: Path) -> None:
    terminal, end = os.openpty()
    with tailing(tmp_path / "tail", end):
        os.close(end)
        send(tmp_path / "tail", CREATED)
        written = b""
        while b"created" not in written:
            written += os.read(terminal, 1000)
    os.close(terminal)
    assert written == b"\x1b[1mses_a\x1b[0m\r\n  \x1b[32mcreated\x1b[0m\r\n"


def test_a_path_that_cannot_be_listened_on_is_an_error(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    kept = tmp_path / "notes"
    kept.write_text("mine")
    for path in (kept, tmp_path / "missing" / "tail"):
        assert cli.main(["tail", str(path)]) == 2
        assert str(path) in capsys.readouterr().err
    assert kept.read_text() == "mine"
