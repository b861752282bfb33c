"""Splitting an event stream into its events, without reading what they say, and replacing its event ids.

Every byte that goes in comes out again, in order and unchanged, so that one event can be rewritten while all others
pass as the server wrote them. An event leaves with the byte that completes it; `IdLines` holds back no more than a line
that may hold an id.
Source: WHATWG HTML, section "Server-sent events" (parsing, and interpreting an event stream).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import msgspec

from .._session.claims import RedactedRepr

BYTE_ORDER_MARK: Final = b"\xef\xbb\xbf"
CR: Final = b"\r"
LF: Final = b"\n"
BLANK_LINES: Final = (b"\n", b"\r\n", b"\r")
"""The lines that complete an event, with each line ending that the format knows."""
MAX_ID_LINE: Final = 8192  # bytes of an unfinished line that are held back
_DATA_LINES: Final = (b"data:", b"data\r", b"data\n")


class Event(RedactedRepr, msgspec.Struct):
    """A piece of the stream: an event with its blank line, or bytes between events that only pass."""

    raw: bytes  # the exact bytes, with the blank line that completes the event
    data: bytes | None = None  # the values of its `data` fields, joined by line feeds; None for part of an event
    oversized: bool = False  # whether this is the first piece of an event that is too large to be held

    def with_data(self, data: bytes) -> bytes:
        """Return the event with other data, in which CR and LF break lines; its other lines and line endings stay."""
        if self.data is None:
            raise ValueError("only an event with data can have its data replaced")
        values = data.replace(b"\r\n", LF).replace(CR, LF).split(LF)
        parts: list[bytes] = []
        # The last data line is the one that is replaced. Were it the first, dropping a later one could join a CR to
        # the LF of the blank line, and the two would be read as one line ending: the event would lose its end.
        for line in reversed(self.raw.splitlines(keepends=True)):
            if not line.startswith(_DATA_LINES):
                parts.append(line)
                continue
            ending = b"\r\n" if line.endswith(b"\r\n") else line[-1:]
            for value in reversed(values):
                parts += (ending, value, b"data: ")
            values = []
        return b"".join(reversed(parts))


class EventStream(RedactedRepr, msgspec.Struct):
    """One response's event stream, split as it passes; an event that is too long passes in pieces without data."""

    max_event_bytes: int  # that are buffered at most, without the blank line
    held: bytearray = msgspec.field(default_factory=bytearray)  # the event that is not complete yet
    last: bytes = LF  # the byte before the next chunk; a stream begins where a line begins
    opening: bool = True  # whether a byte order mark may come next
    passing: bool = False  # whether the next chunk continues an event that is too long

    def feed(self, chunk: bytes) -> list[Event]:
        """Take the next bytes of the stream, however they are cut, and return what is complete now, in order."""
        if not chunk:
            return []
        pieces: list[Event] = []
        if self.opening:
            chunk = self._open(chunk, pieces)
        if self.last == CR and chunk.startswith(LF):  # the LF whose CR came with the chunk before ends no second line
            self.last, chunk = LF, chunk[1:]
            if self.held:
                self._keep(LF, pieces)
            else:  # it follows an event that has left, and a parser that waits for it has not seen that event yet
                pieces.append(Event(LF))
        start = end = 0
        at_line_start = self.last in (LF, CR)
        for line in chunk.splitlines(keepends=True):
            end += len(line)
            if at_line_start and line in BLANK_LINES:
                pieces.append(self._complete(chunk[start:end], len(line)))
                start = end
            at_line_start = True
        if start < end:
            self._keep(chunk[start:], pieces)
        self.last = chunk[-1:] or self.last
        return pieces

    def end(self) -> bytes:
        """Return the bytes of an event that the stream left unfinished, as they came."""
        unfinished = bytes(self.held)
        self.held.clear()
        return unfinished

    def _open(self, chunk: bytes, pieces: list[Event]) -> bytes:
        start = b"".join((self.held, chunk))
        self.held.clear()
        if len(start) < len(BYTE_ORDER_MARK) and BYTE_ORDER_MARK.startswith(start):
            self.held += start
            return b""
        self.opening = False
        if not start.startswith(BYTE_ORDER_MARK):
            return start
        pieces.append(Event(BYTE_ORDER_MARK))
        return start[len(BYTE_ORDER_MARK) :]

    def _complete(self, rest: bytes, blank_bytes: int) -> Event:
        if self.passing:
            self.passing = False
            return Event(rest)
        raw = b"".join((self.held, rest)) if self.held else rest
        self.held.clear()
        # Counted without the blank line, so that it makes no difference how the stream is cut.
        if len(raw) - blank_bytes > self.max_event_bytes:
            return Event(raw, oversized=True)
        lines = raw.splitlines()
        values = [line[5:].removeprefix(b" ") for line in lines if line[:5] == b"data:" or line == b"data"]
        return Event(raw, b"\n".join(values) if any(values) else None)

    def _keep(self, rest: bytes, pieces: list[Event]) -> None:
        if self.passing:
            pieces.append(Event(rest))
        elif len(self.held) + len(rest) <= self.max_event_bytes:
            self.held += rest
        else:
            pieces.append(Event(b"".join((self.held, rest)), oversized=True))
            self.held.clear()
            self.passing = True


