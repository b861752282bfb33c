"""The strict reader: what it accepts, every parser reads alike; what it refuses, it names."""

import json
import sys
import tracemalloc
from contextlib import nullcontext
from typing import Any

import msgspec
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from json_corpus import GROUPS
from jsontext import Number, Object, broken_texts, judge, load, names, odd_names, seeds, texts, values, write
from reasons import refused

from mcp_sessions._errors import Refusal
from mcp_sessions._protocol import jsonrpc
from mcp_sessions._protocol.jsonrpc import Batch, MessageKind, parse
from mcp_sessions._protocol.metadata import parse_metadata
from mcp_sessions._protocol.strict_json import MAX_MEMBERS, is_deeper, string

CALL = b'{"jsonrpc":"2.0","id":1,"method":"tools/call","params":%b}'


LATER = {None, "required", "batch", "token_shape", "state_shape"}
"""Reasons that are not the reader's own, or not its alone."""


def reason_of(body: bytes) -> str | None:
    try:
        message = parse(body)
        if message.session is not None:
            parse_metadata(message.session)
        else:
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


@pytest.mark.parametrize("method", ["eyJh.eyJq.sig", "x" * 65, "tools/call\\n"])
def test_a_log_is_shown_a_method_that_is_spelt_as_one_and_nothing_else(method: str) -> None:
    """The body holds the session id, a credential; and a client may write that where the method stands."""
    body = '{"jsonrpc":"2.0","id":1,"method":"%s","params":{"name":"secret"}}'
    assert repr(parse((body % method).encode())) == "<Message request (unusual method)>"
    message = parse((body % "tools/call").encode())
    assert repr(message) == "<Message request tools/call>"
    assert message.__rich_repr__() == []


# --- batches -------------------------------------------------------------------------------------


def test_an_array_is_a_batch_of_messages() -> None:
    with pytest.raises(Batch, match="several messages") as raised:
        parse(b'\n [ {"jsonrpc":"2.0","method":"a","id":"x"} ,{"jsonrpc":"2.0","result":"\\ud800"}]')
    items = raised.value.items
    assert [item.kind for item in items] == [MessageKind.REQUEST, MessageKind.RESPONSE]
    assert items[1].body == b'{"jsonrpc":"2.0","result":"\\ud800"}'


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        (b'[1,{"jsonrpc":"1.0","method":"a"},{"method":"a"}]', "not_jsonrpc"),
        (b'[1,{"jsonrpc":"2.0","method":1}]', "method_not_string"),
        (b'[{"jsonrpc":"2.0","method":"a"},]', "not_json"),
        (b'[{"jsonrpc":"2.0","method":"\\ud800"},', "not_json"),
        (b"[" + b",".join([b"1"] * 101) + b"]", "not_jsonrpc"),  # which passes where a path serves other things, too
    ],
)
def test_a_batch_is_refused_whole(body: bytes, reason: str) -> None:
    """Beside what is in the corpus: a server could skip what is wrong, and execute the rest."""
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


def test_a_limit_of_very_many_messages_is_one_too() -> None:
    body = b"[" + b",".join([b'{"jsonrpc":"2.0","method":"a"}'] * 3) + b"]"
    with pytest.raises(Batch) as raised:
        parse(body, max_batch=20_000)
    assert len(raised.value.items) == 3


@pytest.mark.parametrize("more", [0, 1])
@pytest.mark.parametrize("item", ['"%04d":0', '"%04d":"\\ud800"', '"\u00e9%04d":{"a":1,"b":2}'])
@pytest.mark.parametrize("level", ["%s", '"params":{%s}', '"params":{"_meta":{%s}}'])
def test_an_object_that_is_read_has_a_thousand_members(level: str, item: str, more: int) -> None:
    """Whatever they are; those that lie deeper are not read, and not counted."""
    own = 3 if level == "%s" else 0
    names = ",".join(item % number for number in range(MAX_MEMBERS - own + more))
    with nullcontext() if not more else refused("too_many_members"):
        parse(b'{"jsonrpc":"2.0","id":1,"method":"a",%b}' % (level % names).encode())


def test_arguments_may_have_any_number_of_members() -> None:
    names = b",".join(b'"%d":0' % number for number in range(5 * MAX_MEMBERS))
    body = b'{"jsonrpc":"2.0","method":"a","params":{"arguments":{%b},"extra":1}}' % names
    assert parse(body).body == body


def test_an_object_that_is_no_message_may_have_any_number_of_members() -> None:
    """It passes where the path serves other things, too."""
    with refused("not_jsonrpc"):
        parse(b"{%b}" % b",".join(b'"%d":0' % number for number in range(5 * MAX_MEMBERS)))


@pytest.mark.parametrize("letter", "jsonrpc")
def test_a_message_is_found_in_an_array_however_its_version_is_spelt(letter: str) -> None:
    """Any letter may be escaped, and any number of other items may stand before it."""
    name = "jsonrpc".replace(letter, f"\\u{ord(letter):04x}")
    with refused("batch"):
        parse(b'[1,{"%b":"2.0","method":"a"}]' % name.encode())
    with refused("batch_too_large"):
        parse(b'[%b{"%b":"2.0","method":"a"}]' % (b"{}," * 1000, name.encode()), max_batch=3)


