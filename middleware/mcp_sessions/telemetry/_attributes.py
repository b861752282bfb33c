"""The names of attributes, the attributes of messages, callers and sessions, and which names there are.

Names are OpenTelemetry's conventions for MCP, as of `CONVENTIONS`; ours begin with `mcp_sessions.`. A client may write
anything into a message, a session id too, so what looks unusual is left out.
"""

from __future__ import annotations

import hashlib
import logging
import re
from base64 import b32encode
from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any, Final

from .._errors import Refusal
from .._protocol.jsonrpc import TARGETS, Message
from .._protocol.policy import HANDSHAKE_METHODS, KNOWN_METHODS
from .._session.claims import MAX_CLIENT_CHARS, Claims, Principal, looks_like_session_id
from .._session.functions import described, is_unfinished
from ._core import MAX_NAME, User

CONVENTIONS: Final = "open-telemetry/semantic-conventions-genai, model/mcp at 5c50d346f1c9"
SCHEMA_URL: Final = "https://opentelemetry.io/schemas/1.44.0"
SCOPE: Final = "mcp_sessions"

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
HTTP_STATUS: Final = "http.response.status_code"
ERROR_TYPE: Final = "error.type"
HTTP: Final = {"network.transport": "tcp", "network.protocol.name": "http"}
HTTP_VERSION: Final = "network.protocol.version"
USER: Final = "user.id"
PSEUDONYM: Final = "enduser.pseudo.id"  # of a session's user, by which tools can group without a name
ERROR_MESSAGE: Final = "error.message"
CLIENT_ADDRESS: Final = "client.address"
INPUT, OUTPUT = "input.value", "output.value"  # OpenInference's; Phoenix and MLflow show them of the outermost span

AUDIENCE: Final = "mcp_sessions.audience"  # the deployment that sessions belong to, as configured
REASON: Final = "mcp_sessions.reason"  # why a request was refused or a session ended: a fixed word
EXPIRES_AT: Final = "mcp_sessions.expires_at"  # Unix seconds
KIND: Final = "mcp_sessions.kind"  # of a remembered session
CLIENT: Final = "mcp_sessions.client"  # the name and version that it states
ENDED_BY: Final = "mcp_sessions.ended_by"  # the client, the application, an operator, or "expiry"
ENDED_BY_NAME: Final = "mcp_sessions.ended_by.name"  # as an operator or the application gives it
DURATION: Final = "mcp_sessions.duration"  # seconds that a session lived
SOURCE: Final = "mcp_sessions.source"  # whose session it is, where it is not ours: "server"

CALL: Final = "tools/call"
TOOL_ERROR: Final = "tool_error"
OTHER: Final = "_OTHER"
TARGET_ATTRIBUTES: Final = {CALL: TOOL, "prompts/get": PROMPT}
LABELS: Final = frozenset({METHOD, TOOL, PROMPT, PSEUDONYM})
METHODS: Final = frozenset(
    "notifications/cancelled notifications/progress notifications/roots/list_changed session/create session/delete "
    "sessions/create sessions/delete sessions/fork sessions/list terminate".split()
).union(HANDSHAKE_METHODS, KNOWN_METHODS)

_MAX_NAMES: Final = 1_000  # tools and prompts that are known; more than any server should have
_MAX_UNLISTED: Final = 100  # beyond which a tool that only fails is not known
_MAX_SESSIONS: Final = 10_000  # of the server's own that are known; the one used longest ago goes first
_MAX_URI: Final = 512
_MAX_ID: Final = 64
_VERSION: Final = re.compile(r"20\d\d-[01]\d-[0-3]\d")
_USERINFO: Final = re.compile(r"(?<=//)[^/?#]*@")
SERVERS: Final = "srv_"
_log: Final = logging.getLogger("mcp_sessions")


def package_version() -> str:
    """Return the version of this package, which its spans name."""
    return str(import_module(__name__.partition(".")[0]).__version__)


# --- sessions and callers ----------------------------------------------------------------------------


def server_ref(server_id: str) -> str:
    """Return the public name of a transport session of the wrapped server, whose id is a credential."""
    digest = hashlib.sha256(b"mcp-sessions/1/server/" + server_id.encode()).digest()
    return SERVERS + b32encode(digest[:15]).decode("ascii").lower()


