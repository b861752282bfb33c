"""The event stream splitter: what goes in comes out, and single events can be rewritten on the way."""

from collections.abc import Iterable
from itertools import pairwise

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from mcp_sessions._protocol.sse import BYTE_ORDER_MARK, MAX_ID_LINE, Event, EventStream, IdLines

MESSAGE = b'event: message\r\nid: 7\r\ndata: {"jsonrpc":"2.0","id":1,"result":{}}\r\n\r\n'

LINES = [
    *(b"data: a", b"data:b", b"data:  c", b"data", b"data:"),
    *(b"database: no", b": hello", b"id: 1", b"odd", b"\xef\xbb\xbf"),
]
ENDINGS = [b"\n", b"\r", b"\r\n"]

streams = st.lists(st.sampled_from([*LINES, *ENDINGS, *ENDINGS, *ENDINGS, BYTE_ORDER_MARK[:2]]), max_size=40).map(
    b"".join
)


def passed(chunks: Iterable[bytes], *, limit: int = 1 << 20) -> tuple[list[Event], bytes]:
    stream = EventStream(max_event_bytes=limit)
    return [event for chunk in chunks for event in stream.feed(chunk)], stream.end()


def data(stream: bytes) -> list[bytes]:
    return [event.data for event in passed([stream])[0] if event.data is not None]


def facts(events: list[Event]) -> list[tuple[bytes | None, bool]]:
    """What a caller acts upon, without the pieces that only pass."""
    return [(event.data, event.oversized) for event in events if event.data is not None or event.oversized]


@pytest.mark.parametrize(
    ("stream", "expected"),
    [
        (b"data:  a \n\n", [b" a "]),
        (b"data: a\ndata\ndata: b\n\n", [b"a\n\nb"]),
        *((raw, []) for raw in (b"data\ndata\n\n", b"data: a\n", b"data : a\n\n")),
        (b"data: a\x0b\x0c\x1c\xc2\x85\xe2\x80\xa8b\n\n", [b"a\x0b\x0c\x1c\xc2\x85\xe2\x80\xa8b"]),
        (b"data: a\n\r\ndata: b\r\n\ndata: c\r\n\rdata: d\n\r", [b"a", b"b", b"c", b"d"]),
    ],
)
def test_lines_and_fields_are_read_as_the_standard_says(stream: bytes, expected: list[bytes]) -> None:
    """Every line ending, also mixed; one leading space; several data lines; what is not data."""
    assert data(stream) == by_the_book(stream) == expected


def by_the_book(text: bytes) -> list[bytes]:
    """Return the data of each event that is dispatched, whole and slowly, by the standard's own steps."""
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


@given(streams, st.lists(st.integers(0, 200)), st.sampled_from([0, 1, 5, 9, 1 << 20]))
@example(b"data: a\r\n\r\ndata: b\r\n\r\n", [10], 1 << 20)
@example(BYTE_ORDER_MARK + b"data: a\n\n", [1, 2], 1 << 20)
@example(b"data: a\r\n", [8], 8)
def test_a_stream_is_read_as_the_standard_says_however_it_is_cut(stream: bytes, cuts: list[int], limit: int) -> None:
    """The same bytes, the same data, and the same events too large, wherever the chunks end."""
    assert data(stream) == by_the_book(stream)
    at = sorted({min(cut, len(stream)) for cut in cuts} | {0, len(stream)})
    for chunks in ([stream[i:j] for i, j in pairwise(at)], [bytes([byte]) for byte in stream]):
        events, rest = passed(chunks, limit=limit)
        assert b"".join(event.raw for event in events) + rest == stream
        assert facts(events) == facts(passed([stream], limit=limit)[0])


def test_a_crlf_cut_in_two_completes_the_event_at_its_cr() -> None:
    """The event does not wait for the LF, which passes at once, and is neither a second blank line nor of the next."""
    stream = EventStream(max_event_bytes=100)
    for rest in (b"\n", b"\ndata: b\r\n\r\n"):
        assert [event.data for event in stream.feed(b"data: a\r\n\r")] == [b"a"]
        expected = [(b"\n", None), (b"data: b\r\n\r\n", b"b")][: 1 + (len(rest) > 1)]
        assert [(event.raw, event.data) for event in stream.feed(rest)] == expected
    assert stream.feed(b"data: b\r") == []
    assert stream.feed(b"\n") == []
    assert [(event.raw, event.data) for event in stream.feed(b"\r\n")] == [(b"data: b\r\n\r\n", b"b")]


def test_an_event_over_the_limit_passes_in_pieces() -> None:
    """What was held leaves at once, only the first piece says so, and the next event is read again."""
    stream = EventStream(max_event_bytes=10)
    assert stream.feed(b"data: 1234") == []
    pieces = [event for chunk in (b"5", b"678\r", b"\n", b"\r\ndata: ok\n\n") for event in stream.feed(chunk)]
    assert (repr(stream), repr(pieces[0])) == ("<EventStream>", "<Event>")  # they hold credentials
    assert [(event.raw, event.data, event.oversized) for event in pieces] == [
        (b"data: 12345", None, True),
        (b"678\r", None, False),
        (b"\n", None, False),
        (b"\r\n", None, False),
        (b"data: ok\n\n", b"ok", False),
    ]


