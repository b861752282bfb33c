"""The session behind all else: the same answer as by taking it apart, and every byte of the server's in its place."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from jsontext import Number, broken_texts, load, names, values, write

from mcp_sessions._errors import StateTooLarge
from mcp_sessions._protocol import rewrite
from mcp_sessions._protocol.members import SESSION_KEY

SESSION = b'{"sessionId":"header.claims.signature"}'
MEMBER = b'"%b":%b' % (SESSION_KEY.encode(), SESSION)
COMPACT = b'{"jsonrpc":"2.0","id":1,"result":%b}'
SPACED = b'{"jsonrpc": "2.0", "id": 1, "result": %b}'
LONG = b'{"a":"%b",' % (b"x" * rewrite.COPIED)


def echo(response: bytes, request_id: bytes = b"1") -> bytes | None:
    return rewrite.echo(response, request_id, lambda: SESSION)


def echo_apart(response: bytes, request_id: bytes = b"1") -> bytes | None:
    """Echo into an answer that has to be taken apart, since white space comes first."""
    return echo(b" " + response, request_id)


@pytest.mark.parametrize("answer", [COMPACT, SPACED])
@pytest.mark.parametrize(
    "result",
    [
        b'{"content":[],"isError":false',
        b'{"a":{"_meta":{}},"b":1e400',
        b'{"a":1,"a":2',
        b'{"\\u0061 \xc3\xa9":"\\u0041\xff"',
        b'{"a": [ {"cacheScope" : 1}]',
        LONG[:-1],
    ],
)
def test_a_result_without_meta_is_given_one(answer: bytes, result: bytes) -> None:
    assert echo(answer % (result + b"}")) == (answer % (result + b',"_meta":{' + MEMBER + b"}}"))


@pytest.mark.parametrize(
    "result",
    [
        b'{"content":[],"_meta":{"a":1',
        b'{"_meta":{"a":{}',
        b'{"_meta":7,"b":1,"_meta":{"a":1',
        b'{"_meta":{"_meta":{"a":1}',
        b'{"_meta":{"a":1},"b":2,"_meta":{"a":1',
        LONG + b'"_meta":{"a":1',
    ],
)
def test_a_meta_that_ends_the_result_is_continued(result: bytes) -> None:
    assert echo(COMPACT % (result + b"}}")) == COMPACT % (result + b"," + MEMBER + b"}}")
    spaced = result.replace(b'"_meta":', b'"_meta": ')
    assert echo(SPACED % (spaced + b"}}")) == SPACED % (spaced + b"," + MEMBER + b"}}")


@pytest.mark.parametrize(
    "response",
    [
        b"",
        b"{",
        COMPACT % b"{}",
        COMPACT % b'{ "a":1}',
        COMPACT % b'{"a":1} ',
        COMPACT % b'{"a":1}' + b"\n",
        COMPACT % b'{"a":{}},"x":{}',
        COMPACT % b'{"a":1},"result":{"a":{}}',
        COMPACT % b'{"a":1},"method":{"a":{}}',
        COMPACT % b'{"a":[}}',
        COMPACT % b'{"\xff":{}}',
        COMPACT % b'{"a":"\\ud800","b":{}}',
        COMPACT % (b'{"a":' + b"[" * 100_000 + b"]" * 100_000 + b',"b":{}}'),
        COMPACT % b'{"cacheScope":"public","b":{}}',
        COMPACT % b'{"ttlMs":1,"_meta":{"a":1}}',
        COMPACT % b'{"_meta":{"a":1},"b":{}}',
        COMPACT % b'{"_meta":{"a":1},"b":{"_meta":{"a":1}}}',
        COMPACT % b'{"_meta":{"a":1},"\\"_meta":{"a":1}}',
        COMPACT % b'{"\\u005fmeta":{"a":1}}',
        COMPACT % b'{"_meta": {"a":1}}',
        SPACED % b'{"_meta":{"a":1}}',
        COMPACT % b'{"_meta":{}}',
        COMPACT % b'{"_meta":{"\xff":1}}',
        COMPACT % (b'{"_meta":{"%b":1}}' % SESSION_KEY.encode()),
        COMPACT % (b'{"_meta":{"%b":1}}' % SESSION_KEY.replace("/", "\\/").encode()),
        b'{"jsonrpc":"2.0","id":2,"result":{"a":1}}',
        b'{"jsonrpc":"2.0","id":1,"error":{"code":1}}',
        b'{"id":1,"jsonrpc":"2.0","result":{"a":1}}',
        b'{"jsonrpc":"2.0", "id":1,"result":{"a":1}}',
        b'{"jsonrpc":\t"2.0","id":1,"result":{"a":1}}',
    ],
    ids=lambda response: response[:80].decode(errors="replace"),
)
def test_any_other_answer_is_taken_apart(response: bytes) -> None:
    """What looks like the common form and is not must not get the session in the wrong place."""
    assert echo(response) == echo_apart(response)


@pytest.mark.parametrize(
    "response",
    [
        *(COMPACT % b'{"content":[],"_Meta":{}}', SPACED % b'{"x":1,"CacheScope":"public"}'),
        *(b" " + COMPACT % b'{"_META":{}}', b'{"jsonrpc":"2.0","id":1,"Result":{},"result":{}}'),
    ],
)
def test_an_answer_with_a_name_in_another_case_passes(response: bytes) -> None:
    """A client that folds case could read the server's member for ours."""
    assert echo(response) is None


def test_what_the_session_raises_reaches_the_caller() -> None:
    def too_large() -> bytes:
        raise StateTooLarge(2, 1)

    with pytest.raises(StateTooLarge):
        rewrite.echo(COMPACT % b'{"a":1}', b"1", too_large)


looked_at = st.sampled_from(["cacheScope", "ttlMs", "_meta", "content", SESSION_KEY, '"_meta', "a\\"])
objects = st.dictionaries(looked_at | names, values(broken_texts), max_size=3)
results = st.builds(
    lambda members, meta: {**members, **meta},
    st.dictionaries(looked_at | names, values() | objects, max_size=3),
    st.fixed_dictionaries({}, optional={"_meta": objects}),
)


def spelt(value: Any, *, spaced: bool) -> bytes:
    """A text as `json.dumps` writes it, with its default separators or the compact ones."""
    text = write(value)
    return text if not spaced else text.replace(b'":', b'": ').replace(b',"', b', "')


@given(results, st.integers().map(str).map(Number) | st.text(st.characters(codec="utf-8")), st.booleans())
@example({"_meta": {"a": 1}}, Number("1"), True)
@example({"a": "\ud800", "_meta": {"a": 1}}, "é", False)
def test_it_says_the_same_as_an_answer_that_was_taken_apart(result: Any, request_id: Any, spaced: bool) -> None:
    identity = write(request_id)
    response = spelt({"jsonrpc": "2.0", "id": request_id, "result": result}, spaced=spaced)
    echoed, apart = echo(response, identity), echo_apart(response, identity)
    assert (echoed is None) is (apart is None)
    assert load(echoed or b"0") == load(apart or b"0")
