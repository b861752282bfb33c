"""The strict reader: what it accepts, every parser reads alike; what it refuses, it names."""

from __future__ import annotations

import sys
import tracemalloc
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import msgspec
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from json_corpus import GROUPS
from json_oracle import judge
from jsontext import Number, Object, load, names, odd_names, seeds, texts, values, write
from reasons import refused

from mcp_sessions._errors import Refusal
from mcp_sessions._protocol import decision, jsonrpc
from mcp_sessions._protocol.jsonrpc import Batch, Message, MessageKind, parse
from mcp_sessions._protocol.strict_json import members

CALL = b'{"jsonrpc":"2.0","id":1,"method":"tools/call","params":%b}'


def call(params: bytes) -> Message:
    return parse(CALL % params)


LATER = {None, "required", "batch", "token_shape", "state_shape"}
"""Reasons that are not the reader's own, or not its alone."""


def reason_of(body: bytes) -> str | None:
    try:
        message = parse(body)
        if decision.requested_session(message, None) is None:
            message.target()
    except Refusal as refusal:
        return refusal.reason
    except Batch:
        pass
    return None


@pytest.mark.parametrize("group", GROUPS)
def test_the_bodies_of_the_corpus_are_refused_for_what_they_are(group: str) -> None:
    """Those that tests/integration/test_parser_agreement.py sends to real servers."""
    refused = [(case.name, case.refused, reason_of(case.body)) for case in GROUPS[group]]
    assert [row for row in refused if row[1] != row[2] and not LATER.issuperset(row[1:])] == []


# --- what a message is ---------------------------------------------------------------------------


def test_a_request_is_read_as_far_as_sessions_need_it() -> None:
    """Method, id, what it is about, and the members of _meta; each value is the text that was sent."""
    for extra in (b"", b',"extra":0'):
        body = CALL % b'{"name":"add","arguments":{"a": 1e400},"_meta":{"x": [1 ,2]}%b}' % extra
        message = parse(body)
        assert (message.kind, message.id, message.body) == (MessageKind.REQUEST, b"1", body)
        assert message.target() == "add"
        assert message.meta is not None
        assert bytes(message.meta["x"]) == b"[1 ,2]"


@pytest.mark.parametrize("rest", [b'"id":1,"result":{}', b'"id":[],"params":7', b'"a":1'])
def test_a_message_without_a_method_is_a_response_and_passes(rest: bytes) -> None:
    """Clients post their answers to the server's requests; whether they fit is the server's to judge."""
    message = parse(b'{"jsonrpc":"2.0",' + rest + b"}")
    assert (message.kind, message.method, message.id, message.meta) == (MessageKind.RESPONSE, "", None, None)
    field = parse(b'{"jsonrpc":"2.0","sessionId":"a",' + rest + b"}").field
    assert field is not None
    assert bytes(field) == b'"a"'


# --- what a message is about ---------------------------------------------------------------------


@pytest.mark.parametrize("method", ["eyJh.eyJq.sig", "x" * 65, "a b", "tools/call\\n", "caf\u00e9"])
def test_a_method_that_is_none_is_not_shown(method: str) -> None:
    """A client may write anything there, even its session id; what is not spelt as a method has no place in a log."""
    message = parse(f'{{"jsonrpc":"2.0","id":1,"method":"{method}"}}'.encode())
    assert message.label == "(unusual method)"
    assert method not in repr(message)


def test_no_representation_shows_what_a_message_carries() -> None:
    """The body holds the session id, a credential."""
    message = call(b'{"_meta":{"io.modelcontextprotocol/session":{"sessionId":"secret"}}}')
    assert repr(message) == "<Message request tools/call>"
    assert message.__rich_repr__() == []


# --- batches -------------------------------------------------------------------------------------