def caller_attributes(
    user: User, principal: Callable[[Any], Principal | None], scope: Mapping[str, Any]
) -> dict[str, str]:
    """Return who sends a request, as attributes: the user by the application's function, and the network address."""
    client = scope.get("client")
    attributes = {CLIENT_ADDRESS: str(client[0])} if client else {}
    try:
        sender = principal(scope)
        name: object = None if sender is None else user(sender)
    except Exception as error:  # noqa: BLE001  # the request goes on, whatever the application's function does
        _log.warning("cannot add the user to a span: %s", type(error).__name__)
        return attributes
    if isinstance(name, str):
        return {**attributes, USER: name}
    if is_unfinished(name) or name is not None:
        _log.warning("cannot add the user to a span: user= returned %s, not a str or None", described(name))
    return attributes


def pseudonym_of(claims: Claims | None) -> dict[str, str]:
    """Return a keyed hash of a session's user as an attribute; nothing for a session without one."""
    return {} if claims is None or claims.subject is None else {PSEUDONYM: claims.subject[:16]}


# --- messages ----------------------------------------------------------------------------------------


def versions_of(version: str | None, http_version: str | None) -> dict[str, str]:
    """Return the attributes of the transport: the versions of MCP, by its header, and of HTTP."""
    versions = dict(HTTP)
    if http_version is not None:
        versions[HTTP_VERSION] = http_version
    if version is not None and _VERSION.fullmatch(version):
        versions[PROTOCOL_VERSION] = version
    return versions


def message_attributes(message: Message, target: str | None, client: str | None) -> dict[str, str]:
    """Return the attributes of one message that are not the transport's, with its client's own name."""
    attributes = {METHOD: message.label, **target_attributes(message.method, target)}
    if client is not None:
        attributes[CLIENT] = client[:MAX_CLIENT_CHARS]
    if message.id is not None:
        raw = message.id.strip(b'"')
        if len(raw) <= _MAX_ID and b"\\" not in raw:  # not one as long as a credential, or with an escape in it
            attributes[REQUEST_ID] = raw.decode("utf-8", "replace")
    if message.method in TARGETS and message.method not in TARGET_ATTRIBUTES and (uri := _text(message)):
        bare = _USERINFO.sub("", re.split(r"[?#]", uri, maxsplit=1)[0])  # user, query and fragment may be credentials
        if bare:
            attributes[RESOURCE_URI] = bare[:_MAX_URI]
    return attributes


def target_attributes(method: str, target: str | None) -> dict[str, str]:
    """Return the attributes of a tool or a prompt that a message of a method names."""
    operation = {OPERATION: "execute_tool"} if method == CALL else {}
    return operation if target is None else {TARGET_ATTRIBUTES[method]: target, **operation}


def without_transport(attributes: Mapping[str, Any]) -> dict[str, Any]:
    """Return the attributes of a message without those that an HTTP instrumentation writes itself."""
    return {name: value for name, value in attributes.items() if not name.startswith("network.")}


def labels_in(attributes: Mapping[str, Any]) -> dict[str, Any]:
    """Return the attributes that say what a message is, without its transport and its client."""
    return {name: value for name, value in attributes.items() if name in LABELS}


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


class KnownNames:
    """The tools, prompts and transport sessions that the server has, as far as its answers show.

    Any client can name others: each tool would be a new name of spans and a new series of metrics, each session one
    that never was.
    """

    def __init__(self) -> None:
        self._names: Final[set[tuple[str, str]]] = set()
        self._sessions: Final[dict[str, None]] = {}

    def learn_session(self, server_id: str) -> str:
        """Add a transport session that the server names in its answer, and return its public name."""
        ref = server_ref(server_id)
        self._sessions.pop(ref, None)
        self._sessions[ref] = None
        if len(self._sessions) > _MAX_SESSIONS:
            del self._sessions[next(iter(self._sessions))]
        return ref

    def session(self, server_id: str | None) -> str | None:
        """Return the public name of a transport session that a client names, or None for one that is not known."""
        if server_id is None or server_ref(server_id) not in self._sessions:
            return None
        return self.learn_session(server_id)

    def learn(self, method: str, target: str, *, fails: bool = False) -> None:
        """Add a name that the server lists, or that it has served; or of a tool that itself `fails`.

        A server may word an answer so for a tool that it does not have.
        """
        if len(self._names) < (_MAX_UNLISTED if fails else _MAX_NAMES):
            self._names.add((method, target))

    def bounded(self, method: str, target: str) -> str:
        """Return a target that is known, `_OTHER` for another one."""
        return target if (method, target) in self._names else OTHER

    def span_name(self, method: str, target: str | None) -> str:
        """Return the name of a message's span."""
        name = method if method in METHODS else OTHER
        return name if target is None else f"{name} {self.bounded(method, target)}"
