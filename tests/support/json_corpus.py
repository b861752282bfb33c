"""Bodies that two JSON-RPC parsers could read differently, each with the reason for which we refuse it, if any.

The classes are those of RFC 8259 (grammar, encodings, numbers, duplicate names) and those in which parsers of MCP
messages have differed: changed case, NUL after a name, members in other places, odd ids.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

KEY: Final = '"io.modelcontextprotocol/session"'
ENVELOPE: Final = (
    '"io.modelcontextprotocol/protocolVersion":"2026-07-28","io.modelcontextprotocol/clientCapabilities":{}'
)
A: Final = '{"sessionId":"$A"}'
B: Final = '{"sessionId":"$B"}'

EXPLAINED: Final = {
    "not_utf8": "Python's json guesses UTF-16 and UTF-32; other parsers do not, and RFC 8259 section 8.1 wants UTF-8",
    "byte_order_mark": "section 8.1 forbids it; some parsers skip it and some fail",
    "not_json": "NaN and Infinity are Python's own; other parsers accept control characters and the like",
    "duplicate_member": "section 4: which of several members counts differs between parsers",
    "nesting_too_deep": "deeper than the servers' own JSON models accept; some parsers accept more",
    "not_jsonrpc": "a version other than 2.0, which a server may fail to check",
    "id_not_string_or_integer": "1.0 and true are integers to some parsers, -0 comes back as 0, null is not an id",
    "lone_surrogate": "a name that is read here cannot be compared if it has no UTF-8 form",
    "malformed_session": "the draft refuses session metadata that cannot be read, whatever the server does with it",
    "member_case": "parsers that fold case, as Go's does, read such a member in place of the one that is read here",
    "required": "the policy asks for a session",
    "token": "the session id was not minted here, or not for this",
    "state": "the state does not belong to the session",
}
"""Every reason for which we refuse what a server may accept; `token` and `state` are prefixes."""


@dataclass(frozen=True)
class Case:
    """One body."""

    group: str
    name: str  # what is odd about it
    body: bytes  # with `$A` and `$B` where ids of two sessions go
    refused: str | None  # the reason, or None where it is forwarded

    def sent(self, a: str, b: str) -> bytes:
        """Return the body with the two session ids in it, in its own encoding."""
        body = self.body
        for mark, value in (("$A", a), ("$B", b)):
            for encoding in ("utf-8", "utf-16-le", "utf-16-be", "utf-32-le"):
                body = body.replace(mark.encode(encoding), value.encode(encoding))
        return body


def meta(*members: str) -> str:
    """Return `_meta` with the modern era's envelope and more."""
    return "{" + ",".join([ENVELOPE, *members]) + "}"


PLAIN: Final = meta()
WITH_A: Final = meta(f"{KEY}:{A}")
DEFAULT_PARAMS: Final = f'"name":"open","arguments":{{}},"_meta":{PLAIN}'


def message(params: str = DEFAULT_PARAMS, *, id: str = "1", method: str = '"tools/call"', more: str = "") -> str:
    """Return a call whose parts are JSON texts."""
    return f'{{"jsonrpc":"2.0","id":{id},"method":{method},"params":{{{params}}}{more}}}'


def call(name: str = '"open"', meta: str = PLAIN, arguments: str = "{}") -> str:
    """Return a call of one tool."""
    return message(f'"name":{name},"arguments":{arguments},"_meta":{meta}')


OPEN: Final = call()
GUARDED: Final = call('"guarded"')
GUARDED_WITH_A: Final = call('"guarded"', WITH_A)

Rows = Iterator[tuple[str, "str | bytes", "str | None"]]


def plain() -> Rows:
    """Yield what clients send."""
    yield "open", OPEN, None
    yield "open in a session", call(meta=WITH_A), None
    yield "guarded in a session", GUARDED_WITH_A, None
    yield "guarded in none", GUARDED, "required"
    yield "guarded in a session that was made up", call('"guarded"', meta(f'{KEY}:{{"sessionId":"x"}}')), "token_shape"
    yield "a call without an id", OPEN.replace('"id":1,', ""), None
    yield "a guarded call without an id", GUARDED.replace('"id":1,', ""), "required"
    yield "a posted response", '{"jsonrpc":"2.0","id":1,"result":{}}', None
    yield "ping", message(f'"_meta":{PLAIN}', method='"ping"'), None
    yield "a method that does not exist", message(method='"tools/cal"'), None
    yield "a guarded name in another case", call('"Guarded"'), None
    yield "an escaped method", GUARDED.replace("tools/call", "tools\\u002fcall"), "required"
    yield "an escaped name", call('"\\u0067uarded"'), "required"
    renamed = GUARDED.replace('"params"', '"p\\u0061rams"').replace('"name"', '"n\\u0061me"')
    yield "escaped member names", renamed, "required"
    yield "an escaped session key", call('"guarded"', WITH_A.replace("/session", "\\u002fsession")), None
    yield "an escaped _meta", GUARDED_WITH_A.replace('"_meta"', '"\\u005fmeta"'), None