# --- not JSON ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "text", [rb'"\ud8zz"', rb'["\ud800" "\ud800"]', rb'["\ud800",{"a":[1,,2]}]', rb'{"\ud800":1}x']
)
def test_a_lone_surrogate_hides_nothing_that_is_not_json(text: bytes) -> None:
    with refused("not_json"):
        parse(CALL % text)


@pytest.mark.parametrize("text", [b"\xc3", b"\xe2\x82", b"a" * 70_000 + b"\xc3"], ids=len)
def test_a_body_that_is_not_utf8_is_refused(text: bytes) -> None:
    """Also where a character is cut, and where nothing looks."""
    for body in (CALL % b'{"arguments":"%b"}' % text, CALL % b'{"%b":1}' % text, CALL % b"{}" + text):
        with refused("not_utf8"):
            parse(body)


def test_no_member_joins_longer_than_it_can_be_sent() -> None:
    """The proof by length rests on this: joined, every character of a name takes the shortest form there is."""
    name = "".join(map(chr, (*range(0xD800), *range(0xE000, sys.maxunicode + 1))))
    two, six = '"\\\b\f\n\r\t', 0x20 - 5  # what has a short escape, and how many others need a long one
    shortest = len(name.encode()) + len(two) + 5 * six
    assert len(msgspec.json.encode({name: msgspec.Raw(b"1")})) == shortest + len('{"":1}')
    assert len(msgspec.json.encode(name)) == shortest + len('""')


# --- surrogates, memory and depth ----------------------------------------------------------------


def test_a_text_with_every_mark_of_the_mask_is_refused_only_beside_a_lone_surrogate() -> None:
    """Where no unassigned characters are left to stand for the escapes."""
    every = "".join(map(chr, range(0x5F5, 0x600))).encode()
    assert parse(CALL % (b'{"name":"%b"}' % every)).target() == every.decode()
    assert parse(CALL % (b'{"name":"%b","b":"\\ud800"}' % every[6:])).target() == every[6:].decode()
    with pytest.raises(Refusal):
        parse(CALL % (b'{"name":"%b","b":"\\ud800"}' % every))


@pytest.mark.parametrize(
    ("body", "copies"),
    [
        (CALL % b'{"arguments":[%b0]}' % (b'"\xf0\x9f\x98\x80 a", ' * 50_000), 2.6),
        # what lies deeper is skipped, so an escape in a name cannot make the reader build a large value
        (CALL % b'{"\\u0061bc":1,"_meta":{"\\u0061bc":1,"x":[%b0]}}' % (b"{}," * 100_000), 6),
    ],
    ids=["large", "with values around which members are counted"],
)
def test_a_body_takes_few_times_its_size(body: bytes, copies: float) -> None:
    tracemalloc.start()
    parse(body)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < copies * len(body)


@pytest.mark.parametrize("rest", [b"", b',"\\u0062bb":1', b',"b":"\\ud800"'])
def test_deep_nesting_passes_up_to_a_limit(rest: bytes) -> None:
    """At least as deep as the official SDK reads; beyond, refused and never a crash."""
    assert parse(CALL % b'{"a":%b%b%b}' % (b"[" * 900, b"]" * 900, rest)).method == "tools/call"
    for depth in (1_000, 200_000):
        with refused("nesting_too_deep"):
            parse(CALL % b'{"a":%b%b%b}' % (b"[" * depth, b"]" * depth, rest))


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


damages = st.lists(st.tuples(st.integers(0), st.integers(0, 3), st.binary(max_size=3)), max_size=3)


@settings(max_examples=2 * settings().max_examples)
@given(requests | strange | st.lists(requests, max_size=3), seeds, damages)
@example(Object([("jsonrpc", "2.0"), ("method", "a"), ("method", "a")]), 0, [])
@example([{"jsonrpc": "2.0", "method": "a", "params": {}}], None, [])
def test_every_message_is_read_as_the_standard_library_reads_it(
    value: Any, seed: int | None, damage: list[tuple[int, int, bytes]]
) -> None:
    """In every spelling, or refused: a damaged one, or where a name has a backslash beside a lone surrogate."""
    body = write(value, seed)
    judge(body)
    for at, cut, put in damage:
        place = at % (len(body) + 1)
        body = body[:place] + put + body[place + cut :]
    judge(body)


@given(broken_texts, seeds)
@example("\ud800", None)
def test_every_string_is_decoded_or_refused_for_its_surrogates(text: str, seed: int | None) -> None:
    written = write(text, seed).strip()
    try:
        assert string(written) == load(written)
    except Refusal as refusal:
        assert refusal.reason == "lone_surrogate"
        with pytest.raises(UnicodeEncodeError):
            text.encode()
    assert string(b"1") is string(b'["a"]') is None
    with refused("not_utf8"):
        string(b'"\xff"')


NAMES = st.text('[]{}"\\a', max_size=4)
VALUES = st.recursive(st.none() | NAMES, lambda inner: st.lists(inner) | st.dictionaries(NAMES, inner), max_leaves=12)


def depth_of(value: Any) -> int:
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else None
    return 0 if inner is None else 1 + max(map(depth_of, inner), default=0)


@given(VALUES, st.integers(0, 6))
@example([[["[[["]]] * 10_000, 3)
def test_the_depth_is_that_of_the_value(value: Any, limit: int) -> None:
    """Brackets in strings and names count for nothing, however they are escaped; nor does width."""
    assert is_deeper(json.dumps(value).encode(), limit) is (depth_of(value) > limit)
