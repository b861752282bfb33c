"""Reading a JSON-RPC message so that no other parser can read it differently.

Only what sessions need is decoded: the envelope, the member of `params` that names a tool, prompt or resource, and
`_meta`; every value stays the slice of the body that it was. Source: JSON-RPC 2.0 sections 4 to 6.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from enum import Enum
from functools import lru_cache
from typing import Final, Literal, TypeAlias, TypeVar

import msgspec
from msgspec import UNSET, Raw, UnsetType
from msgspec.structs import astuple

from .._errors import Refusal
from .._refusals import NOT_JSONRPC, refusal
from .._session.claims import RedactedRepr
from . import strict_json
from .strict_json import DECODE_ERRORS, NULL, SPACE, check_level, few_members, has_no_other_members, join, string

SESSION_KEY: Final = "io.modelcontextprotocol/session"
PROTOCOL_VERSION_KEY: Final = "io.modelcontextprotocol/protocolVersion"
CLIENT_INFO_KEY: Final = "io.modelcontextprotocol/clientInfo"
CLIENT_CAPABILITIES_KEY: Final = "io.modelcontextprotocol/clientCapabilities"

# The member of `params` that names what a method acts on.
TARGETS: Final[dict[str, Literal["name", "uri"]]] = {
    "tools/call": "name",
    "prompts/get": "name",
    "resources/read": "uri",
    "resources/subscribe": "uri",
    "resources/unsubscribe": "uri",
}
_ENVELOPE: Final = strict_json.Names("jsonrpc", "id", "method", "params", "result", "error", "sessionId")
_ONLY_VERSION: Final = strict_json.Names("jsonrpc")  # of what may be no message at all
_PARAMS: Final = strict_json.Names(
    *("_meta", "name", "uri", "clientInfo", "protocolVersion", "capabilities", "cursor", "requestId", "sessionId")
)
_META: Final = strict_json.Names(
    *(SESSION_KEY, PROTOCOL_VERSION_KEY, CLIENT_CAPABILITIES_KEY, "baggage", "traceparent", "tracestate")
)
_VERSION: Final = Raw(b'"2.0"')

_value = msgspec.json.Decoder(Raw).decode

Value: TypeAlias = Raw | UnsetType
_Members: TypeAlias = "dict[str, Raw] | None"
_T = TypeVar("_T", bound=msgspec.Struct)
_LABEL: Final = re.compile(r"[A-Za-z0-9_/$-]{0,64}")  # no dot, so no session id
# Or a letter of it, escaped or in a form that folds to it.
_MAY_BE_MESSAGE: Final = re.compile(
    rb"jsonrpc|\\u00(?:[46][3aef]|[57][023])|\\u017f|" + "\u017f".encode(), re.IGNORECASE
)


class MessageKind(Enum):
    """What a JSON-RPC message is."""

    REQUEST = "request"
    NOTIFICATION = "notification"
    RESPONSE = "response"  # anything without `method`: a client's answer to a request of the server


REQUEST, NOTIFICATION, RESPONSE = MessageKind


class Meta(RedactedRepr, msgspec.Struct, omit_defaults=True, frozen=True, gc=False, forbid_unknown_fields=True):
    """The members that the `_meta` of most requests has, each value as sent."""

    session: Value = msgspec.field(default=UNSET, name=SESSION_KEY)
    protocol_version: Value = msgspec.field(default=UNSET, name=PROTOCOL_VERSION_KEY)
    client_info: Value = msgspec.field(default=UNSET, name=CLIENT_INFO_KEY)
    client_capabilities: Value = msgspec.field(default=UNSET, name=CLIENT_CAPABILITIES_KEY)
    progress_token: Value = msgspec.field(default=UNSET, name="progressToken")
    traceparent: Value = UNSET
    tracestate: Value = UNSET
    baggage: Value = UNSET

    @property
    def named(self) -> bytes | None:
        return None if self.session is UNSET else bytes(self.session)


class Params(RedactedRepr, msgspec.Struct, omit_defaults=True, frozen=True, gc=False):
    """The members that the `params` of MCP's common methods have, each value as sent."""

    name: Value = UNSET
    uri: Value = UNSET
    arguments: Value = UNSET
    cursor: Value = UNSET
    protocol_version: Value = msgspec.field(default=UNSET, name="protocolVersion")
    capabilities: Value = UNSET
    client_info: Value = msgspec.field(default=UNSET, name="clientInfo")
    meta: Meta | None = msgspec.field(default=None, name="_meta")


