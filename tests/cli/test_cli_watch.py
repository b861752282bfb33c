"""`mcp-sessions watch` shows what workers send, as a tree, in colours where a terminal shows them."""

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

from mcp_sessions import _cli as cli
from mcp_sessions._cli.watch import Screen
from mcp_sessions.telemetry._feed import Created, Ended, Feed, encode, event_in, sockets

AT = 1_800_000_000  # 08:00:00 in Greenwich
WORKER = "web-1:42"
CREATED = {"event": "created", "worker": WORKER, "ref": "ses_a", "at": AT, "expires_at": AT + 900}
BEGAN = {
    "event": "began",
    "worker": WORKER,
    "call": "1",
    "ref": "ses_a",
    "at": AT + 1,
    "name": "tools/call buy",
    "client": "shop 2",
}
CALL = {**BEGAN, "event": "call", "seconds": 0.0123, "error": None, "reason": None}
REFUSED = {"event": "refused", "worker": WORKER, "ref": None, "at": AT + 3, "reason": "parse_error"}
ENDED = {"event": "ended", "worker": WORKER, "ref": "ses_a", "at": AT + 90, "reason": "deleted", "seconds": 90}
EVENTS: list[dict[str, Any]] = [
    {"event": "worker", "worker": WORKER},
    CREATED,
    BEGAN,
    CALL,
    {**CALL, "ref": None, "name": "ping\x1b[2J", "error": "-32043", "reason": "token_signature"},
    {**CREATED, "ref": "ses_b"},
    {**CALL, "ref": "ses_b", "error": "tool_error"},
    REFUSED,
    ENDED,
]
SHOWN = """\
ses_a
  08:00:00  web-1:42  created  (1 live)
  08:00:01  web-1:42  tools/call buy  12.3 ms
(no session)
  08:00:01  web-1:42  ping\\u001b[2J  12.3 ms  -32043 (token_signature)
ses_b
  08:00:00  web-1:42  created  (2 live)
  08:00:01  web-1:42  tools/call buy  12.3 ms  tool_error
(no session)
  08:00:03  web-1:42  refused: parse_error
ses_a
  08:01:30  web-1:42  ended: deleted, after 90 s  (1 live)
"""
SECONDS = 60  # after which a test that hangs fails