def duplicates() -> Rows:
    """Yield bodies with a member twice, at every level, in the same spelling and in another."""
    twice = "duplicate_member"
    for one, two in (("open", "guarded"), ("guarded", "open")):
        both = f'"name":"{one}","name":"{two}"'
        yield f"name {one} {two}", message(f'{both},"arguments":{{}},"_meta":{PLAIN}'), twice
        yield f"name {one}, escaped {two}", message(f'"name":"{one}","na\\u006de":"{two}","_meta":{PLAIN}'), twice
        yield f"params {one} {two}", OPEN[:-1] + f',"params":{{"name":"{two}","_meta":{PLAIN}}}}}', twice
    yield "method", message(more=',"method":"ping"'), twice
    yield "method, the first is ping", message(method='"ping"', more=',"method":"tools/call"'), twice
    yield "id", message(more=',"id":2'), twice
    yield "jsonrpc, another version second", message(more=',"jsonrpc":"1.0"'), twice
    yield "jsonrpc, another version first", OPEN.replace("{", '{"jsonrpc":"1.0",', 1), twice
    yield "an unknown member", message(more=',"x":1,"x":2'), twice
    yield "params null second", OPEN[:-1] + ',"params":null}', twice
    yield "arguments", message(DEFAULT_PARAMS + ',"arguments":{"x":1}'), twice
    yield "_meta", message(f'"name":"guarded","_meta":{PLAIN},"_meta":{WITH_A}'), twice
    yield "_meta null second", message(f'"name":"guarded","_meta":{WITH_A},"_meta":null'), twice
    for one, two in ((A, B), (B, A), (A, "null"), ("null", A)):
        yield f"session {one} {two}", call('"guarded"', meta(f"{KEY}:{one},{KEY}:{two}")), twice
        escaped = KEY.replace("/", "\\u002f")
        yield f"session {one}, escaped {two}", call('"guarded"', meta(f"{KEY}:{one},{escaped}:{two}")), twice
    ids = '{"sessionId":"$A","sessionId":"$B"}'
    yield "sessionId", call('"guarded"', meta(f"{KEY}:{ids}")), twice
    escaped = meta(f"{KEY}:{ids}").replace("sessionId", "session\\u0049d", 1)
    yield "sessionId, escaped", call('"guarded"', escaped), twice
    yield "in arguments", call(arguments='{"x":1,"x":2}'), None
    yield "in arguments, one level down", call(arguments='{"y":{"_meta":1,"_meta":2}}'), None
    yield "in another member of _meta", call(meta=meta('"x":{"a":1,"a":2}')), None


def encodings() -> Rows:
    """Yield other encodings than UTF-8, and invalid UTF-8."""
    for text, name in ((OPEN, "open"), (GUARDED, "guarded"), (GUARDED_WITH_A, "guarded in a session")):
        yield f"BOM, {name}", b"\xef\xbb\xbf" + text.encode(), "byte_order_mark"
        yield f"UTF-16 with BOM, {name}", text.encode("utf-16"), "not_utf8"
        yield f"UTF-16-LE, {name}", text.encode("utf-16-le"), "not_json"
        yield f"UTF-16-BE, {name}", text.encode("utf-16-be"), "not_json"
        yield f"UTF-32-LE, {name}", text.encode("utf-32-le"), "not_json"
        yield f"UTF-32 with BOM, {name}", text.encode("utf-32"), "not_utf8"
    strings = call(arguments='{"x":"~"}').encode()
    yield "literal non-ASCII", strings.replace(b"~", "é€😀".encode()), None
    for name, raw in {
        "Latin-1": b"\xe9",
        "an overlong slash": b"\xc0\xaf",
        "a surrogate in three bytes": b"\xed\xa0\x80",
        "beyond U+10FFFF": b"\xf4\x90\x80\x80",
        "a stray continuation": b"\x80",
    }.items():
        yield name, strings.replace(b"~", raw), "not_utf8"
    yield "UTF-7 is text", strings.replace(b"~", b"+AGc-"), None
    yield "a NUL at the end", OPEN.encode() + b"\0", "not_json"
    yield "a BOM that is escaped", "\\ufeff" + OPEN, "not_json"