NO_PARAMS: Final = Params()
_FIELDS: Final[Mapping[type, Mapping[str, str]]] = {
    kind: dict(zip(kind.__struct_encode_fields__, kind.__struct_fields__, strict=True)) for kind in (Meta, Params)
}


class Message(RedactedRepr, msgspec.Struct, frozen=True, gc=False):
    """One JSON-RPC message, read as far as sessions need it."""

    body: bytes  # as it came
    kind: MessageKind
    method: str = ""  # empty for a response
    id: bytes | None = None  # JSON text; None unless this is a request
    session: bytes | None = None  # what names its session in `params._meta`, well-formed or not, as sent
    params: Params = NO_PARAMS  # the common members, values as sent
    field: Raw | None = None  # the top-level member `sessionId` as sent; MCP itself knows none

    @property
    def all_params(self) -> dict[str, Raw]:
        """Every member of the `params` of a request or notification, values as sent; empty where absent or null."""
        return _inner(few_members(self.body), "params", "params_not_object") or {}

    @property
    def meta(self) -> dict[str, Raw] | None:
        """Every member of `params._meta`, values as sent; None where absent or null."""
        return None if self.params.meta is None else _inner(self.all_params, "_meta", "meta_not_object")

    def target(self) -> str | None:
        """Return the tool, prompt or resource that the message acts on, or None; refuse one without a UTF-8 form."""
        name = TARGETS.get(self.method)
        target: Value = UNSET if name is None else getattr(self.params, name)
        return None if target is UNSET else string(target)

    @property
    def label(self) -> str:
        """The method for logs, where it is spelt as methods are: a client may write anything there, even an id."""
        return self.method if self.method in TARGETS or _LABEL.fullmatch(self.method) else "(unusual method)"

    def __repr__(self) -> str:  # without the body, which holds credentials
        return f"<Message {self.kind.value} {self.label}>"


class _Envelope(RedactedRepr, msgspec.Struct, omit_defaults=True, gc=False):
    """A request or notification as nearly every client writes it."""

    jsonrpc: Literal["2.0"]
    method: str
    id: int | str | UnsetType = UNSET
    params: Params | None = None


_common = msgspec.json.Decoder(_Envelope).decode


class Batch(Exception):
    """There are several messages in one body (MCP 2025-03-26 only)."""

    def __init__(self, items: tuple[Message, ...]) -> None:
        super().__init__("several messages")
        self.items: Final = items


MAX_BATCH: Final = 100
_MANY: Final = 10_000  # items, more than which no class has fields for
MAX_NESTING: Final = 1_000


def parse(body: bytes, max_batch: int = MAX_BATCH, max_nesting: int = MAX_NESTING) -> Message:
    """Read the body of one POST.

    Args:
        body: The whole body, already bounded in size.
        max_batch: Messages that a batch may hold.
        max_nesting: Levels of arrays and objects in the body.

    Raises:
        Batch: It holds several messages.
        Refusal: `not_json`, `not_utf8`, `byte_order_mark`, `nesting_too_deep`, `not_jsonrpc`, `batch`,
            `too_many_members`, `batch_too_large`, `duplicate_member`, `member_case`, `lone_surrogate`,
            `method_not_string`, `id_not_string_or_integer`, `params_not_object` or `meta_not_object`.
    """
    size = len(body)
    if size > max_nesting and strict_json.is_deeper(body, max_nesting):
        raise refusal("nesting_too_deep")
    if not body.isascii():
        strict_json.check_utf8(body)
    # In one go where a message has common members only and each once, else level by level.
    try:
        found = _common(body)
    except DECODE_ERRORS:
        return _other(body, max_batch)
    # A null is not written again, and so comes out as too short, too; only their text distinguishes 0 and -0.
    if not has_no_other_members(body, found) or found.id == 0:
        return _message(body)
    params = found.params or NO_PARAMS
    session = None if params.meta is None or params.meta.session is UNSET else bytes(params.meta.session)
    if found.id is UNSET:
        return Message(body, NOTIFICATION, found.method, None, session, params)
    return Message(body, REQUEST, found.method, join(found.id), session, params)


