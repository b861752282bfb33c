"""Requests, answers and headers, written well and damaged: what the reader in C reads, Python must read alike.

Both are asked through the functions that requests take, with the native reader and without. A text that the native
reader leaves to Python is counted apart, so that the count shows how much it was compared on.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Generator
from contextlib import suppress
from functools import partial
from random import Random
from typing import Any, Final, TypeVar

from msgspec import UNSET

from mcp_sessions._errors import Refusal
from mcp_sessions._protocol import _native, jsonrpc, rewrite
from mcp_sessions._protocol.cookies import COOKIE
from mcp_sessions._protocol.headers import ACCEPT_CODING, CODING, LENGTH, SESSION_HEADER, Header, RequestHeaders
from mcp_sessions._protocol.jsonrpc import RESPONSE, Batch
from mcp_sessions._protocol.members import SESSION_KEY, Meta
from mcp_sessions._server.plain import json_headers
from mcp_sessions._server.response import ResponseFilter

from . import jsonrpc as bodies
from .trials import Disagreement, mutate

NESTINGS: Final = (*(1_000,) * 16, 2, 3, 4, 8, 59, 60, 61)
LITERALS: Final = (
    *(
        "0",
        "-0",
        "1",
        "-12",
        "1.5",
        "-0.0e+1",
        "1E400",
        "01",
        "1.",
        ".5",
        "1e",
        "+1",
        "1" * 18,
        "1" * 19,
        "-" + "1" * 18,
    ),
    *(
        '""',
        '"a"',
        '"2.0"',
        '"\\u00e9"',
        '"\\ud83d\\ude00"',
        '"\\udc00"',
        '"\\/\\b\\"\\\\"',
        '"\\x"',
        '"\x01"',
        '"\x7f"',
    ),
    *("true", "false", "null", "tru", "nul", "NaN", "[]", "{}", "[1,]", "{,}", '"\u2028"', '"\u00e9\U0001f600\ud800"'),
)
NAMES: Final = (
    *(*bodies.NAMES, "arguments", "clientInfo", "progressToken", "traceparent", SESSION_KEY, SESSION_KEY.upper()),
    *("cacheScope", "ttlMs", "TTLMs", "capabilities", "content", "\\u005fmeta", "io.modelcontextprotocol\\/session"),
)
SPACES: Final = ("", "", "", "", " ", "\n", "\t ")
KINDS: Final = ("request", "answer", "headers", "step")  # of what both readers are given
SESSION: Final = b'{"sessionId":"x"}'
HEADERS: Final = (
    *(b"accept-encoding", b"user-agent", b"content-type", b"content-length", b"host", b"server", b"x-\xe9", b""),
    *(b"accept-encoding", b"user-agent", b"content-type", b"content-length", b"transfer-encoding", b"etag", b"digest"),
    *(b"mcp-session-id", b"cookie", b"content-encoding", b"content-md5", b"repr-digest", b"content-digest"),
)
VALUES: Final = (
    b"application/json",
    b"text/event-stream",
    b"12",
    b"1234567",
    b"a",
    b"",
    b"identity",
    b"Application/JSON",
)

logging.getLogger("mcp_sessions").addHandler(logging.NullHandler())  # else each compressed response would be a line
T = TypeVar("T")


def in_python(read: Callable[[], T]) -> T:
    """Return what is read without the native reader."""
    kept = _native.read, _native.echo, _native.head, _native.kept
    _native.read, _native.echo, _native.kept = _native.left, _native.left, None
    _native.head = _native.left
    try:
        return read()
    finally:
        _native.read, _native.echo, _native.head, _native.kept = kept


def value(random: Random, depth: int = 0) -> str:
    """Return any JSON value, and now and then what is almost one."""
    if depth > 3 or random.random() < 0.5:
        return random.choice(LITERALS)
    if random.random() < 0.02:
        levels = random.choice((2, 5, 55, 57, 58, 61, 70))
        return "[" * levels + "]" * levels
    if random.random() < 0.3:
        return json.dumps("x" * random.randrange(30) + random.choice(("", "\u00e9", '"', "\\", "\n", "\x7f")))
    inner = [value(random, depth + 1) for _ in range(random.randrange(4))]
    if random.random() < 0.4:
        return f"[{','.join(inner)}]"
    return written(random, [(random.choice(NAMES), item) for item in inner])


def fine(random: Random) -> str:
    """Return a value without flaws, as most of them are."""
    if random.random() < 0.1:
        return value(random)
    return json.dumps(random.choice((1, "a", [1, {"a": []}], {"b": "\u00e9"}, None, 1.5, "x" * 40)), ensure_ascii=False)


def written(random: Random, members: list[tuple[str, str]]) -> str:
    """Return an object with these members, now and then in another order or with one of them twice."""
    if random.random() < 0.1:
        random.shuffle(members)
    if random.random() < 0.04 and members:
        members.append(random.choice(members))
    space = random.choice(SPACES)
    return f"{{{space}{f',{space}'.join(f'{json_name(name)}{space}:{space}{item}' for name, item in members)}{space}}}"


def json_name(name: str) -> str:
    """Return a name as it stands in JSON; one that is written with escapes stays so."""
    return f'"{name}"' if "\\" in name else json.dumps(name, ensure_ascii=False)


def request(random: Random) -> str:
    """Return a request or notification that is mostly right."""
    meta = [("io.modelcontextprotocol/protocolVersion", '"2026-07-28"')]
    if random.random() < 0.7:
        meta.append(
            (SESSION_KEY, random.choice(('{"sessionId":"x"}', '{"sessionId": "x", "state": "y"}', fine(random))))
        )
    params = [("name", '"echo"'), ("arguments", fine(random))]
    params += [("_meta", written(random, meta))] if random.random() < 0.9 else []
    envelope = [("jsonrpc", '"2.0"'), ("id", random.choice(("7", '"a"', '"\u00e9"', "-5")))]
    envelope += [("method", random.choice(('"tools/call"', '"ping"', '""', '"\u00e9"')))]
    if random.random() < 0.1:
        envelope[random.randrange(3)] = (envelope[random.randrange(3)][0], random.choice(LITERALS))
    for level in (meta, params, envelope):
        if random.random() < 0.05:
            level.append((random.choice(NAMES), fine(random)))
    envelope += [("params", written(random, params))] if random.random() < 0.9 else []
    if random.random() < 0.2:
        envelope.pop(random.randrange(len(envelope)))
    return random.choice(SPACES) + written(random, envelope) + random.choice(SPACES)


def answer(random: Random) -> str:
    """Return an answer that is mostly right."""
    colon, comma = random.choice(((":", ","), (": ", ", "), (":", ","), (": ", ", "), (" :", ",")))
    members = [("content", fine(random)), ("isError", "false")]
    if random.random() < 0.2:
        members.append((random.choice(NAMES), fine(random)))
    if random.random() < 0.6:
        meta = [("a", fine(random))] + ([(random.choice(NAMES), fine(random))] if random.random() < 0.2 else [])
        members.append(("_meta", written(random, meta)))
    if random.random() < 0.05:
        random.shuffle(members)
    result = comma.join(f"{json_name(name)}{colon}{item}" for name, item in members)
    whole = (("jsonrpc", '"2.0"'), ("id", random.choice(("7", "7", "7", '"a"'))), ("result", f"{{{result}}}"))
    return f"{{{comma.join(f'{json_name(name)}{colon}{item}' for name, item in whole)}}}"


# --- judged --------------------------------------------------------------------------------------


def _read(body: bytes, nesting: int) -> tuple[Any, ...]:
    try:
        found = jsonrpc.parse(body, max_nesting=nesting)
    except Refusal as refusal:
        return ("refused", refusal.reason)
    except Batch as batch:  # pragma: no cover  # rare among mutants
        return ("batch", len(batch.items))
    if found.kind is RESPONSE:
        return (found.kind, found.field)
    common = (found.params.name, found.params.uri, found.params.client_info, found.envelope)
    meta, name = found.params.meta or Meta(), b"" if found.params.name is UNSET else bytes(found.params.name)
    if found.lone_name is not None and (found.lone_name, UNSET, UNSET) != (name, meta.traceparent, meta.baggage):
        return ("another name", found.lone_name)  # pragma: no cover  # which would be reported
    return (found.kind, found.method, found.id, found.session, found.field, found.meta, common)


def judge_request(body: bytes, nesting: int) -> str:
    """Return who read a body, if both readers agree on it.

    Raises:
        Disagreement: They do not.
    """
    found, expected = _read(body, nesting), in_python(lambda: _read(body, nesting))
    if found != expected:
        raise Disagreement(f"native: read as {found}, and Python says {expected}: nesting {nesting}, {body!r}")
    if _native.read(body, nesting) is not None:
        return f"request: read, {found[0].value}"
    return f"request: left, {found[1] if found[0] == 'refused' else 'read in Python'}"


def judge_answer(text: bytes, request_id: bytes) -> str:
    """Return who placed the session in an answer, if both readers agree on it.

    Raises:
        Disagreement: They do not.
    """
    found = rewrite.echo(text, request_id, lambda: SESSION)
    expected = in_python(lambda: rewrite.echo(text, request_id, SESSION))  # given at once or when asked for
    if found != expected:
        raise Disagreement(f"native: written as {found!r}, and Python says {expected!r}: {request_id!r}, {text!r}")
    if _native.echo(text, request_id, lambda: SESSION) is not None:
        return "answer: written"
    return f"answer: left, {'untouched' if found is None else 'written in Python'}"


def _head(given: list[Header]) -> tuple[Any, ...]:
    """Return what requests ask of their headers: whether more is to be looked at may differ between readers."""
    headers = RequestHeaders(given, _native.head(given))
    edited = [list(headers.without_coding(each)) for each in (given, given[1:])]
    agent = headers.by_name.get(b"user-agent") if headers.common is None else headers.common[1]
    return agent, edited, headers.by_name


def _kept(given: list[Header]) -> tuple[Any, ...]:
    """Return what is held of the start of a response, and what is said of a body that stays as it is."""
    kept = (_native.kept or json_headers)(given)
    sent: list[Any] = []

    async def send(message: Any) -> None:
        sent.append(message)

    response, start = ResponseFilter(send, b"7", None, ()), {"type": "http.response.start", "headers": given}
    with suppress(StopIteration):
        response._begin(start).send(None)
    if kept is not None and (response.start is not start or response.kept != kept):
        raise Disagreement(f"plain: {kept} of {given}, of which a filter keeps {response.kept}")
    return kept, response.start, response.kept, response.events is None, sent


def judge_headers(given: list[Header]) -> str:
    """Return who read the headers of a request and of a response, if both readers agree on them.

    Raises:
        Disagreement: They do not, or the native one has passed over a header that others have to look at.
    """
    for read in (_head, _kept):
        found, expected = read(given), in_python(partial(read, given))
        if found != expected:
            raise Disagreement(f"native: read as {found}, and Python says {expected}: {given}")
    assert _native.kept is not None
    common, kept, names = _native.head(given), _native.kept(given), [name for name, _ in given]
    looked_at = {SESSION_HEADER, COOKIE, CODING}.intersection(names) or names.count(ACCEPT_CODING) > 1
    is_long = any(name == LENGTH and len(value) > 6 for name, value in given)
    if (common is None) is not bool(looked_at or is_long):
        raise Disagreement(f"native: {common} of {given}")
    return f"headers: {'left' if common is None else 'read'}, {'left' if kept is None else 'read'}"


def judge_step(result: object, *, waits: bool) -> str:
    """Return how a first step ended, if both readers agree on it.

    Raises:
        Disagreement: They do not.
    """

    def waiter() -> Generator[object, None, object]:
        if waits:
            yield result
        return result

    begun = waiter()
    found = _native.step(begun)
    if found != ((begun, result) if waits else result):
        raise Disagreement(f"native: {found!r} of a step to {result!r}, which waits: {waits}")
    return f"step: {'waits' if waits else 'returned'}"


def headers(random: Random) -> list[Header]:
    """Return the headers of a request or response."""
    names = random.choices(HEADERS, k=random.randrange(8))
    given = [(name, random.choice(VALUES)) for name in names]
    if random.random() < 0.6:
        given.append((b"content-type", b"application/json"))
    if random.random() < 0.1 and given:
        at = random.randrange(len(given))
        given[at] = (given[at][0].title(), given[at][1])
    return given


def trial(random: Random) -> str:
    """Judge one request, or one answer, of which there are half as many, or now and then headers or a first step."""
    if random.random() < 0.05:
        return judge_headers(headers(random))
    if random.random() < 0.01:
        return judge_step(random.choice((None, 7, (), (7,))), waits=random.random() < 0.5)
    made = random.choice((request, request, answer))(random)
    if random.random() < 0.3:
        made = mutate(random, made)
    text = made.encode("utf-8", "surrogatepass")
    if random.random() < 0.03:
        at = random.randrange(len(text) + 1)
        text = text[:at] + bytes([random.randrange(256)]) + text[at + 1 :]
    if made.lstrip().startswith('{"jsonrpc"') and b'"result"' in text:
        return judge_answer(text, random.choice((b"7", b"7", b"7", b'"a"')))
    return judge_request(text, random.choice(NESTINGS))