def numbers() -> Rows:
    """Yield invalid numbers, and numbers that parsers round."""
    for number in ("NaN", "-Infinity", "01", "1.", ".5", "+1", "0x10", "1e"):
        yield f"{number} in arguments", call(arguments=f'{{"x":{number}}}'), "not_json"
    yield "NaN in _meta", call(meta=meta('"x":NaN')), "not_json"
    yield "NaN around a guarded call", message(f'"name":"guarded","_meta":{PLAIN},"x":NaN'), "not_json"
    for number in ("1e400", "1E+2", "1e-400", "18446744073709551616", "-0", "-0.0", "9" * 400):
        yield f"{number[:30]} in arguments", call(arguments=f'{{"x":{number}}}'), None
    yield "5,000 digits", call(arguments='{"x":%s}' % ("9" * 5000)), None
    yield "1e400 in _meta", call(meta=meta('"x":1e400', f"{KEY}:{A}")), None


def surrogates() -> Rows:
    """Yield escapes of half a character, as JavaScript clients send them."""
    lone = "lone_surrogate"
    for name, text in {
        "a high one": "\\ud83d",
        "a low one": "\\ude00",
        "the wrong way round": "\\ude00\\ud83d",
        "after an escaped backslash": "\\\\\\ud83d",
    }.items():
        yield f"{name} in arguments", call(arguments=f'{{"x":"{text}"}}'), None
        yield f"{name} in arguments, in a session", call('"guarded"', WITH_A, f'{{"x":"{text}"}}'), None
        yield f"{name} in arguments, guarded", call('"guarded"', arguments=f'{{"x":"{text}"}}'), "required"
    yield "a pair", call(arguments='{"x":"\\ud83d\\ude00"}'), None
    yield "no escape at all", call(arguments='{"x":"\\\\ud83d"}'), None
    yield "a name in arguments", call(arguments='{"\\ud800":1}'), None
    yield "another member of _meta", call(meta=meta('"x":"\\ud800"')), None
    yield "the name of a tool", call('"guarded\\ud800"'), lone
    yield "the name of a tool in a session", call('"guarded\\ud800"', WITH_A), None
    yield "the method", message(method='"tools/call\\ud800"'), lone
    yield "a name in the envelope", message(more=',"\\ud800":1'), lone
    yield "a name in params", message(DEFAULT_PARAMS + ',"\\ud800":1'), lone
    yield "a name in _meta", call(meta=meta('"\\ud800":1')), lone
    yield "name and a half", message(f'"name\\ud800":"guarded","name":"open","_meta":{PLAIN}'), lone
    yield "the sessionId", call(meta=meta(f'{KEY}:{{"sessionId":"$A\\ud800"}}')), lone
    yield "a name in the session", call(meta=meta(f'{KEY}:{{"sessionId":"$A","\\ud800":1}}')), lone
    yield "the id", message(id='"\\ud800"'), lone


def unless_cased(near: str, name: str) -> str | None:
    """Return the reason for a member that is `name` to parsers that fold case, or None."""
    return "member_case" if json.loads(f'"{near}"').casefold() == name.casefold() else None


def names() -> Rows:
    """Yield members whose names are nearly right."""
    for near in ("Method", "method\\u0000", "method ", "ｍethod"):
        yield f"{near} beside method", message(more=f',"{near}":"ping"'), unless_cased(near, "method")
    for near in ("Params", "params\\u0000", "param\\u017f", "parameters"):
        guarded, why = f'{{"name":"guarded","_meta":{PLAIN}}}', unless_cased(near, "params")
        yield f"{near} beside params", OPEN[:-1] + f',"{near}":{guarded}}}', why
        yield f"{near} before params", OPEN.replace('"params"', f'"{near}":{guarded},"params"'), why
        yield f"{near} alone", OPEN.replace('"params"', f'"{near}"'), why or "required"
    for near in ("Name", "name\\u0000", "tool"):
        why, rest = unless_cased(near, "name"), f'"_meta":{PLAIN}'
        yield f"{near} beside name", message(f'"name":"open","{near}":"guarded",{rest}'), why
        yield f"{near} before name", message(f'"{near}":"guarded","name":"open",{rest}'), why
        yield f"{near} beside a guarded name", message(f'"{near}":"open","name":"guarded",{rest}'), why or "required"
    for near in ("_Meta", "_meta\\u0000", "meta", "__meta"):
        why, other = unless_cased(near, "_meta"), f'"{near}":{WITH_A}'
        yield f"{near} beside _meta", message(f'"name":"open","_meta":{PLAIN},{other}'), why
        yield f"{near} before _meta", message(f'"name":"open",{other},"_meta":{PLAIN}'), why
        yield f"{near} alone", message(f'"name":"open",{other}'), why
        yield f"{near} around a guarded call", message(f'"name":"guarded",{other}'), why or "required"
    for near in ("Session", "session\\u0000", "se\\u017f\\u017fion", "sessions"):
        key, why = f'"io.modelcontextprotocol/{near}"', unless_cased(near, "session")
        yield f"{near} in _meta", call('"guarded"', meta(f"{key}:{A}")), why or "required"
        yield f"{near} beside the session", call('"guarded"', meta(f"{KEY}:{A},{key}:{B}")), why
    for near in ("sessionid", "SessionId", "sessionId\\u0000", "session_id", "\\u017fessionId", "id"):
        both, why = f'{{"sessionId":"$A","{near}":"$B"}}', unless_cased(near, "sessionId")
        yield f"{near} beside sessionId", call('"guarded"', meta(f"{KEY}:{both}")), why
        yield f"{near} alone", call('"guarded"', meta(f'{KEY}:{{"{near}":"$A"}}')), why or "malformed_session"