class IdLines(RedactedRepr, msgspec.Struct):
    """The event ids of one response's stream, each replaced as its line is complete, however the stream is cut."""

    held: bytes = b""  # the beginning of a line that may hold an id
    in_line: bool = False  # whether the next chunk continues a line that has left
    opening: bool = True  # whether a byte order mark may come next

    def feed(self, chunk: bytes, sign: Callable[[bytes], bytes | None]) -> bytes:
        """Return what leaves now; `sign` returns what replaces an id, or None for an id that must not leave."""
        text = self.held + chunk if self.held else chunk
        if self.opening and text:
            if len(text) < len(BYTE_ORDER_MARK) and BYTE_ORDER_MARK.startswith(text):
                self.held = text
                return b""
            self.opening, self.held = False, b""
            if text.startswith(BYTE_ORDER_MARK):
                return BYTE_ORDER_MARK + self.feed(text[len(BYTE_ORDER_MARK) :], sign)
        if not (b"\ni" in text or b"\ri" in text or (text.startswith(b"i") and not self.in_line)):
            self.in_line = not text.endswith((LF, CR)) if text else self.in_line
            return text
        self.held = b""
        return b"".join([self._replaced(line, sign) for line in text.splitlines(keepends=True)])

    def end(self, sign: Callable[[bytes], bytes | None]) -> bytes:
        """Return what was held back of a stream that ended within a line."""
        held, self.held = self.held, b""
        return _with_signed_id(held, sign)

    def _replaced(self, line: bytes, sign: Callable[[bytes], bytes | None]) -> bytes:
        continues, self.in_line = self.in_line, not line.endswith((LF, CR))
        if continues or not line.startswith(b"id:"[: len(line)]):
            return line
        if not self.in_line:
            return _with_signed_id(line, sign)
        if len(line) > MAX_ID_LINE:
            return b":" + line  # a comment, which every reader skips
        self.held, self.in_line = line, False
        return b""


def _with_signed_id(line: bytes, sign: Callable[[bytes], bytes | None]) -> bytes:
    """Return a line with its id replaced, or as a comment if the id must not leave; an empty id stays."""
    text = line.rstrip(b"\r\n")
    prefix = b"id: " if text.startswith(b"id: ") else b"id:"
    value = text[len(prefix) :]
    if not text.startswith(prefix) or not value:
        return line
    signed = None if b"\0" in value else sign(value)  # readers skip an id with a NUL
    return b":" + line if signed is None else prefix + signed + line[len(text) :]
