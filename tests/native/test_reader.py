"""The native reader reads what nearly every peer writes, as the Python code does, and leaves the rest to it."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
import tracemalloc
from collections.abc import Callable, Iterator
from contextlib import suppress
from importlib import import_module, reload
from pathlib import Path

import pytest

from mcp_sessions._errors import ConfigurationError
from mcp_sessions._protocol import _native, jsonrpc, rewrite
from mcp_sessions._protocol.members import SESSION_KEY

reader = pytest.importorskip("mcp_sessions._protocol._native._reader", reason="the native reader is not built")

NAMED = b'{"sessionId": "x"}'
CALL = b'{"jsonrpc":"2.0","id":7,"method":"tools/call","params":{"name":"echo","_meta":{"%b": %b}}}'
REQUEST = CALL % (SESSION_KEY.encode(), NAMED)
ANSWER = b'{"jsonrpc":"2.0","id":7,"result":{"content":[]}}'
MANY = b",".join(b'"n%d":0' % number for number in range(25))


@pytest.fixture(autouse=True)
def native(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let it run, also where the suite runs without it."""
    monkeypatch.setattr(_native, "read", reader.read)
    monkeypatch.setattr(_native, "echo", reader.echo)


# --- requests ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("body", "read"),
    [
        (REQUEST, ("tools/call", 7, NAMED, b'"echo"')),
        (b' { "method" : "ping" , "id" : "a" , "jsonrpc" : "2.0" } \n', ("ping", "a", None, None)),
        (b'{"jsonrpc":"2.0","method":"n","params":{}}', ("n", None, None, None)),
        (b'{"jsonrpc":"2.0","id":-12,"method":"","params":{"_meta":{}}}', ("", -12, None, None)),
        (b'{"jsonrpc":"2.0","id":%b,"method":"m"}' % (b"9" * 18), ("m", int("9" * 18), None, None)),
        (CALL % (b"a", b'[{}, [-0.5e+7, "\\u00e9\\n\xf0\x9f\x98\x80"], {"b":[]}]'), ("tools/call", 7, None, None)),
        (REQUEST.replace(b'"name":"echo",', b""), ("tools/call", 7, NAMED, b"")),
        (REQUEST.replace(b'"x"}', b'"x"},"baggage":1'), ("tools/call", 7, b'{"sessionId": "x"}', None)),
        (REQUEST.replace(b'"_meta":{', b'"_meta":{"traceparent":"",'), ("tools/call", 7, NAMED, None)),
    ],
)
def test_a_message_of_the_common_form_is_read(
    body: bytes, read: tuple[object, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is not asked for stays unread; when it is, it is what the Python code reads."""
    assert reader.read(body, 1_000) == read
    message = jsonrpc.parse(body)
    assert message.read_params is None
    found = message.params, message.meta, message.session
    monkeypatch.setattr(_native, "read", _native.left)
    again = jsonrpc.parse(body)
    assert again.read_params is not None
    assert found == (again.params, again.meta, again.session)


ODD = {
    "empty": b"",
    "no object": b"[]",
    "a byte order mark": b"\xef\xbb\xbf" + REQUEST,
    "cut short": REQUEST[:-1],
    "more than one": REQUEST + b"{}",
    "a NUL": REQUEST + b"\0",
    "a NUL inside": REQUEST.replace(b"echo", b"ec\0o"),
    "a comma at the end": REQUEST[:-1] + b",}",
    "no colon": b'{"jsonrpc" "2.0"}',
    "no version": b'{"id":7,"method":"m"}',
    "another version": b'{"jsonrpc":"1.0","id":7,"method":"m"}',
    "no method": b'{"jsonrpc":"2.0","id":7}',
    "an escaped method": b'{"jsonrpc":"2.0","id":7,"method":"\\u006d"}',
    "another member": b'{"jsonrpc":"2.0","id":7,"method":"m","sessionId":"s"}',
    "a member twice": b'{"jsonrpc":"2.0","id":7,"id":7,"method":"m"}',
    "an escaped name": CALL % (b"\\u0061", b"0"),
    "another alphabet": CALL % ("\u017f".encode(), b"0"),
    "another case in params": REQUEST.replace(b'"name"', b'"Name"'),
    "another case in _meta": CALL % (b"BAGGAGE", b"0"),
    "many members": b'{"jsonrpc":"2.0","id":7,"method":"m","params":{%b}}' % MANY,
    "params that are null": b'{"jsonrpc":"2.0","id":7,"method":"m","params":null}',
    "an array of params": b'{"jsonrpc":"2.0","id":7,"method":"m","params":[]}',
    "a _meta that is null": b'{"jsonrpc":"2.0","id":7,"method":"m","params":{"_meta":null}}',
    **{
        f"the id {text}": b'{"jsonrpc":"2.0","id":%b,"method":"m"}' % text.encode()
        for text in ("0", "-0", "01", "1.0", "1e0", '""', '"\\u0061"', '"\u00e9"', "null", "true", "9" * 19, "-", "[]")
    },
    **{
        f"the value {text!r}": CALL % (b"a", text)
        for text in (
            *(b"", b"01", b"1.", b".5", b"1e", b"+1", b"-", b"nul", b"tru", b"NaN", b"[1,]", b"[1 2]", b"{,}", b"[}"),
            *(b"{]", b'{"a"}', b'{"a" 1}', b"{1:1}", b'"', b'"\\', b'"\\x"', b'"\\u00g0"', b'"\\ud83d\\ude00"'),
            *(b'"\x1f"', b'"\n"'),
            *(b'"\x80"', b'"\xc0\x80"', b'"\xc2"', b'"\xe0\x80\x80"', b'"\xe2\x82"', b'"\xed\xa0\x80"', b'"\xff"'),
            *(b'"\xf0\x80\x80\x80"', b'"\xf4\x90\x80\x80"', b'"\xf0\x9f\x98"', b"[" * 58 + b"]" * 58),
        )
    },
}


@pytest.mark.parametrize("body", ODD.values(), ids=ODD)
def test_whatever_else_comes_is_left_to_python(body: bytes) -> None:
    """Some of it is read there, and the rest is refused with the right error."""
    assert reader.read(body, 1_000) is None


def test_a_body_is_read_at_every_length_and_never_beyond_its_end() -> None:
    """Only the whole of it is a message."""
    assert [size for size in range(len(REQUEST) + 1) if reader.read(REQUEST[:size], 9) is not None] == [len(REQUEST)]


@pytest.mark.parametrize(("value", "levels"), [(b"0", 3), (b"[]", 4), (b'{"a":[{}]}', 6), (b"[[[[0]]]]", 7)])
def test_a_body_is_left_where_it_is_nested_too_deeply(value: bytes, levels: int) -> None:
    """The limit is the deployment's; empty arrays and objects count, too."""
    body = CALL % (b"a", value)
    assert reader.read(body, levels) is not None
    assert reader.read(body, levels - 1) is None
    assert reader.read(body, -1) is None


# --- answers -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("answer", "written"),
    [
        (ANSWER, ANSWER[:-2] + b',"_meta":{"%b":%b}}}' % (SESSION_KEY.encode(), NAMED)),
        (b'{"jsonrpc": "2.0", "id": 7, "result": {"a": 1, "_meta": {"b": 2 }}}', None),
        (b'{"jsonrpc":"2.0","id":7,"result":{"a":1,"_meta":{"b":2}}}', None),
    ],
)
def test_the_session_is_written_into_an_answer(
    answer: bytes, written: bytes | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The answer becomes what the Python code makes of it."""
    found = reader.echo(answer, b"7", lambda: NAMED)
    monkeypatch.setattr(_native, "echo", _native.left)
    assert found == rewrite.echo(answer, b"7", lambda: NAMED) == (written or found)


def test_what_makes_the_session_may_fail() -> None:
    """Its own error is raised, and what is no text is one, too; it is asked for no answer but the right one."""
    with pytest.raises(ZeroDivisionError):
        reader.echo(ANSWER, b"7", lambda: 1 / 0)
    with pytest.raises(TypeError, match="metadata is bytes"):
        reader.echo(ANSWER, b"7", lambda: "text")
    assert reader.echo(ANSWER, b"8", lambda: 1 / 0) is None


RESULTS = {
    "empty": b"{}",
    "no object": b"[]",
    "cache hints": b'{"a":1,"ttlMs":5}',
    "a cache scope": b'{"a":1,"cacheScope":"public"}',
    "another case": b'{"a":1,"_Meta":{"b":2}}',
    "an empty _meta": b'{"a":1,"_meta":{}}',
    "a _meta that is null": b'{"a":1,"_meta":null}',
    "_meta before the end": b'{"_meta":{"b":2},"a":1}',
    "space after _meta": b'{"a":1,"_meta":{"b":2} }',
    "space before the value of _meta": b'{"a":1,"_meta": {"b":2}}',
    "a session": b'{"a":1,"_meta":{"%b":0}}' % SESSION_KEY.encode(),
    "_meta twice": b'{"_meta":{"b":2},"_meta":{"b":2}}',
    "a flaw in _meta": b'{"a":1,"_meta":{"b":}}',
    "a flaw": b'{"a":}',
}


@pytest.mark.parametrize("result", RESULTS.values(), ids=RESULTS)
def test_an_answer_of_another_form_is_left_to_python(result: bytes) -> None:
    assert reader.echo(b'{"jsonrpc":"2.0","id":7,"result":%b}' % result, b"7", lambda: NAMED) is None


def test_what_does_not_answer_the_request_has_no_place_for_its_session() -> None:
    """Neither has an answer with anything around it."""
    for answer, request_id in (
        *((ANSWER, b"8"), (ANSWER, b""), (ANSWER + b" ", b"7"), (b" " + ANSWER, b"7")),
        (ANSWER.replace(b"result", b"error"), b"7"),
        *((ANSWER[:size], b"7") for size in range(len(ANSWER))),
    ):
        assert reader.echo(answer, request_id, lambda: NAMED) is None


# --- headers and what is awaited -----------------------------------------------------------------

PLAIN = [(b"host", b"a"), (b"content-length", b"123456"), (b"content-type", b"application/json")]
CODING, AGENT = (b"accept-encoding", b"gzip"), (b"user-agent", b"b/1")


@pytest.mark.parametrize(
    ("headers", "common"),
    [
        *([([], (-1, None)), (PLAIN, (-1, None)), ([*PLAIN, CODING, AGENT], (3, b"b/1"))]),
        ([(AGENT[0], b"a"), AGENT], (-1, b"b/1")),
        *(
            [
                ([*PLAIN, header], None)
                for header in ((b"cookie", b""), (b"mcp-session-id", b""), (b"content-length", b"1234567"))
            ]
        ),
        *(
            [
                ([b"content-encoding", b"identity"], None),
                ([CODING, CODING], None),
                (tuple(PLAIN), None),
                ([[b"a", b"b"]], None),
            ]
        ),
        *(
            [
                ([(b"a",)], None),
                ([("a", b"b")], None),
                ([(b"content-length", bytearray())], None),
                (None, None),
            ]
        ),
    ],
)
def test_the_headers_of_most_requests_need_no_look(headers: object, common: tuple[int, bytes | None] | None) -> None:
    assert reader.head(headers) == common


@pytest.mark.parametrize(
    ("headers", "kept"),
    [
        (PLAIN, [PLAIN[0], PLAIN[2]]),
        ([PLAIN[2], (b"etag", b"x"), (b"digest", b"x"), (b"vary", b"x")], [PLAIN[2], (b"vary", b"x")]),
        *([(headers, None) for headers in ([], None, tuple(PLAIN), [*PLAIN, (b"ETag", b"x")], [*PLAIN, [b"a", b"b"]])]),
        *([([*PLAIN, header], None) for header in ((b"content-encoding", b"br"), (b"content-type", b"text/plain"))]),
    ],
)
def test_what_stays_true_of_another_body_is_kept(headers: object, kept: object) -> None:
    assert reader.kept(headers) == kept


class Waits:
    """Awaits 7, as a future does: not by itself, but by an iterator."""

    def __await__(self) -> Iterator[int]:
        return iter([7])


def test_a_first_step_returns_at_once_or_what_is_waited_for() -> None:
    """An error is the waiter's own."""

    async def returns(value: object) -> object:
        return value

    async def waits() -> object:
        return await Waits()  # type: ignore[misc]  # which has no end

    async def fails() -> None:
        raise ZeroDivisionError

    assert reader.step(returns(7)) == 7
    steps, awaited = reader.step(Waits())
    assert (awaited, [*steps]) == (7, [])
    coroutine = waits()
    assert reader.step(coroutine) == (coroutine, 7)
    coroutine.close()
    with pytest.raises(ZeroDivisionError):
        reader.step(fails())
    with pytest.raises(AttributeError):
        reader.step(7)


# --- the module ----------------------------------------------------------------------------------


def test_what_is_no_text_is_left_to_python() -> None:
    """It takes bytes alone, and a limit that is a number."""
    assert reader.read(bytearray(REQUEST), 9) is None
    assert reader.read(REQUEST) is None
    assert reader.echo(ANSWER) is None
    assert reader.echo(ANSWER, "7", None) is None
    assert reader.echo(None, b"7", None) is None
    with pytest.raises(TypeError):
        reader.read(REQUEST, "9")


@pytest.mark.parametrize(
    "call",
    [
        *(lambda: reader.read(REQUEST, 9), lambda: reader.read(REQUEST[1:], 9)),
        *(lambda: reader.echo(ANSWER, b"7", lambda: NAMED), lambda: reader.echo(ANSWER, b"7", lambda: "text")),
        *(lambda: reader.head([*PLAIN]), lambda: reader.kept([*PLAIN]), lambda: reader.kept([*PLAIN, CODING, []])),
        lambda: reader.step(Waits()),
    ],
)
def test_nothing_is_kept_of_what_was_read(call: Callable[[], object]) -> None:
    """After 5,000 calls there are as many references and bytes as after 100."""

    def asked() -> None:
        with suppress(TypeError):
            call()

    for _ in range(100):
        asked()
    gc.collect()
    counts = [sys.getrefcount(None), sys.getrefcount(7)]
    tracemalloc.start()
    before = tracemalloc.get_traced_memory()[0]
    for _ in range(5_000):
        asked()
    gc.collect()
    grown = tracemalloc.get_traced_memory()[0] - before
    tracemalloc.stop()
    assert grown < 10_000
    after = [sys.getrefcount(None), sys.getrefcount(7)]
    assert all(abs(late - early) < 2_500 for early, late in zip(counts, after, strict=True))


OUT_OF_MEMORY = """
import sys, _testcapi
from mcp_sessions._protocol._native import _reader
WAITS = type("Waits", (), {"__await__": lambda self: iter([7])})()
function, make = getattr(_reader, sys.argv[1]), eval(sys.argv[2])
outcomes, held = [], []
while outcomes[-1:] != ["found"]:
    given, at = make(), len(outcomes)
    held += [(number,) for number in range(3_000)]  # Python keeps tuples that were freed, which no allocation fails for
    outcome = "found"
    _testcapi.set_nomemory(at, at + 1)
    try:
        function(*given)
    except MemoryError:
        outcome = "out of memory"
    finally:
        _testcapi.remove_mem_hooks()
    outcomes.append(outcome)
print(outcomes.count("out of memory"))
"""
BIG_ID, TEXT_ID = (REQUEST.replace(b'"id":7', b'"id":' + name) for name in (b"123456789", b'"abcdefg"'))


@pytest.mark.parametrize(
    ("function", "arguments"),
    [
        *(("read", f"{BIG_ID!r}, 9"), ("read", f"{TEXT_ID!r}, 9"), ("echo", f"{ANSWER!r}, b'7', bytes")),
        *(("head", f"{[*PLAIN * 100, CODING, AGENT]!r},"), ("kept", f"{PLAIN * 9!r},"), ("step", "WAITS,")),
    ],
)
def test_memory_that_runs_out_is_an_error_and_no_crash(function: str, arguments: str) -> None:
    """Each allocation of a call fails once, until none is left; in a process of its own, which nothing measures."""
    pytest.importorskip("_testcapi", reason="this Python has no tests of its own")
    variables = {name: value for name, value in os.environ.items() if not name.startswith("COVERAGE_")}
    ended = subprocess.run(
        [sys.executable, "-c", OUT_OF_MEMORY, function, f"lambda: ({arguments})"],
        env=variables,
        stdout=subprocess.PIPE,
        text=True,
        check=True,
        timeout=60,
    )
    assert int(ended.stdout) > 0


@pytest.mark.parametrize(
    ("written", "runs"), [("0", "python"), ("False", "python"), ("1", "native"), ("True", "native")]
)
def test_a_variable_switches_it_off(written: str, runs: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is read once, when the package is imported."""
    monkeypatch.setenv(_native.SWITCH, written)
    ended = subprocess.run(
        [sys.executable, "-c", "from mcp_sessions._protocol._native import reader; print(reader())"],
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    assert ended.stdout.strip() == runs


@pytest.mark.parametrize("written", ["", "off", "no", "flase"])
def test_a_word_that_is_neither_yes_nor_no_is_an_error(written: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """As it is for every setting: otherwise a typo would leave the reader on."""
    monkeypatch.setenv(_native.SWITCH, written)
    before = vars(_native).copy()
    with pytest.raises(ConfigurationError, match=f"MCP_SESSIONS_NATIVE='{written}' must be `true` or `false`"):
        reload(_native)
    assert vars(_native)["read"] is before["read"]


def test_without_it_the_python_code_reads(monkeypatch: pytest.MonkeyPatch) -> None:
    """As on a machine where it was not built."""
    monkeypatch.setitem(sys.modules, "mcp_sessions._protocol._native._reader", None)
    with pytest.raises(ImportError):
        import_module("mcp_sessions._protocol._native._reader")
    monkeypatch.setattr(_native, "read", _native.left)
    assert _native.reader() == "python"
    message = jsonrpc.parse(REQUEST)
    assert message.session == NAMED
    assert message.read_params is not None


def test_it_stays_short_enough_to_be_read() -> None:
    """It is one file of C."""
    source = Path(_native.__file__).with_name("reader.c").read_text("utf-8")
    assert source.count("\n") < 500
    assert max(map(len, source.splitlines())) <= 120
