"""The writer: what it adds is there, what it was not asked to touch keeps its bytes."""

import json
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from jsontext import Number, Object, load, names, seeds, texts, values, write

from mcp_sessions._protocol import rewrite
from mcp_sessions._protocol.jsonrpc import SESSION_KEY, parse
from mcp_sessions._protocol.strict_json import members

SESSION = b'{"sessionId":"header.claims.signature"}'
ANSWER = b'{"jsonrpc":"2.0","id":1,"result":%b}'


def rewritten(
    change: Callable[..., bytes | None], message: bytes, *arguments: Any, request_id: bytes = b"1"
) -> bytes | None:
    """Return what takes the place of a message of the server, or None if it stays."""
    answer = rewrite.answer(message, request_id)
    return None if answer is None else change(answer, *arguments)


def echo(response: bytes, request_id: bytes = b"1", session: bytes = SESSION) -> bytes | None:
    return rewritten(rewrite.echo, response, lambda: session, request_id=request_id)


def unread() -> bytes:
    """A session that must not be asked for."""
    pytest.fail("asked for")


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        (b'{"id":1,"result":{"ttlMs":9,"a":[ 1 ]}}', b'{"id":1,"result":{"ttlMs":0,"a":[ 1 ],"cacheScope":"private"}}'),
        (b'{"id":1,"result":{"cacheScope":"public"}}', b'{"id":1,"result":{"cacheScope":"private","ttlMs":0}}'),
        (b'{"id":1,"result":{"ttl\\u004ds":9}}', b'{"id":1,"result":{"ttlMs":0,"cacheScope":"private"}}'),
        (b'{"id":1,"result":{"a":"ttlMs cacheScope"}}', None),
        (b'{"id":1,"error":{"ttlMs":9}}', None),
    ],
)
def test_an_answer_in_a_session_is_kept_from_caches(answer: bytes, expected: bytes | None) -> None:
    """Where it says that it may be cached, since caches do not know sessions."""
    assert rewritten(rewrite.private, answer) == expected


@pytest.mark.parametrize(
    ("result", "echoed"),
    [
        (b'{"_meta": {"x": [ 1 ]} }', b'{"_meta":{"x":[ 1 ],"%b":%b}}'),
        (b'{"_meta":{"io.modelcontextprotocol\\/session":1}}', b'{"_meta":{"%b":%b}}'),
        (b'{"_meta":["a"]}', b'{"_meta":{"%b":%b}}'),
        (b'{ "a":1e400,"a":"\\ud800 \xff"}', b'{"a":"\\ud800 \xff","_meta":{"%b":%b}}'),
    ],
)
def test_the_session_joins_the_meta_that_is_there(result: bytes, echoed: bytes) -> None:
    """Members keep their order and values their bytes; what is not an object makes room for one."""
    assert echo(ANSWER % result) == ANSWER % (echoed % (SESSION_KEY.encode(), SESSION))


def test_a_null_error_stays_beside_the_result() -> None:
    """Some servers always write one."""
    echoed = echo(b'{"jsonrpc":"2.0","id":1,"result":{"a":1},"error":null}')
    assert echoed is not None
    assert json.loads(echoed)["error"] is None


@pytest.mark.parametrize(
    "result",
    [
        *(b"[]", b"null", b'"{}"', b'{"\\ud800":1}', b'{"\xff":1}', b'{"a":' + b"[" * 100_000 + b"]" * 100_000 + b"}"),
        *(b'{"CacheScope":"public"}', b'{"\\u005fMETA":{}}', b'{},"Result":{}'),  # which a client that folds case reads
    ],
    ids=lambda result: result[:30].decode(errors="replace"),
)
def test_a_result_that_cannot_be_read_is_left_alone(result: bytes) -> None:
    """The session is not even asked for."""
    assert rewritten(rewrite.echo, ANSWER % result, unread) is None