@pytest.fixture(autouse=True)
def greenwich(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The time of day is local, so that a place is needed."""
    monkeypatch.setenv("TZ", "UTC")
    time.tzset()
    yield
    monkeypatch.undo()
    time.tzset()


def shown(*events: dict[str, Any], session: str | None = None, is_terminal: bool = False) -> str:
    """What is written of events."""
    screen = Screen(session, is_terminal=is_terminal)
    found = [event_in(json.dumps(event).encode()) for event in events]
    return "".join(screen.show(event) for event in found if event is not None)


def test_a_session_stands_above_what_happens_in_it() -> None:
    """Once, until another one's turn comes; what a client wrote cannot steer the terminal."""
    assert shown(*EVENTS) == SHOWN


def test_what_a_worker_sends_again_is_shown_once() -> None:
    """As to a reader that fell behind and comes back."""
    assert shown(*EVENTS, *EVENTS[:3]) == SHOWN
    many = [{**CALL, "call": str(number)} for number in range(5_001)]
    assert shown(*many, many[-1], many[0]).count("\n") == 1 + 5_002


def test_a_client_s_name_stands_beside_its_session() -> None:
    head = shown(CREATED, BEGAN, REFUSED, CALL).splitlines()[-2]
    assert head == "ses_a  shop 2"


def test_one_session_can_be_picked() -> None:
    assert shown(*EVENTS, session="ses_b").splitlines() == SHOWN.splitlines()[5:8]


def test_colours_change_no_word() -> None:
    coloured = shown(*EVENTS, is_terminal=True)
    for code in ("\x1b[31m", "\x1b[32m", "\x1b[2m", "\x1b[1m"):
        assert code in coloured
        coloured = coloured.replace(code, "")
    assert coloured.replace("\x1b[0m", "").replace("\r\x1b[K", "") == SHOWN


def test_a_call_that_runs_for_long_is_shown_before_it_ends() -> None:
    """Once, and on a terminal with the figures at the end; the calls of a worker that is gone run no more."""
    screen = Screen(None, is_terminal=False)
    for event in (CREATED, BEGAN):
        screen.show(event_in(json.dumps(event).encode()) or "")
    assert screen.update(AT + 1.5) == ""
    assert screen.update(AT + 2) == "  08:00:01  web-1:42  tools/call buy  running\n"
    assert screen.update(AT + 3) == ""
    screen = Screen(None, is_terminal=True)
    for event in (CREATED, BEGAN):
        screen.show(event_in(json.dumps(event).encode()) or "")
    assert screen.update(AT + 1.5) == "\r\x1b[K\x1b[2m1 live, 1 running, 1 worker\x1b[0m"
    assert screen.show(WORKER) == ""
    assert screen.update(AT + 900) == "\r\x1b[K\x1b[2m0 live, 0 running, 0 workers\x1b[0m"


@pytest.mark.parametrize(
    ("event", "member"),
    [
        *((event, "worker") for event in (CREATED, CALL, REFUSED, ENDED)),
        (CREATED, "ref"),
        *((CALL, member) for member in ("ref", "name", "error")),
        *((REFUSED, "reason"), (ENDED, "reason")),
    ],
)
def test_no_text_in_an_event_steers_the_terminal(event: dict[str, Any], member: str) -> None:
    lines = shown({**event, member: "a\x1b[2J\u2713"})
    assert "a\\u001b[2J\\u2713" in lines
    assert lines.replace("\n", "").isprintable()


STRANGE: list[Any] = [
    *([], "created", 7, None, {}, {"event": []}, {"event": "other"}, {"event": "created"}),
    *({**CREATED, "ref": None}, {**CALL, "seconds": "long"}, {**CALL, "error": []}),
    *({**CREATED, "at": -1}, {**CREATED, "at": 1e15}),
]
TIMELESS = [
    json.dumps({**CALL, "seconds": "?"}).replace('"?"', no).encode() for no in ("1e999", "NaN", "1" + "0" * 400)
]
LINES = [b"", b"\xff", b"{", b"[" * 60_000, *TIMELESS, *(json.dumps(event).encode() for event in STRANGE)]


@pytest.mark.parametrize("line", LINES, ids=range(len(LINES)))
def test_what_is_no_event_is_passed_over(line: bytes) -> None:
    """No JSON, no object, no event that is known, or none with its members."""
    assert event_in(line) is None


@pytest.mark.parametrize("seconds", [0, 90, 10**18, 1e308, -1])
def test_any_number_of_seconds_can_be_shown(seconds: float) -> None:
    for event in (CALL, ENDED):
        assert shown({**event, "seconds": seconds}).count("\n") == 2


@contextmanager
def watching(*arguments: str, stdout: int = subprocess.PIPE) -> Iterator[subprocess.Popen[str]]:
    """The command, for as long as the block lasts. It hears interrupts, as no child of a background job does."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # what is ignored here stays so in a new program
    command = [sys.executable, "-m", "mcp_sessions", "watch", *arguments]
    process = subprocess.Popen(command, stdout=stdout, stderr=subprocess.PIPE, text=True)
    signal.signal(signal.SIGINT, before or signal.SIG_DFL)
    with process:
        try:
            yield process
        finally:
            process.terminate()


def lines(process: subprocess.Popen[str], number: int) -> list[str]:
    """The next lines that the command writes."""
    assert process.stdout is not None
    return [process.stdout.readline() for _ in range(number)]


@pytest.fixture
def feed(tmp_path: Path) -> Iterator[Feed]:
    feed = Feed(str(tmp_path), lambda: AT)
    feed.open()
    yield feed
    feed.close()


CREATION = Created(worker=WORKER, ref="ses_a", at=AT, expires_at=AT + 900)
ENDING = Ended(worker=WORKER, ref="ses_a", at=AT + 90, reason="deleted", seconds=90)


def test_several_watch_until_they_are_interrupted(feed: Feed) -> None:
    """Beside a socket that a killed worker left, which is taken away; each says what it watches."""
    left = feed.directory / "1-dead.sock"
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(left))
    where = str(feed.directory)
    picked = ["--json", "--session=ses_a"]
    with watching(where) as first, watching(where, "--json") as second, watching(where, *picked) as third:
        feed.send(CREATION)
        assert lines(first, 2) == ["ses_a\n", "  08:00:00  web-1:42  created  (1 live)\n"]
        assert json.loads(lines(second, 1)[0])["event"] == "worker"
        assert json.loads(lines(third, 1)[0])["ref"] == "ses_a"
        feed.send(ENDING)
        assert lines(first, 1) == ["  08:01:30  web-1:42  ended: deleted, after 90 s  (0 live)\n"]
        feed.close()
        for process in (second, third):
            seen = [""]
            while "gone" not in seen[-1]:
                seen += lines(process, 1)
            assert json.loads(seen[-2])["event"] == "ended"
        assert not sockets(feed.directory)
        for process in (first, second, third):
            process.send_signal(signal.SIGINT)
            assert process.wait(SECONDS) == 0
            assert process.stderr is not None
            assert process.stderr.read() == f"watching {where!r}; press Ctrl-C to stop\n"


def test_what_is_no_line_ends_the_connection(tmp_path: Path) -> None:
    """A socket that sends nonsense is no worker: it gets neither room nor patience."""
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(tmp_path / "1-a.sock"))
        listener.listen()
        with watching(str(tmp_path), "--json") as process:
            connection, _ = listener.accept()
            connection.sendall(b'{}\n{"event":' + b" " * 70_000)
            again, _ = listener.accept()
            connection.close()
            again.sendall(encode(CREATION) + b"\n")
            assert json.loads(lines(process, 1)[0])["ref"] == "ses_a"
            again.close()


def test_on_a_terminal_it_is_in_colours(feed: Feed) -> None:
    terminal, end = os.openpty()
    feed.send(CREATION)
    with watching(str(feed.directory), stdout=end):
        os.close(end)
        written = b""
        while not (b"created" in written and b" running, " in written):
            written += os.read(terminal, 1000)
    os.close(terminal)
    assert b"\x1b[1mses_a\x1b[0m\r\n  \x1b[2m08:00:00  web-1:42\x1b[0m  \x1b[32mcreated\x1b[0m" in written


def test_a_directory_that_cannot_be_read_is_an_error(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    kept = tmp_path / "notes"
    kept.write_text("mine")
    assert cli.main(["watch", str(kept)]) == 2
    assert str(kept) in capsys.readouterr().err
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "1-a.sock").mkdir()  # not a socket
    assert cli.main(["watch", str(tmp_path / "folder")]) == 2
    assert kept.read_text() == "mine"