def _other(body: bytes, max_batch: int) -> Message:
    first = body.lstrip(SPACE)[:1]
    # Where the path serves other things too, objects that cannot be a message pass, however many members they have.
    if first == b"{" and _MAY_BE_MESSAGE.search(body):
        return _message(body)
    if first == b"[":
        raise _batch(body, max_batch)
    try:
        _value(body)
    except DECODE_ERRORS as error:
        strict_json.decode_with_surrogates(_value, error, body, NOT_JSONRPC)
    raise refusal(NOT_JSONRPC)


def _batch(body: bytes, max_batch: int) -> Batch:
    first_items = _first_items(max_batch + 1)
    try:
        items = first_items(body)
    except DECODE_ERRORS as error:
        found, mask = strict_json.decode_with_surrogates(first_items, error, body, NOT_JSONRPC)
        items = mask.unmask(found)
    # Where the path serves other things too, arrays that cannot hold a message pass, whatever their length.
    if not _MAY_BE_MESSAGE.search(body):
        raise refusal(NOT_JSONRPC)
    if len(items) > max_batch:
        raise refusal("batch_too_large")
    read: list[Message] = []
    for item in items:
        try:
            read.append(_message(bytes(item)))
        except Refusal as refused:
            if refused.reason != NOT_JSONRPC:
                raise
    if not read:
        raise refusal(NOT_JSONRPC)
    if len(read) < len(items):
        raise refusal("batch")  # a server could skip what is not a message and execute the rest
    return Batch(tuple(read))


@lru_cache(maxsize=16)
def _first_items(number: int) -> Callable[[bytes], list[Raw]]:
    """Return what reads so many items of an array at most: the others are checked, and never built."""
    if number > _MANY:
        return msgspec.json.Decoder(list[Raw]).decode
    fields = [(f"item_{place}", Value, UNSET) for place in range(number)]
    decode = msgspec.json.Decoder(msgspec.defstruct("Items", fields, array_like=True)).decode
    return lambda body: [item for item in astuple(decode(body)) if item is not UNSET]


def _message(body: bytes) -> Message:
    envelope = few_members(body)
    version = envelope.get("jsonrpc")
    if version is None:
        _ONLY_VERSION.check(envelope)
        raise refusal(NOT_JSONRPC)
    if version != _VERSION and string(version) != "2.0":
        check_level(body, envelope)  # another parser may take the first of two versions
        _ONLY_VERSION.check(envelope)
        raise refusal(NOT_JSONRPC)
    _ENVELOPE.check(envelope)
    field = envelope.get("sessionId")
    if "method" not in envelope:
        _check_distinct(body, envelope, None, None)
        return Message(body, RESPONSE, field=field)
    method = string(envelope["method"])
    if method is None:
        raise refusal("method_not_string")
    params = _inner(envelope, "params", "params_not_object")
    meta = None if params is None else _inner(params, "_meta", "meta_not_object")
    _check_distinct(body, envelope, params, meta)
    _PARAMS.check(params or ())
    _META.check(meta or ())
    request_id = None if "id" not in envelope else _checked_id(envelope["id"])
    common = None if meta is None else _taken(Meta, meta)
    read = _taken(Params, {**(params or {}), "_meta": common})
    session = None if common is None else common.named
    return Message(body, NOTIFICATION if request_id is None else REQUEST, method, request_id, session, read, field)


def _taken(kind: type[_T], members: Mapping[str, object]) -> _T:
    """Return a struct of those members that it has a field for."""
    return kind(**{field: members[name] for name, field in _FIELDS[kind].items() if name in members})


def _inner(outer: dict[str, Raw], name: str, wrong: str) -> _Members:
    raw = outer.get(name, NULL)
    return None if raw == NULL else few_members(raw, wrong)


def _checked_id(raw: Raw) -> bytes:
    # Text or digits: 1, 1.0 and 1e0 are one id to some parsers and three to others, and -0 is answered with 0.
    text = bytes(raw)
    if (text.removeprefix(b"-").isdigit() and text != b"-0") or string(raw) is not None:
        return text
    raise refusal("id_not_string_or_integer")


def _check_distinct(body: bytes, envelope: dict[str, Raw], params: _Members, meta: _Members) -> None:
    """Refuse a member that is given twice: one proof for all three levels, and where it fails one for each."""
    inner = params if params is None or meta is None else {**params, "_meta": meta}
    if has_no_other_members(body, envelope if inner is None else {**envelope, "params": inner}):
        return
    check_level(body, envelope)
    if params is not None:
        check_level(envelope["params"], params)
    if params is not None and meta is not None:
        check_level(params["_meta"], meta)