@pytest.mark.parametrize("space", [b"", b"\n "])
def test_an_array_is_a_batch_of_messages(space: bytes) -> None:
    with pytest.raises(Batch, match="several messages") as raised:
        parse(space + b'[ {"jsonrpc":"2.0","method":"a","id":"x"} ,{"jsonrpc":"2.0","result":"\\ud800"}]')
    items = raised.value.items
    assert [item.kind for item in items] == [MessageKind.REQUEST, MessageKind.RESPONSE]
    assert items[1].body == b'{"jsonrpc":"2.0","result":"\\ud800"}'


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        (b"[]", "not_jsonrpc"),
        (b"[1]", "not_jsonrpc"),
        (b'[[{"jsonrpc":"2.0","method":"a"}]]', "not_jsonrpc"),
        (b'[{"jsonrpc":"1.0","method":"a"},{"method":"a"}]', "not_jsonrpc"),
        (b'[{"jsonrpc":"2.0","method":"a"},null]', "batch"),
        (b'[{"jsonrpc":"1.0"},{"jsonrpc":"2.0","result":1}]', "batch"),
        (b'["jsonrpc",{"\\u006A\\u0073\\u006F\\u006E\\u0072\\u0070\\u0063":"2.0","method":"a"}]', "batch"),
        (b'[1,{"jsonrpc":"2.0","method":1}]', "method_not_string"),
        (b'[{"jsonrpc":"2.0","method":"a"},{"jsonrpc":"2.0","method":"a","method":"b"}]', "duplicate_member"),
        (b'[{"jsonrpc":"2.0","method":"a"},]', "not_json"),
        (b'[{"jsonrpc":"2.0","method":"\\ud800"},', "not_json"),
        (b"[" * 100_000, "nesting_too_deep"),
        (b"[" + b",".join([b"1"] * 101) + b"]", "not_jsonrpc"),  # which passes where a path serves other things, too
    ],
)
def test_a_batch_is_refused_whole(body: bytes, reason: str) -> None:
    with refused(reason):
        parse(body)


@pytest.mark.parametrize(("length", "passes"), [(2, True), (3, True), (4, False)])
def test_a_batch_has_a_greatest_length(length: int, passes: bool) -> None:
    """It may have that many messages and no more; a longer array is not read for messages, where it may hold one."""
    body = b"[" + b",".join([b'{"jsonrpc":"2.0","method":"a"}'] * length) + b"]"
    with pytest.raises(Batch) if passes else refused("batch_too_large"):
        parse(body, max_batch=3)
    with refused("not_jsonrpc" if passes else "batch_too_large"):
        parse(body.replace(b"2.0", b"1.0"), max_batch=3)


@pytest.mark.parametrize("letter", "jsonrpc")
def test_a_message_is_found_in_an_array_however_its_version_is_spelt(letter: str) -> None:
    """Any letter may be escaped, and any number of other items may stand before it."""
    name = "jsonrpc".replace(letter, f"\\u{ord(letter):04x}")
    with refused("batch"):
        parse(b'[1,{"%b":"2.0","method":"a"}]' % name.encode())
    with refused("batch_too_large"):
        parse(b'[%b{"%b":"2.0","method":"a"}]' % (b"{}," * 1000, name.encode()), max_batch=3)


# --- not JSON ------------------------------------------------------------------------------------

NOT_JSON = [
    *"NaN -Infinity +1 01 .5 1. 1e 0x1 ١ 1,5 True truex 'a' 1/**/ [1,] [1,,2] {1:2} [} ]".split(),
    *r'" "a "\x" "\u12" "\u00g0" "a""b" "\ud8zz" {"a" {"a":1,} {,} {a:1} {"a":1}} {:1} {"a":1:2}'.split(),
    *("[1 2]", '{"a":1 "b":2}', '"\n"', '"\x1f"', "\x0b1", "\u20281", "1\0", "", "{}{}", r'["\ud800" "\ud800"]'),
]


@pytest.mark.parametrize("text", NOT_JSON)
@pytest.mark.parametrize("where", [CALL, CALL % b'{"arguments":{"a":%b}}', CALL % b'{"x":"\\ud800","a":%b}', b"%b"])
def test_what_is_not_json_is_refused_wherever_it_stands(text: str, where: bytes) -> None:
    """The classes of malformed text, as params, in what is skipped, beside a lone surrogate, and as the body."""
    body = where % text.encode()
    with pytest.raises(Refusal) as caught:
        parse(body)
    assert caught.value.code == -32700
    with pytest.raises(ValueError):  # noqa: PT011  # the standard library's word is not ours to match
        load(body)


JSON = [
    *"0 -0 -1 1e400 -1E-400 1.0 0e0 18446744073709551616123 [] {} [[],{}]".split(),
    *r'"" "\/\b\f\n\r\t\"\\" "\u0000" "\ud83d\ude00" "\uD83D\uDE00" "\ud55c" "\ud800" "\udfff\ud800" "\\ud800"'.split(),
    *r'"\\\ud800" "\ud83d\ud83d\ude00" {"a":1,"a":2} {"\ud800":1,"\udc00":2} "\u05f5\uDFFF"'.split(),
    *('"\u2028"', '"\x7f"', '"\U0001f600"', '"\u05f5\u05f6\\ud800"', '[ 1 ,\n2 ,\t"a b" ]', "1" + "0" * 5000),
]


@pytest.mark.parametrize("text", JSON)
@pytest.mark.parametrize("space", [b"", b" "])
def test_legitimate_oddities_pass_and_keep_their_text(text: str, space: bytes) -> None:
    """Numbers beyond floats, every escape, lone surrogates and duplicates in arguments."""
    for extra in (b"", b',"b":1'):
        message = call(b'{"name":"x",%b"arguments":%b%b}' % (space, text.encode(), extra))
        assert message.target() == "x"
        assert bytes(members(members(message.body)["params"])["arguments"]) == text.encode()