def test_a_meta_whose_names_cannot_be_written_down_is_left_alone() -> None:
    """Rather no echo than a result that lost what the server wrote; capabilities are treated alike."""
    assert rewritten(rewrite.advertise, ANSWER % b'{"capabilities":{"\\ud800":1}}', b"{}") is None
    response = ANSWER % b'{"_meta":{"\\ud800":1}}'
    assert rewritten(rewrite.echo, response, unread) is None
    assert b'"_meta":{"\\ud800":1}' in (rewritten(rewrite.advertise, response, b"{}") or b"")


@pytest.mark.parametrize(
    ("ours", "theirs", "is_same"),
    [
        (b'"\\ud83d\\ude00"', b'"\xf0\x9f\x98\x80"', True),
        (b'"\\ud800"', b'"\\ud800"', True),
        (b"18446744073709551616123", b"18446744073709551616123", True),
        *((b"1", other, False) for other in (b'"1"', b"1.0")),
        (b'"1"', b'"\xff"', False),
    ],
)
def test_an_id_is_known_again_in_another_spelling(ours: bytes, theirs: bytes, is_same: bool) -> None:
    """Servers decode the id and write it anew."""
    assert (echo(b'{"id":%b,"result":{}}' % theirs, ours) is not None) is is_same


ANSWERS = [
    *(b'{"id":1,"result":1,"error":null}', b'{"id":2,"id":1,"result":1}', b'{"\\u0069d":1,"result":1}'),
    b'{"id":1,"result":"\\ud800"}',
]
ERRORS = [b'{"id":1,"error":{}}', b'{"id":1,"result":"\\ud800","error":{}}']
OTHERS = [
    *(b'{"id":1,"method":"a","result":{}}', b'{"result":{}}', b'{"result":"\\ud800"}', b'{"id":2,"error":{}}'),
    *(b'{"id":1,"result":{},"\xff":1}', b"[" + ANSWER % b"{}" + b"]", b"\xef\xbb\xbf" + ANSWER % b"{}", b""),
]


@pytest.mark.parametrize("message", [*ANSWERS, *ERRORS, *OTHERS])
def test_an_answer_is_a_result_with_the_id_of_the_request(message: bytes) -> None:
    """A response is that, or an error with the id. What is no answer is left alone, and the session not asked for."""
    assert rewrite.is_answer(message, b"1") is (message in ANSWERS)
    assert rewrite.is_response(message, b"1") is (message not in OTHERS)
    assert message in ANSWERS or rewritten(rewrite.echo, message, unread) is None


@pytest.mark.parametrize(
    ("capabilities", "advertised"),
    [
        (b'{"tools":{ }}', b'{"tools":{ },"sessions":{},"experimental":{"sessions":{"r":1}}}'),
        (b'{"experimental":{"x":1e400}}', b'{"experimental":{"x":1e400,"sessions":{"r":1}},"sessions":{}}'),
        (b'{"experimental":null}', b'{"experimental":{"sessions":{"r":1}},"sessions":{}}'),
        (b"null", b'{"sessions":{},"experimental":{"sessions":{"r":1}}}'),
    ],
)
def test_sessions_join_the_capabilities_that_are_there(capabilities: bytes, advertised: bytes) -> None:
    """They are made where there are none; a dialect may say more of sessions."""
    result = b'{"protocolVersion":"x","capabilities":%b,"ttlMs":1}'
    changed = rewritten(rewrite.advertise, ANSWER % (result % capabilities), b'{"r":1}')
    assert changed == ANSWER % (result % advertised)
    made = b'{"capabilities":{"sessions":{"required":true},"experimental":{"sessions":{}}}}'
    assert rewritten(rewrite.advertise, ANSWER % b"{}", b"{}", b'{"required":true}') == ANSWER % made
    assert rewritten(rewrite.advertise, ANSWER % b"[]", b"{}") is None


def test_an_error_in_words_that_have_no_utf8_form_is_written_all_the_same() -> None:
    """An application may quote what a client sent; a null id stands where the request's is not known."""
    error = b'{"jsonrpc":"2.0","id":null,"error":{"code":-32602,"message":"no ?"}}'
    assert rewrite.error(None, -32602, "no \ud800") == error