def nesting() -> Rows:
    """Yield nested arrays and objects."""
    for depth in (10, 250, 900):
        yield f"{depth} arrays", call(arguments=f'{{"x":{"[" * depth}{"]" * depth}}}'), None
        deep = '{"y":' * depth + "1" + "}" * depth
        yield f"{depth} objects", call(arguments=f'{{"x":{deep}}}'), None
        yield f"{depth} objects in _meta", call(meta=meta(f'"x":{deep}')), None
        yield f"{depth} objects, guarded", call('"guarded"', arguments=f'{{"x":{deep}}}'), "required"
    # How deep is too deep depends on the version of Python; this much is too deep for every one of them.
    yield "100,000 arrays", call(arguments=f'{{"x":{"[" * 100_000}{"]" * 100_000}}}'), "nesting_too_deep"
    yield "100,000 arrays that stay open", "[" * 100_000, "nesting_too_deep"


def places() -> Rows:
    """Yield session metadata where it does not count."""
    session = f"{KEY}:{A}"
    inside = f'{{"_meta":{{{session}}},{session}}}'
    yield "in arguments", call(arguments=inside), None
    yield "in arguments of a guarded call", call('"guarded"', arguments=inside), "required"
    yield "another one in arguments", call('"guarded"', WITH_A, inside.replace("$A", "$B")), None
    yield "in the envelope", message(more=f',"_meta":{{{session}}},{session}'), None
    envelope = f',"_meta":{{{session}}},{session},"sessionId":"$A"}}'
    yield "in the envelope of a guarded call", GUARDED[:-1] + envelope, "required"
    yield "in params", message(f'{DEFAULT_PARAMS},{session},"session":{A},"sessionId":"$A"'), None
    params = f'"name":"guarded","_meta":{PLAIN},{session},"session":{A}'
    yield "in params of a guarded call", message(params), "required"
    yield "_meta in _meta", call('"guarded"', meta(f'"_meta":{{{session}}}')), "required"
    yield "a session in a session", call('"guarded"', meta(f'{KEY}:{{"session":{A},{session}}}')), "malformed_session"


def absent() -> Rows:
    """Yield values that are null, missing, or of another type."""
    body = '{"jsonrpc":"2.0","id":1,"method":"tools/call"%s}'
    yield "no params", body % "", "required"
    yield "params null", body % ',"params":null', "required"
    for value in ("[]", '"x"', "1", "true", "[{}]"):
        yield f"params {value}", body % f',"params":{value}', "params_not_object"
    yield "_meta null", call(meta="null"), None
    yield "no _meta", message('"name":"open"'), None
    for value in ("[]", '"x"', "1", "false", f"[{WITH_A}]"):
        yield f"_meta {value}", call(meta=value), "meta_not_object"
    for value in ("null", "[]", '"$A"', "1", "{}", '{"sessionId":null}', '{"sessionId":1}', '{"sessionId":["$A"]}'):
        yield f"session {value}", call('"guarded"', meta(f"{KEY}:{value}")), "malformed_session"
    yield "sessionId empty", call('"guarded"', meta(f'{KEY}:{{"sessionId":""}}')), "token_shape"
    yield "sessionId and NUL", call('"guarded"', meta(f'{KEY}:{{"sessionId":"$A\\u0000"}}')), "token_shape"
    yield "state made up", call('"guarded"', meta(f'{KEY}:{{"sessionId":"$A","state":"x"}}')), "state_shape"
    yield "state null", call('"guarded"', meta(f'{KEY}:{{"sessionId":"$A","state":null}}')), None
    yield "no name", message(f'"_meta":{PLAIN}'), "required"
    for value in ("null", "1", "true", '["guarded"]', '{"x":"guarded"}'):
        yield f"name {value}", call(value), "required"
    for value in ('""', '"guarded "', '"guarded\\u0000"', '" guarded"', '"open\\u0000guarded"'):
        yield f"name {value}", call(value), None
    for value in ("null", "[]", "1", '"{}"'):
        yield f"arguments {value}", call(arguments=value), None
    for value in ("null", "1", "[]", "{}", "true"):
        yield f"method {value}", message(method=value), "method_not_string"
    for value in ('"1.0"', "2.0", "null", '"2.0 "', '""'):
        yield f"jsonrpc {value}", OPEN.replace('"2.0"', value), "not_jsonrpc"
    yield "no jsonrpc", OPEN.replace('"jsonrpc":"2.0",', ""), "not_jsonrpc"
    yield "a call that is also a response", message(more=',"result":{}'), None
    yield "a guarded call that is also a response", GUARDED[:-1] + ',"result":{}}', "required"
    yield "a guarded call that is also an error", GUARDED[:-1] + ',"error":{"code":1,"message":""}}', "required"


