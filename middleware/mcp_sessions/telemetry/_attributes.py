"""The names of attributes, and the attributes of sessions and messages.

Names are OpenTelemetry's, from its semantic conventions for MCP, GenAI, JSON-RPC and sessions; ours begin with
`mcp_sessions.`. A client may write anything into a message, a session id too, so what looks unusual is left out.
"""

from __future__ import annotations

import hashlib
import logging
import re
from base64 import b32encode
from collections.abc import Callable, Collection, Mapping
from functools import lru_cache
from importlib import import_module
from types import MappingProxyType
from typing import Any, Final, TypeAlias

import msgspec
from msgspec import UNSET, Raw
from opentelemetry import baggage
from opentelemetry.context import Context, create_key, set_value
from opentelemetry.trace import SpanContext, get_current_span

from .._errors import Refusal
from .._protocol.jsonrpc import REQUEST, TARGETS, Message
from .._protocol.labels import client_of
from .._protocol.members import Meta, Params
from .._session.claims import MAX_CLIENT_CHARS, Principal, looks_like_session_id
from . import User
from ._context import SPAN, start_of, with_session

SCOPE: Final = "mcp_sessions"
SCHEMA_URL: Final = "https://opentelemetry.io/schemas/1.44.0"
SESSION_ID: Final = "session.id"
MCP_SESSION_ID: Final = "mcp.session.id"

METHOD: Final = "mcp.method.name"
PROTOCOL_VERSION: Final = "mcp.protocol.version"
RESOURCE_URI: Final = "mcp.resource.uri"
TOOL: Final = "gen_ai.tool.name"
PROMPT: Final = "gen_ai.prompt.name"
OPERATION: Final = "gen_ai.operation.name"
REQUEST_ID: Final = "jsonrpc.request.id"
STATUS_CODE: Final = "rpc.response.status_code"
ERROR_TYPE: Final = "error.type"

AUDIENCE: Final = "mcp_sessions.audience"  # the deployment that sessions belong to, as configured
REASON: Final = "mcp_sessions.reason"  # why a request was refused or a session ended: a fixed word
EXPIRES_AT: Final = "mcp_sessions.expires_at"  # Unix seconds
CLIENT: Final = "mcp_sessions.client"  # its own name and version
DURATION: Final = "mcp_sessions.duration"  # seconds that a session lived
SOURCE: Final = "mcp_sessions.source"  # whose session it is, where it is not ours: "server"
USER: Final = "user.id"
CLIENT_ADDRESS: Final = "client.address"
CLIENT_PORT: Final = "client.port"

CALL: Final = "tools/call"
EXECUTE_TOOL: Final = "execute_tool"
TOOL_ERROR: Final = "tool_error"
HTTP: Final = {"network.transport": "tcp", "network.protocol.name": "http"}
HTTP_VERSION: Final = "network.protocol.version"
TARGET_ATTRIBUTES: Final = {CALL: TOOL, "prompts/get": PROMPT}

_RESOURCE_METHODS: Final = TARGETS.keys() - TARGET_ATTRIBUTES.keys()
MAX_NAME: Final = 128  # characters; the protocol's own limit for a tool's name
_NETWORK: Final = "network."
_MAX_URI: Final = 512
_MAX_ID: Final = 64
_VERSION: Final = re.compile(r"20\d\d-[01]\d-[0-3]\d")
_USERINFO: Final = re.compile(r"(?<=//)[^/?#]*@")
_FOREIGN: Final = create_key("mcp_sessions.foreign")
_BAGGAGE: Final = next(iter(baggage.set_baggage("any", "", Context())))  # the API's own key
_SERVERS: Final = "srv_"
_REF: Final = re.compile(r"(ses|srv)_[a-z2-7]{24}")
_log: Final = logging.getLogger("mcp_sessions")

process_aliases: Final[dict[str, None]] = {}
"""The aliases of all span processors of this process, which the middleware's own spans carry as well."""


