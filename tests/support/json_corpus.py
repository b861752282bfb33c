"""Bodies that two JSON-RPC parsers could read differently, each with the reason for which we refuse it, if any.

The classes are those of RFC 8259 (grammar, encodings, numbers, duplicate names) and those in which parsers of MCP
messages have differed: changed case, NUL after a name, members in other places, odd ids.
"""

from collections.abc import Iterator
from typing import Final, NamedTuple

KEY: Final = '"io.modelcontextprotocol/session"'
ENVELOPE: Final = (
    '"io.modelcontextprotocol/protocolVersion":"2026-07-28","io.modelcontextprotocol/clientCapabilities":{}'
)
A: Final = '{"sessionId":"$A"}'
B: Final = '{"sessionId":"$B"}'


class Case(NamedTuple):
    """One body."""

    name: str  # what is odd about it
    body: bytes  # with `$A` and `$B` where ids of two sessions go
    refused: str | None  # the reason, or None where it is forwarded

    def sent(self, a: str, b: str) -> bytes:
        return self.body.replace(b"$A", a.encode()).replace(b"$B", b.encode())


def meta(*members: str) -> str:
    return "{" + ",".join([ENVELOPE, *members]) + "}"


PLAIN: Final = meta()
WITH_A: Final = meta(f"{KEY}:{A}")
DEFAULT_PARAMS: Final = f'"name":"open","arguments":{{}},"_meta":{PLAIN}'


def message(params: str = DEFAULT_PARAMS, *, id: str = "1", method: str = '"tools/call"', more: str = "") -> str:
    """Return a call whose parts are JSON texts."""
    return f'{{"jsonrpc":"2.0","id":{id},"method":{method},"params":{{{params}}}{more}}}'


def call(name: str = '"open"', meta: str = PLAIN, arguments: str = "{}") -> str:
    return message(f'"name":{name},"arguments":{arguments},"_meta":{meta}')


def guarded(meta: str = PLAIN, arguments: str = "{}") -> str:
    return call('"guarded"', meta, arguments)


def in_session(session: str) -> str:
    """Return a guarded call with this value as its session's metadata."""
    return guarded(meta(f"{KEY}:{session}"))


OPEN: Final = call()
GUARDED: Final = guarded()
GUARDED_WITH_A: Final = guarded(WITH_A)

Rows = Iterator[tuple[str, "str | bytes", "str | None"]]


def plain() -> Rows:
    """Yield what clients send, and session metadata where it does not count."""
    yield "open in a session", call(meta=WITH_A), None
    yield "guarded in a session", GUARDED_WITH_A, None
    yield "a guarded call without an id", GUARDED.replace('"id":1,', ""), "required"
    yield "a posted response", '{"jsonrpc":"2.0","id":1,"result":{}}', None
    yield "a guarded name in another case", call('"Guarded"'), None
    escaped = GUARDED.replace("tools/call", "tools\\u002fcall").replace("guarded", "\\u0067uarded")
    yield "an escaped method and name", escaped, "required"
    renamed = GUARDED.replace('"params"', '"p\\u0061rams"').replace('"name"', '"n\\u0061me"')
    yield "escaped member names", renamed, "required"
    yield "an escaped session key", guarded(WITH_A.replace("/session", "\\u002fsession")), None
    session = f"{KEY}:{A}"
    inside = f'{{"_meta":{{{session}}},{session}}}'
    yield "a session in arguments", guarded(arguments=inside), "required"
    yield "another session in arguments", guarded(WITH_A, inside.replace("$A", "$B")), None
    yield "a session in the envelope", GUARDED[:-1] + f',"_meta":{{{session}}},{session},"sessionId":"$A"}}', "required"
    yield "a session in params", message(f'"name":"guarded","_meta":{PLAIN},{session},"session":{A}'), "required"
    yield "_meta in _meta", guarded(meta(f'"_meta":{{{session}}}')), "required"


def duplicates() -> Rows:
    """Yield bodies with a member twice, at every level: some parsers take the first and some the last."""
    twice = "duplicate_member"
    yield "name, escaped", message(f'"name":"open","na\\u006de":"guarded","_meta":{PLAIN}'), twice
    yield "name, in white space", message('"x":\t[ 1, 2 ],\n"name" : 1 ,\n"name":\t{"a":" "}\n'), twice
    yield "params null second", OPEN[:-1] + ',"params":null}', twice
    yield "method", message(more=',"method":"ping"'), twice
    yield "jsonrpc, another version first", OPEN.replace("{", '{"jsonrpc":"1.0",', 1), twice
    yield "an unknown member of a response", '{"jsonrpc":"2.0","result":"a","":{},"":{}}', twice
    yield "_meta", message(f'"name":"guarded","_meta":{PLAIN},"_meta":{WITH_A}'), twice
    yield "_meta, beside a lone surrogate", message(f'"name":"open","_meta":{{}},"x":"\\ud800","_meta":{PLAIN}'), twice
    yield "session, escaped", in_session(f"{A},{KEY}:{B}".replace("/", "\\u002f", 1)), twice
    yield "a member of _meta that is not ASCII", call(meta=meta('"é":{},"é":{"a":2}')), twice
    yield "sessionId", in_session('{"sessionId":"$A","sessionId":"$B"}'), twice
    yield "in arguments", call(arguments='{"x":1,"x":2,"y":{"_meta":1,"_meta":2}}'), None
    yield "in another member of _meta", call(meta=meta('"x":{"a":1,"a":2}')), None