def ids() -> Rows:
    """Yield ids that servers take for integers, for notifications or for each other."""
    for value in ("1.0", "1e2", "1E0", "-1.5", "-0", "true", "false", "null", "[]", "{}", "[1]"):
        yield value, message(id=value), "id_not_string_or_integer"
        yield f"{value}, guarded", GUARDED.replace('"id":1', f'"id":{value}'), "id_not_string_or_integer"
    for value in ("0", "-1", '""', '"1"', '"\\u0031"', "9007199254740993", "18446744073709551616", '"é"'):
        yield value, message(id=value), None
    yield "400 digits", message(id="9" * 400), None
    yield "5,000 digits", message(id="9" * 5000), None
    yield "NaN", message(id="NaN"), "not_json"


def shapes() -> Rows:
    """Yield batches, white space, and bodies that are not exactly one JSON document."""
    yield "a batch", f"[{OPEN}]", None
    yield "a batch with a guarded call", f"[{OPEN},{GUARDED}]", "batch"
    yield "an empty batch", "[]", "not_jsonrpc"
    yield "a batch in a batch", f"[[{GUARDED}]]", "not_jsonrpc"
    yield "a batch of something else", f"[{OPEN},1]", "batch"
    yield "a batch with another version", f"[{OPEN.replace('2.0', '1.0')},{OPEN}]", "batch"
    for name, space in (("tabs", "\t"), ("lines", "\r\n")):
        yield f"{name} around", f"{space}{GUARDED_WITH_A}{space}", None
        yield f"{name} around, guarded", f"{space}{GUARDED}{space}", "required"
        yield f"{name} between", GUARDED_WITH_A.replace(":", f"{space}:{space}").replace(",", f"{space},{space}"), None
    for name, space in (("a form feed", "\x0c"), ("a no-break space", "\xa0"), ("a line separator", "\u2028")):
        yield f"{name} in front", space + OPEN, "not_json"
        yield f"{name} behind", OPEN + space, "not_json"
    for name, text in {
        "garbage behind": OPEN + "x",
        "a brace too few": OPEN[:-1],
        "two documents": OPEN + GUARDED,
        "a comment": "/**/" + OPEN,
        "single quotes": OPEN.replace('"', "'"),
        "a comma too many": OPEN.replace("{}", '{"x":1,}', 1),
        "nothing": "",
        "a control character in a string": call(arguments='{"x":"\x01"}'),
        "an escape that is none": call(arguments='{"x":"\\x41"}'),
        "Python's words": call(arguments='{"x":None,"y":True}'),
    }.items():
        yield name, text, "not_json"
    for text in ("null", "1", '"x"', "true", "1.5", '"\\ud800"'):
        yield text, text, "not_jsonrpc"
    yield "an empty object", "{}", "not_jsonrpc"
    yield "a DEL in a string", call(arguments='{"x":"\x7f"}'), None
    yield "the document in a string", json.dumps(GUARDED), "not_jsonrpc"


GROUPS: Final = {
    rows.__name__: [
        Case(rows.__name__, name, body if isinstance(body, bytes) else body.encode(), refused)
        for name, body, refused in rows()
    ]
    for rows in (plain, duplicates, encodings, numbers, surrogates, names, nesting, places, absent, ids, shapes)
}
CASES: Final = [case for cases in GROUPS.values() for case in cases]