@pytest.mark.parametrize(
    "text",
    [b"\xff", b"\xc3", b"\xc0\xaf", b"\xed\xa0\x80", b"\xf4\x90\x80\x80", b"\xe2\x82", b"\x80", b"a" * 70000 + b"\xc3"],
    ids=len,
)
def test_a_body_that_is_not_utf8_is_refused(text: bytes) -> None:
    """Overlong forms, encoded surrogates and cut characters, also where nothing looks."""
    for body in (CALL % b'{"arguments":"%b"}' % text, CALL % b'{"%b":1}' % text, CALL % b"{}" + text):
        with refused("not_utf8"):
            parse(body)


@pytest.mark.parametrize("rest", [b"", b',"\\u0062bb":1', b',"b":"\\ud800"'])
def test_deep_nesting_passes_up_to_a_limit(rest: bytes) -> None:
    """At least as deep as the official SDK reads; beyond, refused and never a crash."""

    def outcomes() -> list[bool]:
        return [deep(depth) for depth in (1, 200, 900, 960, 970, 980, 985, 990, 995, 1000, 1010, 200_000)]

    def deep(depth: int) -> bool:
        try:
            parse(CALL % b'{"a":%b%b%b}' % (b"[" * depth, b"]" * depth, rest))
        except Refusal as refusal:
            assert refusal.reason == "nesting_too_deep"
            return False
        return True

    with ThreadPoolExecutor(1) as shallow:
        accepted = shallow.submit(outcomes).result()
    assert accepted == sorted(accepted, reverse=True)
    assert accepted[:3] == [True] * 3
    assert not accepted[-1]


# --- duplicate members ---------------------------------------------------------------------------

TWICE = [
    b'"%b":{},"%b":{}',
    b'"%b":{},"%b":{"a":22222222}',
    b' "%b" : {} , "%b" : {} ',
    b'\n"%b":\t{"a":" "},\n"x":[ 1, 2 ],\n"%b"\n:{}\n',
    b'"%b":{},"x":"\\ud800","%b":{}',
    b'"x":"a\\u0020b","%b":null,"%b":null',
]


@pytest.mark.parametrize("twice", TWICE)
@pytest.mark.parametrize(
    ("level", "name"),
    [
        *((b'{"jsonrpc":"2.0","method":"a",%b}', name) for name in (b"params", b"x1")),
        *((b'{"jsonrpc":"2.0","result":"a",%b}', name) for name in (b"id", b"")),
        *((CALL % b"{%b}", name) for name in (b"_meta", b"name")),
        (CALL % b'{"_meta":{%b}}', b"io.modelcontextprotocol/session"),
        (CALL % b'{"_meta":{%b},"z":" "}', b"\xc3\xa9"),
    ],
)
def test_a_member_given_twice_is_refused(level: bytes, name: bytes, twice: bytes) -> None:
    """Some parsers take the first and some the last."""
    with refused("duplicate_member"):
        parse(level % (twice % (name, name)))


@pytest.mark.parametrize(
    "body",
    [
        *(b'{"JSONRPC":"2.0","method":"a"}', b'{"jsonrpc":"1.0","Jsonrpc":"2.0","method":"a"}'),
        *(b'[{"json\\u0052pc":"2.0","method":"a"}]', b'[{"j\\u017fonrpc":"2.0"}]', b'[{"j\xc5\xbfonrpc":"2.0"}]'),
        *(CALL % b'{"URI":"b"}', CALL % b'{"x":1,"_meta":{"Baggage":""}}', CALL % b'{"_meta":{"TraceParent":"00-"}}'),
        b'{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"RequestId":1}}',
    ],
)
def test_a_name_in_another_case_is_refused(body: bytes) -> None:
    """Beside what is in the corpus: a parser that folds case, as Go's does, reads what no policy has seen."""
    with refused("member_case"):
        parse(body)


@pytest.mark.parametrize("space", ["", " ", "\n\t"])
@pytest.mark.parametrize("spelling", ["{}", "\\u006b{}", "k\\u0020 {}"])
def test_many_members_in_any_spelling_are_not_duplicates(space: str, spelling: str) -> None:
    text = ",".join(f'{space}"{spelling.format(number)}"{space}:{space}"a b"' for number in range(1000))
    assert call(b'{%b,"name":"x"}' % text.encode()).target() == "x"
    assert len(call(b'{"_meta":{%b}}' % text.encode()).meta or ()) == 1000