def package_version() -> str:
    """Return the version of this package, which its spans name."""
    return str(import_module(__name__.partition(".")[0]).__version__)


@lru_cache(maxsize=2048)
def session_attributes(ref: str, aliases: tuple[str, ...], is_foreign: bool) -> Mapping[str, str]:
    """Return the attributes that name a session on a span, only `mcp.session.id` where `session.id` is foreign."""
    names = (MCP_SESSION_ID,) if is_foreign else (SESSION_ID, MCP_SESSION_ID, *aliases)
    attributes = dict.fromkeys(names, ref)
    return MappingProxyType({**attributes, SOURCE: "server"} if ref.startswith(_SERVERS) else attributes)


def server_ref(transport_id: str) -> str:
    """Return the public name of a transport session of the wrapped server, whose id is a credential."""
    digest = hashlib.sha256(b"mcp-sessions/1/server/" + transport_id.encode()).digest()
    return _SERVERS + b32encode(digest[:15]).decode("ascii").lower()


def inherited_ref(context: Context) -> str | None:
    """Return the session that the span of a context names, where that is of this process, or None."""
    ref = attributes_on(get_current_span(context)).get(MCP_SESSION_ID)
    return ref if isinstance(ref, str) and _REF.fullmatch(ref) else None


def with_foreign_marker(context: Context) -> Context:
    """Return a context that marks a foreign `session.id` for a session that is created in it."""
    return set_value(_FOREIGN, True, context) if has_foreign_session_id({}, "", context) else context


def has_foreign_session_id(span: Mapping[str, object], ref: str | None, parents: Context) -> bool:
    """Whether `session.id` on a span that starts is not ours to set: tools give a trace to the first session in it.

    What counts are the span's attributes so far, and the context of its parent.
    """
    found = span.get(SESSION_ID)
    if _FOREIGN in parents:
        return True
    if not found and _BAGGAGE in parents:
        found = baggage.get_baggage(SESSION_ID, parents)
    if found:
        return found != ref
    parent: Mapping[str, object] = attributes_on(parents.get(SPAN))
    above = parent.get(SESSION_ID)
    if above is None:  # a parent that was left without it: the baggage that decided so may have ended there
        return parent.get(MCP_SESSION_ID) == ref
    return above not in (ref, parent.get(MCP_SESSION_ID))


def attributes_on(span: Any) -> Mapping[str, Any]:
    """Return the attributes of a span as they are, and as they become; nothing for one of another process."""
    found: Mapping[str, Any] | None
    try:
        found = span._attributes._dict  # noqa: SLF001  # the SDK's; the view that it gives takes six times as long
    except AttributeError:
        found = getattr(span, "attributes", None)
    return {} if found is None else found


def write(span: Any, attributes: Mapping[str, str]) -> None:
    """Write short texts on a span.

    OpenTelemetry's SDK takes some 6,000 instructions for each, to look at its type and at limits. Where it has no limit
    that they could reach, they are put at once into the dictionary that it keeps until the span ends.
    """
    try:
        held = span._attributes  # noqa: SLF001
        kept, is_open = held._dict, held.max_value_len is None and not held._immutable  # noqa: SLF001
        if is_open and (held.maxlen is None or len(kept) + len(attributes) <= held.maxlen):
            kept.update(attributes)
            return
    except AttributeError:
        pass
    span.set_attributes(attributes)


class Call(msgspec.Struct, frozen=True):
    """What the spans of messages have in common that call the same in one session."""

    name: str
    named: tuple[dict[str, str], dict[str, str]]  # what it calls and its session; the second: `session.id` is foreign
    more: dict[str, str]  # what else our span says
    common: dict[str, str]  # all that names no session
    beside_http: dict[str, str]  # those of them that are not on the span of an HTTP instrumentation, either
    parent: Context  # where the message brings no trace context and there is no current span
    start: SpanContext | None  # the session's