def encodings_and_numbers() -> Rows:
    """Yield other encodings than UTF-8, and numbers that are invalid or that parsers round."""
    yield "UTF-8 with BOM", b"\xef\xbb\xbf" + GUARDED_WITH_A.encode(), "byte_order_mark"
    yield "UTF-16 with BOM", GUARDED_WITH_A.encode("utf-16"), "not_utf8"
    yield "UTF-32", GUARDED.encode("utf-32-le"), "not_json"
    strings = call(arguments='{"x":"~"}').encode()
    yield "literal non-ASCII", strings.replace(b"~", "é€😀".encode()), None
    for name, raw in {"an overlong slash": b"\xc0\xaf", "a surrogate": b"\xed\xa0\x80"}.items():
        yield name, strings.replace(b"~", raw), "not_utf8"
    yield "a NUL at the end", OPEN.encode() + b"\0", "not_json"
    for number in ("-Infinity", "01"):
        yield f"{number} in arguments", call(arguments=f'{{"x":{number}}}'), "not_json"
    yield "NaN in _meta", call(meta=meta('"x":NaN')), "not_json"
    for number in ("1e400", "18446744073709551616", "9" * 5000):
        yield f"{number[:30]} in arguments", call(arguments=f'{{"x":{number}}}'), None
    yield "1e400 in _meta", call(meta=meta('"x":1e400', f"{KEY}:{A}")), None


def surrogates() -> Rows:
    """Yield escapes of half a character, as JavaScript clients send them."""
    lone = "lone_surrogate"
    yield "in arguments, in a session", guarded(WITH_A, '{"x":"\\ude00\\ud83d"}'), None
    yield "in arguments, guarded", guarded(arguments='{"x":"\\\\\\ud83d"}'), "required"
    yield "a pair, and no escape at all", call(arguments='{"x":"\\ud83d\\ude00","y":"\\\\ud83d"}'), None
    yield "another member of _meta", call(meta=meta('"x":"\\ud800"')), None
    yield "the name of a tool", call('"guarded\\ud800"'), lone
    yield "the name of a tool in a session", call('"guarded\\ud800"', WITH_A), None
    yield "the version", OPEN.replace("2.0", "2.\\ud83d\\u0030"), lone
    yield "the method", message(method='"tools/call\\ud800"'), lone
    yield "a name in the envelope", message(more=',"\\ud800":1'), lone
    yield "a name in params", message(f'"name\\ud800":"guarded","name":"open","_meta":{PLAIN}'), lone
    yield "a name in _meta", call(meta=meta('"\\ud800":1')), lone
    yield "a name with a backslash, beside one", call(meta=meta('"a\\\\":1,"b":"\\ud800"')), lone
    yield "the sessionId", in_session('{"sessionId":"$A\\ud800"}'), lone
    yield "the id", message(id='"\\ud800"'), lone


def names() -> Rows:
    """Yield members whose names are nearly right: in another case, with NUL or a space after it, or another letter."""
    case = "member_case"
    yield "Jsonrpc beside another version", '{"jsonrpc":"1.0","Jsonrpc":"2.0","method":"a"}', case
    for near, why in (("Method", case), ("method\\u0000", None)):
        yield f"{near} beside method", message(more=f',"{near}":"ping"'), why
    for near, why in (("param\\u017f", case), ("params\\u0000", None)):
        other = f'"{near}":{{"name":"guarded","_meta":{PLAIN}}}'
        yield f"{near} before params", OPEN.replace('"params"', f'{other},"params"'), why
        yield f"{near} alone", OPEN.replace('"params"', f'"{near}"'), why or "required"
    for near, why in (("Name", case), ("name ", None)):
        yield f"{near} before name", message(f'"{near}":"open","name":"guarded","_meta":{PLAIN}'), why or "required"
    yield "URI in params", message(DEFAULT_PARAMS + ',"URI":"b"'), case
    yield "RequestId in a cancellation", message('"RequestId":1', method='"notifications/cancelled"'), case
    for near, why in (("_Meta", case), ("meta", None)):
        yield f"{near} around a guarded call", message(f'"name":"guarded","{near}":{WITH_A}'), why or "required"
    for near, why in (("Session", case), ("se\\u017f\\u017fion", case), ("session\\u0000", None)):
        key = f'"io.modelcontextprotocol/{near}"'
        yield f"{near} in _meta", guarded(meta(f"{key}:{A}")), why or "required"
        yield f"{near} beside the session", guarded(meta(f"{KEY}:{A},{key}:{B}")), why
    for near in ("Baggage", "TraceParent"):
        yield f"{near} in _meta", call(meta=meta(f'"{near}":""')), case
    for near, why in (("SessionId", case), ("sessionId\\u0000", None)):
        yield f"{near} beside sessionId", in_session(f'{{"sessionId":"$A","{near}":"$B"}}'), why
        yield f"{near} alone", in_session(f'{{"{near}":"$A"}}'), why or "malformed_session"


