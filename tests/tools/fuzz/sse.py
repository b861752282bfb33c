"""Event streams of any bytes, cut anywhere: no byte is lost, and the events are those of the standard's own steps."""

from __future__ import annotations

from random import Random
from typing import Final

from mcp_sessions._protocol.sse import EventStream

from .trials import Disagreement

PIECES: Final = [
    *(b"data: a", b"data:b", b"data", b"data:", b"database: no", b": hello", b"id: 1", b"event: message", b"{}"),
    *(
        b"\n",
        b"\r",
        b"\r\n",
        b"\n",
        b"\n\n",
        b"\r\n\r\n",
        b"\xef\xbb\xbf",
        b"\xef\xbb",
        b"\x00",
        b"\x0b",
        b"\xe2\x80\xa8",
    ),
]


def stream(random: Random) -> bytes:
    """Some lines and line endings, and now and then any byte at all."""
    pieces = random.choices(PIECES, k=random.randrange(30))
    if random.random() < 0.2:
        pieces.insert(random.randrange(len(pieces) + 1), random.randbytes(random.randrange(4)))
    return b"".join(pieces)


def by_the_book(text: bytes) -> list[bytes]:
    """The data of each event that is dispatched, whole and slowly."""
    lines = text.removeprefix(b"\xef\xbb\xbf").replace(b"\r\n", b"\n").replace(b"\r", b"\n").split(b"\n")[:-1]
    found: list[bytes] = []
    values: list[bytes] = []
    for line in lines:
        field, _, value = line.partition(b":")
        if not line:
            found += [b"\n".join(values)] if any(values) else []
            values = []
        elif field == b"data":
            values.append(value.removeprefix(b" "))
    return found


def cut(random: Random, text: bytes) -> list[bytes]:
    """The text in chunks."""
    ends = sorted(random.choices(range(len(text) + 1), k=random.randrange(6)))
    return [text[start:end] for start, end in zip([0, *ends], [*ends, len(text)], strict=True)]


def judge(text: bytes, chunks: list[bytes]) -> str:
    """How many events there are, if the oracle finds the same ones and no byte is lost.

    Raises:
        Disagreement: Something else came out.
    """
    splitter = EventStream(max_event_bytes=1 << 20)
    events = [event for chunk in chunks for event in splitter.feed(chunk)]
    passed = b"".join(event.raw for event in events) + splitter.end()
    found = [event.data for event in events if event.data is not None]
    if passed != text or found != by_the_book(text):
        raise Disagreement(f"sse: {found} and {passed!r} from {chunks}")
    return f"{min(len(found), 5)} events"


def trial(random: Random) -> str:
    """One stream, cut once."""
    text = stream(random)
    return judge(text, cut(random, text))
