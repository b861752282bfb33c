"""What a body of the greatest size costs: a few times its memory and few calls, whatever it holds.

Time depends on the machine, so calls are counted, of Python and of C. What is not built cannot take long either.
"""

import sys
import tracemalloc
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from apps import reply, sessions
from clients import Client
from starlette.types import Receive, Scope, Send

SIZE = 1 << 18
PEAK = 9  # times the size, beside the body itself
CALLS = 10_000
CALLS_OF_BATCH = 300_000  # each of a hundred messages may have a thousand names
OPEN = '{"jsonrpc":"2.0","id":1,"method":"tools/call",'
NAME = f'{OPEN}"params":{{"name":"whoami",'
META = f'{NAME}"_meta":{{'
SESSION = f'{META}"io.modelcontextprotocol/session":{{"sessionId":"a",'
DISCOVER = META.replace("tools/call", "server/discover") + '"io.modelcontextprotocol/clientCapabilities":'
INITIALIZE = NAME.replace("tools/call", "initialize") + '"capabilities":'
LEVELS = {
    "envelope": OPEN,
    "params": NAME,
    "_meta": META,
    "session": SESSION,
    "capabilities": DISCOVER + '{"experimental":{"sessions":{}},',
    "experimental": DISCOVER + '{"experimental":{"sessions":{},',
    "initialize": INITIALIZE + '{"experimental":{"sessions":{}},',
}
NAMES = {
    "distinct": '"%x":0',
    "equal": '"":0',
    "upper case": '"%X":0',
    "folded": '"\u00df%x":0',
    "escaped": '"\\u0061%x":0',
    "with lone surrogates": '"%x":"\\ud800"',
    "with objects": '"%x":{}',
}
LONG = {"plain": "a", "escaped": "\\u0061", "folded": "\u00df", "wide": "\U0001f36a", "surrogates": "\\ud800"}


def closed(text: str) -> str:
    """Close the objects and arrays that are open at the end of a text without brackets in strings."""
    left = []
    for char in text:
        if char in "{[":
            left.append("}" if char == "{" else "]")
        elif char in "}]":
            left.pop()
    return text + "".join(reversed(left))


def many(start: str, item: str, end: str = "") -> bytes:
    """Return a body that repeats an item, numbered where it has a place for that, up to the size."""
    rest = closed(start)[len(start) :]
    number, room = "%" in item, SIZE - len((start + end + rest).encode())
    width = len((item % 0xFFFFF if number else item).encode()) + 1
    items = (item % place if number else item for place in range(room // width))
    return (start + ",".join(items) + end + rest).encode()


def bodies() -> Iterator[tuple[str, bytes]]:
    for level, start in LEVELS.items():
        for kind, item in NAMES.items():
            yield f"names: {level}, {kind}", many(start, item)
    args = f'{NAME}"arguments":'
    for kind, item in {"zeros": "0", "texts": '""', "arrays": "[]", "objects": "{}", "both": '"",[]'}.items():
        yield f"items: array, {kind}", many("[", item)
        yield f"items: array with a message, {kind}", many('["jsonrpc",', item)
        yield f"items: arguments, {kind}", many(f"{args}[", item)
    yield "items: quotes and brackets", many(f"{args}[", '"\\"[","",[]')
    yield "items: escaped letters", many("[", '"\\u017f"')
    message = '{"jsonrpc":"2.0","method":""}'
    yield "items: messages", many("[", message)
    crowd = ",".join(f'"{n:x}":0' for n in range(990))
    yield "items: a hundred with names", f"[{','.join([closed(META + crowd)] * 90)}]".encode()
    for kind, char in LONG.items():
        text = char * ((SIZE - 200) // len(char.encode()))
        yield f"texts: argument, {kind}", closed(f'{args}"{text}"').encode()
        yield f"texts: name of a member, {kind}", closed(f'{META}"{text}":0').encode()
        yield f"texts: method, {kind}", f'{{"jsonrpc":"2.0","id":1,"method":"{text}"}}'.encode()
        yield f"texts: id, {kind}", f'{{"jsonrpc":"2.0","id":"{text}","method":"ping"}}'.encode()
        yield (
            f"texts: session, {kind}",
            closed(f'{META}"io.modelcontextprotocol/session":{{"sessionId":"{text}"').encode(),
        )
    for kind, number in {"whole": "1", "fraction": "1.", "power": "1e"}.items():
        digits = number + "1" * (SIZE - 100)
        yield f"numbers: id, {kind}", f'{{"jsonrpc":"2.0","id":{digits},"method":"ping"}}'.encode()
        yield f"numbers: version, {kind}", f'{{"jsonrpc":{digits},"id":1,"method":"ping"}}'.encode()
    half = SIZE // 2
    yield "levels: arrays", b'{"a":' + b"[" * (half - 3) + b"]" * (half - 3) + b"}"
    yield "levels: arrays left open", b"[" * SIZE
    yield "levels: objects left open", b'{"a":' * (SIZE // 5)
    yield "levels: at the limit, often", many(f"{args}[", "[" * 900 + "]" * 900)
    yield "rest: blanks", f'{OPEN}{" " * (SIZE - 80)}"params":{{}}}}'.encode()
    yield "rest: no JSON", b"x" * SIZE
    yield "rest: quotes", b'"' * SIZE
    yield "rest: backslashes", closed(f'{args}"' + "\\\\" * (half - 60) + '"').encode()
    yield "rest: backslashes and a lone surrogate", closed(f'{args}"\\ud800' + "\\\\" * (half - 60) + '"').encode()


BODIES = dict(bodies())


async def unread(scope: Scope, receive: Receive, send: Send) -> None:
    """A server that takes a request and does not look at it."""
    while (await receive()).get("more_body"):
        """There is more."""
    await reply(send, b'{"jsonrpc":"2.0","id":1,"result":{}}')


@contextmanager
def counted() -> Iterator[list[str]]:
    """Collect the calls of functions of Python and C in a block."""
    calls = list[str]()

    def note(_frame: Any, event: str, _arg: Any) -> None:
        if event in {"call", "c_call"}:
            calls.append(event)

    sys.setprofile(note)
    try:
        yield calls
    finally:
        sys.setprofile(None)


def method_of(kind: str) -> str:
    """Return the method that the header of a request names."""
    return next(
        (method for method in ("server/discover", "initialize") if method.encode() in BODIES[kind]), "tools/call"
    )


@pytest.mark.parametrize("anyio_backend", ["asyncio"])
@pytest.mark.parametrize("modern", [True, False], ids=["modern", "legacy"])
@pytest.mark.parametrize("kind", BODIES)
async def test_a_great_body_costs_a_few_times_its_size(kind: str, modern: bool) -> None:
    body = BODIES[kind]
    assert 0.85 * SIZE < len(body) <= SIZE or "hundred" in kind
    client = Client(sessions(unread, require={"tools/call": ["other"]}), modern=modern)
    await client.post(b"{}")
    with counted() as calls:
        await client.post(body, method=method_of(kind))
    assert len(calls) < (CALLS_OF_BATCH if "hundred" in kind else CALLS)
    tracemalloc.start()
    try:
        await client.post(body, method=method_of(kind))
        assert tracemalloc.get_traced_memory()[1] < PEAK * SIZE
    finally:
        tracemalloc.stop()