def values() -> Rows:
    """Yield values that are null, missing or of another type, and ids that servers take for each other."""
    body = '{"jsonrpc":"2.0","id":1,"method":"tools/call"%s}'
    yield "no params", body % "", "required"
    yield "params null", body % ',"params":null', "required"
    yield "_meta null", call(meta="null"), None
    for value in ("[]", '"x"'):
        yield f"params {value}", body % f',"params":{value}', "params_not_object"
        yield f"_meta {value}", call(meta=value), "meta_not_object"
    for value in ("null", '"$A"', "{}", '{"sessionId":["$A"]}', '{"sessionId":"$A","state":1}'):
        yield f"session {value}", in_session(value), "malformed_session"
    yield "sessionId and NUL", in_session('{"sessionId":"$A\\u0000"}'), "token_shape"
    yield "state made up", in_session('{"sessionId":"$A","state":"x"}'), "state_shape"
    yield "state null", in_session('{"sessionId":"$A","state":null}'), None
    yield "State", in_session('{"sessionId":"$A","State":"x"}'), "member_case"
    yield "no name", message(f'"_meta":{PLAIN}'), "required"
    for value in ("null", '["guarded"]'):
        yield f"name {value}", call(value), "required"
        yield f"method {value}", message(method=value), "method_not_string"
    yield "a name and NUL", call('"guarded\\u0000"'), None
    for value in ('"1.0"', "2.0"):
        yield f"jsonrpc {value}", OPEN.replace('"2.0"', value), "not_jsonrpc"
    yield "no jsonrpc", OPEN.replace('"jsonrpc":"2.0",', ""), "not_jsonrpc"
    yield "a guarded call that is also a response", GUARDED[:-1] + ',"result":{},"error":{}}', "required"
    for value in ("1.0", "1e2", "-0", "true", "null"):
        yield f"id {value}", message(id=value), "id_not_string_or_integer"
    for value in ("0", "-1", '"\\u0031"', "18446744073709551616", '"é"'):
        yield f"id {value}", message(id=value), None


def shapes() -> Rows:
    """Yield batches, nested values, white space, and bodies that are not exactly one JSON document."""
    yield "a batch", f"[{OPEN}]", None
    yield "a batch with a guarded call", f"[{OPEN},{GUARDED}]", "batch"
    yield "a batch with another version", f"[{OPEN.replace('2.0', '1.0')},{OPEN}]", "batch"
    yield "a batch with a duplicate", f"[{OPEN},{OPEN[:-1]},{OPEN[1:]}]", "duplicate_member"
    yield "a batch by another name", '[{"j\\u017fonrpc":"2.0"}]', "member_case"
    for text in (f"[[{GUARDED}]]", "null", '"\\ud800"', "{}"):
        yield text[:20], text, "not_jsonrpc"
    yield "space between", GUARDED_WITH_A.replace(":", "\t:\r\n").replace(",", "\r\n,\t"), None
    yield "two documents", OPEN + GUARDED, "not_json"
    yield "a comma too many", OPEN.replace("{}", '{"x":1,}', 1), "not_json"
    yield "a DEL in a string", call(arguments='{"x":"\x7f"}'), None
    deep = '{"y":' * 900 + "1" + "}" * 900
    yield "900 objects in _meta", call(meta=meta(f'"x":{deep}')), None
    yield "900 objects, guarded", guarded(arguments=f'{{"x":{deep}}}'), "required"
    # How deep is too deep depends on the version of Python; this much is too deep for every one of them.
    yield "100,000 arrays that stay open", "[" * 100_000, "nesting_too_deep"


GROUPS: Final = {
    rows.__name__: [Case(name, body if isinstance(body, bytes) else body.encode(), why) for name, body, why in rows()]
    for rows in (plain, duplicates, encodings_and_numbers, surrogates, names, values, shapes)
}