Sent: TypeAlias = "tuple[str | None, str | None, str | bytes | None, str | None]"
"""The versions of MCP and HTTP, the client, and the traceparent of its session's start."""


def make_call(
    aliases: Collection[str], method: str, name: bytes, ref: str | None, sent: Sent = (None, None, None, None)
) -> Call:
    """Return what messages have in common.

    The name is JSON text, and so is a client's as a message brings it; as its session has it, it is a plain one.
    """
    version, http_version, client, trace = sent
    message = Message(b"", REQUEST, method, params=Params(name=Raw(name) if name else UNSET))
    label, target = message.label, target_of(message)
    labels = {METHOD: label}
    if target is not None:
        labels[TARGET_ATTRIBUTES[label]] = target
    common = {**labels, **HTTP}
    if http_version is not None:
        common[HTTP_VERSION] = http_version
    if version is not None and _VERSION.fullmatch(version):
        common[PROTOCOL_VERSION] = version
    if label == CALL:
        common[OPERATION] = EXECUTE_TOOL
    if isinstance(client, bytes):
        given = Params(client_info=Raw(client), meta=Meta(client_info=Raw(client)))
        client = client_of(Message(b"", REQUEST, method, params=given))
    if client is not None:
        common[CLIENT] = client[:MAX_CLIENT_CHARS]
    ours, foreign = ({}, {}) if ref is None else (session_attributes(ref, tuple(aliases), it) for it in (False, True))
    return Call(
        label if target is None else f"{label} {target}",
        ({**labels, **ours}, {**labels, **foreign}),
        {key: value for key, value in common.items() if key not in labels},
        common,
        {key: value for key, value in common.items() if not key.startswith(_NETWORK)},
        Context() if ref is None else with_session(ref, Context()),
        start_of(trace),
    )


def message_attributes(common: dict[str, str], message: Message) -> dict[str, str]:
    """Return the attributes of one message: a copy of the common ones with its id and its resource."""
    attributes = common.copy()
    if message.id is not None:
        raw = message.id.strip(b'"')
        if len(raw) <= _MAX_ID and b"\\" not in raw:  # not one as long as a credential, or with an escape in it
            attributes[REQUEST_ID] = raw.decode("utf-8", "replace")
    if message.method in _RESOURCE_METHODS and (uri := _text(message)):
        bare = _USERINFO.sub("", re.split(r"[?#]", uri, maxsplit=1)[0])  # user, query and fragment may be credentials
        if bare:
            attributes[RESOURCE_URI] = bare[:_MAX_URI]
    return attributes


def target_of(message: Message) -> str | None:
    """Return the tool or prompt that a message names; None for other messages and for unusual names."""
    text = _text(message) if message.method in TARGET_ATTRIBUTES else None
    return None if text is None else text[:MAX_NAME]


def _text(message: Message) -> str | None:
    try:
        text = message.target()
    except Refusal:  # a lone surrogate, which no exporter could write
        return None
    return None if text is None or not text.isprintable() or looks_like_session_id(text) else text


class Who:
    """Who sends a request, as attributes: the user by the application's function, and the network address."""

    def __init__(self, user: User, principal: Callable[[Any], Principal | None]) -> None:
        self._user: Final = user
        self._principal: Final = principal

    def __call__(self, scope: Mapping[str, Any]) -> dict[str, str | int]:
        client = scope.get("client")
        attributes: dict[str, str | int] = {CLIENT_ADDRESS: str(client[0]), CLIENT_PORT: client[1]} if client else {}
        try:
            principal = self._principal(scope)
            user = None if principal is None else self._user(principal)
        except Exception as error:  # noqa: BLE001  # the request goes on, whatever the application's function does
            _log.warning("cannot add the user to a span: %s", type(error).__name__)
            return attributes
        return attributes if user is None else {**attributes, USER: str(user)}