results = st.builds(
    lambda members, meta: {**members, **meta},
    st.dictionaries(names | st.sampled_from(["cacheScope", "ttlMs", "content"]), values(), max_size=4),
    st.fixed_dictionaries(
        {}, optional={"_meta": st.dictionaries(names | st.just(SESSION_KEY), values(), max_size=3) | values()}
    ),
)


def unreadable(result: dict[str, Any]) -> bool:
    """Whether a name stands where a lone surrogate makes names unreadable, or for one of ours in another case."""
    meta, ours = result.get("_meta"), ("_meta", "cacheScope", "ttlMs", "capabilities")
    if any(name.casefold() in map(str.casefold, ours) and name not in ours for name in result):
        return True
    return any("\\" in name or not name.isascii() for name in [*result, *(meta if isinstance(meta, dict) else ())])


@given(results, st.integers() | st.text(st.characters(codec="utf-8")), seeds)
@example({"_meta": {"\ud800": 1}}, 1, 0)
@example({"a": "\ud800", "_meta": {}}, "é", 0)
@example({"_Meta": None}, 0, None)
def test_an_echo_changes_the_session_and_nothing_else(
    result: dict[str, Any], request_id: Any, seed: int | None
) -> None:
    """As the standard library reads it, in every spelling; a second echo of the same session changes nothing."""
    identity = Number(str(request_id)) if isinstance(request_id, int) else request_id
    response = write({"id": identity, "x": [result], "result": result, "jsonrpc": "2.0"}, seed)
    echoed = echo(response, write(identity))
    if echoed is None:
        assert unreadable(result)
        return
    before, after = load(response), load(echoed)
    assert [name for name, _ in after] == [name for name, _ in before]
    assert {**dict(after), "result": None} == {**dict(before), "result": None}
    assert dict(after)["result"] == expected(dict(before)["result"])
    assert echo(echoed, write(identity)) == echoed


def expected(result: Object) -> Object:
    """The members of a result once the session is in, in order."""
    members = dict(result)
    if members.keys() & {"cacheScope", "ttlMs"}:
        members |= {"cacheScope": "private", "ttlMs": Number("0")}
    meta = members.get("_meta")
    members["_meta"] = Object({**dict(meta if isinstance(meta, Object) else ()), SESSION_KEY: load(SESSION)}.items())
    return Object(members.items())


@given(st.dictionaries(names | st.just(SESSION_KEY), values(texts), max_size=4), values(texts), seeds)
@example({SESSION_KEY: "a"}, {"_meta": {SESSION_KEY: 1}}, None)
def test_a_request_without_its_session_is_read_as_the_same_request(
    meta: dict[str, Any], arguments: Any, seed: int | None
) -> None:
    params = {"arguments": arguments, "_meta": {**meta, SESSION_KEY: arguments}}
    message = parse(write({"jsonrpc": "2.0", "id": Number("1"), "method": "a", "params": params}, seed))
    rest = parse(rewrite.without_session(message))
    assert message.meta is not None
    assert rest.meta == {name: value for name, value in message.meta.items() if name != SESSION_KEY}
    had, has = members(members(message.body)["params"]), members(members(rest.body)["params"])
    assert list(has) == list(had)
    assert has["arguments"] == had["arguments"]
    assert rewrite.without_session(rest) is rest.body


@pytest.mark.parametrize(
    ("body", "becomes"),
    [
        (b'{"method":"m"}', b'{"method":"m","params":{"_meta":{"traceparent":"00-1"}}}'),
        (
            b'{"params":{"a":1e400,"_meta":{"tracestate":"a=b","b":2,"traceparent":0}},"method":"m"}',
            b'{"params":{"a":1e400,"_meta":{"b":2,"traceparent":"00-1"}},"method":"m"}',
        ),
    ],
)
def test_a_trace_context_takes_the_place_of_the_client_s(body: bytes, becomes: bytes) -> None:
    assert rewrite.with_trace(body, "00-1") == becomes