@pytest.mark.parametrize("level", [b'{"\\u0061bc":1,%b}', b'{"\\u0061bc":1,"_meta":{"\\u0061bc":1,%b}}'])
def test_no_value_is_read_to_count_the_members_around_it(level: bytes) -> None:
    """What lies deeper is skipped, so an escape in a name cannot make the reader build a large value."""
    body = b'{"\\u0061bc":1,' + (CALL % (level % (b'"x":[%b0]' % (b"{}," * 100_000))))[1:]
    tracemalloc.start()
    parse(body)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 6 * len(body)


def test_no_member_joins_longer_than_it_can_be_sent() -> None:
    """The proof by length rests on this: joined, every character of a name takes the shortest form there is."""
    name = "".join(map(chr, (*range(0xD800), *range(0xE000, sys.maxunicode + 1))))
    two, six = '"\\\b\f\n\r\t', 0x20 - 5  # what has a short escape, and how many others need a long one
    shortest = len(name.encode()) + len(two) + 5 * six
    assert len(msgspec.json.encode({name: msgspec.Raw(b"1")})) == shortest + len('{"":1}')
    assert len(msgspec.json.encode(name)) == shortest + len('""')


# --- members that are not as they must be --------------------------------------------------------


# --- surrogates ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "body",
    [b'{"jsonrpc":"2.\\ud83d\\u0030","method":"a"}', CALL % b'{"_meta":{"a\\\\":1,"b":"\\ud800"}}'],
)
def test_a_lone_surrogate_in_what_is_read_is_refused(body: bytes) -> None:
    """Beside what is in the corpus: the version, and a name with a backslash beside one."""
    with refused("lone_surrogate"):
        parse(body)


def test_a_text_with_every_mark_of_the_mask_is_refused_only_beside_a_lone_surrogate() -> None:
    """Where no unassigned characters are left to stand for the escapes."""
    every = "".join(map(chr, range(0x5F5, 0x600))).encode()
    assert call(b'{"name":"%b"}' % every).target() == every.decode()
    assert call(b'{"name":"%b","b":"\\ud800"}' % every[6:]).target() == every[6:].decode()
    with pytest.raises(Refusal):
        call(b'{"name":"%b","b":"\\ud800"}' % every)


def test_a_large_body_is_not_copied_more_than_twice() -> None:
    body = CALL % b'{"arguments":[%b0]}' % (b'"\xf0\x9f\x98\x80 a", ' * 50_000)
    tracemalloc.start()
    parse(body)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 2.6 * len(body)


# --- for all messages ----------------------------------------------------------------------------


odd = st.one_of(values(), st.just("2.0"))
metas = st.one_of(st.none(), st.dictionaries(names, values(), max_size=3))
common = st.sampled_from(["name", "uri", "arguments", "cursor"])
some_params = st.dictionaries(common, values(), max_size=3) | st.dictionaries(names | common, values(), max_size=3)
requests = st.fixed_dictionaries(
    {
        "jsonrpc": st.just("2.0"),
        "method": texts | st.sampled_from([*jsonrpc.TARGETS]),
        "params": st.tuples(some_params, metas).map(lambda p: {**p[0], "_meta": p[1]}),
    },
    optional={"id": texts | st.integers().map(lambda i: Number(str(i))), "extra": values()},
)
strange = st.lists(
    st.tuples(
        st.sampled_from(["jsonrpc", "id", "method", "params", "x"]),
        odd | metas | some_params | st.dictionaries(odd_names, values(), max_size=3),
    ),
    max_size=5,
).map(lambda pairs: Object([("jsonrpc", "2.0"), *pairs]))


@given(requests, seeds)
def test_every_proper_message_is_read_as_the_standard_library_reads_it(value: dict[str, Any], seed: int | None) -> None:
    """In every spelling; only a name with a backslash may be refused, where a lone surrogate stands beside it."""
    body = write(value, seed)
    judge(body)
    if r"\ud" not in body.decode().lower():
        assert parse(body).method == value["method"]


@given(strange | st.lists(requests, max_size=3), seeds)
@example(Object([("jsonrpc", "2.0"), ("method", "a"), ("method", "a")]), 0)
@example([{"jsonrpc": "2.0", "method": "a", "params": {}}], None)
def test_every_strange_message_is_refused_or_read_as_the_standard_library_reads_it(
    value: Any, seed: int | None
) -> None:
    judge(write(value, seed))


@given(requests, seeds, st.lists(st.tuples(st.integers(0), st.integers(0, 3), st.binary(max_size=3)), max_size=3))
def test_every_damaged_message_is_refused_or_read_as_the_standard_library_reads_it(
    value: dict[str, Any], seed: int | None, damage: list[tuple[int, int, bytes]]
) -> None:
    body = write(value, seed)
    for at, cut, put in damage:
        place = at % (len(body) + 1)
        body = body[:place] + put + body[place + cut :]
    judge(body)