@pytest.mark.parametrize(
    ("raw", "value", "expected"),
    [
        (MESSAGE, b"{}", b"event: message\r\nid: 7\r\ndata: {}\r\n\r\n"),
        (b"data: a\r\r", b"x\ny\r\nz\rw", b"data: x\rdata: y\rdata: z\rdata: w\r\r"),
        (b": c\ndata: a\nid: 1\r\ndata: b\rdata\nretry: 5\n\r\n", b"x", b": c\nid: 1\r\ndata: x\nretry: 5\n\r\n"),
        (b"database: a\ndata: b\n\n", b"x", b"database: a\ndata: x\n\n"),
        (b"data: a\r\n\r", b"x", b"data: x\r\n\r"),
    ],
)
def test_only_the_data_lines_are_replaced(raw: bytes, value: bytes, expected: bytes) -> None:
    """Other lines, their order and all line endings stay; a value of several lines takes several fields."""
    [event] = passed([raw])[0]
    assert event.with_data(value) == expected


@given(streams, st.lists(st.sampled_from([b"x", b" ", b"data: ", *ENDINGS])).map(b"".join))
def test_a_rewritten_event_is_one_event_with_that_data(stream: bytes, value: bytes) -> None:
    """No value breaks the framing, neither its own event's nor that of the events around it."""
    events, rest = passed([stream])
    fresh = value.replace(b"\r\n", b"\n").replace(b"\r", b"\n")
    changed = b"".join(event.raw if event.data is None else event.with_data(value) for event in events) + rest
    written = [fresh if fresh.strip(b"\n") else None for event in events if event.data is not None]
    assert data(changed) == [value for value in written if value is not None]


def test_an_event_without_data_is_not_given_any() -> None:
    """A priming event or a comment that began to speak would be a message that was never sent."""
    [event] = passed([b"id: 1\ndata:\n\n"])[0]
    with pytest.raises(ValueError, match=r"^only an event with data can have its data replaced$"):
        event.with_data(b"x")


# --- ids -----------------------------------------------------------------------------------------


def signed(chunks: Iterable[bytes]) -> bytes:
    """Return a stream whose ids are replaced by themselves in brackets; one of over 100 bytes must not leave."""
    lines = IdLines()

    def sign(value: bytes) -> bytes | None:
        return b"<%b>" % value if len(value) <= 100 else None

    return b"".join([lines.feed(chunk, sign) for chunk in chunks]) + lines.end(sign)


@pytest.mark.parametrize(
    ("stream", "expected"),
    [
        (b"event: m\r\nid: 7\r\ndata: id: 8\r\n\r\n", b"event: m\r\nid: <7>\r\ndata: id: 8\r\n\r\n"),
        (b"id:6\rid:  \xc3\xa9 \r\r", b"id:<6>\rid: < \xc3\xa9 >\r\r"),
        *((same, same) for same in (b"id\nid:\nid: \n\n", b"uid: 7\n: id: 7\ndata: id: 7\nretry: 1\n\n", b"ID: 7\n\n")),
        (BYTE_ORDER_MARK + b"id: 1\n\n", BYTE_ORDER_MARK + b"id: <1>\n\n"),
        (b"id: 1\0\n\n", b":id: 1\0\n\n"),
        (b"id: %b\n\n" % (b"x" * 101), b":id: %b\n\n" % (b"x" * 101)),
        *((b"data\nid: " + b"x" * size, b"data\n:id: " + b"x" * size) for size in (101, MAX_ID_LINE, 2 * MAX_ID_LINE)),
        (b"data: x\n\nid: 9", b"data: x\n\nid: <9>"),
        (b"\xef\xbbid: 1\ni", b"\xef\xbbid: 1\ni"),
    ],
)
def test_every_id_is_replaced_however_a_stream_is_cut(stream: bytes, expected: bytes) -> None:
    """In each line ending and spelling; readers skip what begins with a colon, and ids with a NUL."""
    assert signed([stream]) == signed(bytes([byte]) for byte in stream) == expected


@given(st.lists(st.sampled_from([*LINES, b"id:7", b"id", *ENDINGS, *ENDINGS, BYTE_ORDER_MARK[:2]])), st.integers(0, 99))
def test_ids_are_replaced_alike_wherever_a_stream_is_cut(pieces: list[bytes], cut: int) -> None:
    stream = b"".join(pieces)
    assert signed([stream[:cut], stream[cut:]]) == signed([stream]) == signed(bytes([byte]) for byte in stream)
    assert signed([stream]).replace(b"<", b"").replace(b">", b"") == stream


def test_unfinished_line_is_held_only_if_it_may_hold_an_id() -> None:
    lines = IdLines()
    sent = [lines.feed(chunk, lambda value: value) for chunk in (b": ping", b"\n", b"i", b"d: 1", b"\n", b"data")]
    assert sent == [b": ping", b"\n", b"", b"", b"id: 1\n", b"data"]
