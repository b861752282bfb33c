"""`Request`: what the stations of one request and the dialects share.

The wrapped application sees the scope that the server made for this request, whose headers are edited in place;
middleware outside sees the edits afterwards.
"""

from __future__ import annotations

import json
import sys
from functools import partial
from time import perf_counter
from typing import TYPE_CHECKING, Any, Final, NamedTuple
from urllib.parse import quote, unquote

import msgspec
from starlette.types import ASGIApp, Receive, Scope, Send
from starlette.types import Message as ASGIMessage

from .._errors import ConfigurationError, SessionEnded, SessionExpired, SessionNotFound
from .._protocol import rewrite
from .._protocol.headers import (
    ACCEPT_CODING,
    HANDSHAKE_VERSIONS,
    LAST_EVENT_ID,
    LENGTH,
    SESSION_HEADER,
    Header,
    RequestHeaders,
    edit,
    pop_event_ids,
    single_header,
)
from .._protocol.jsonrpc import Message
from .._protocol.labels import correlation_of
from .._protocol.origins import is_own_page
from .._protocol.proxies import stripped_prefix, trusts_proxy
from .._refusals import refusal as refusal_for
from .._session.claims import Claims, Principal, RedactedRepr
from .._session.events import RequestRefused
from .._session.session import Session
from ..telemetry._core import attributes_of
from .credentials import NoCredential
from .logs import caller_of, warns_of_client
from .observers import UNWATCHED, Watching
from .principal import from_scope, is_unseen

if TYPE_CHECKING:
    from .._errors import Refusal
    from .resumption import Call
    from .runtime import Runtime

_ENCODING: Final = b"transfer-encoding"
_OWNER_LEARNS: Final = (SessionExpired, SessionEnded)
_UNESCAPED: Final = "/:@!$&'()*+,=~"  # in a path, but for the semicolon, which ends an attribute of a cookie
# ASGI extensions by which a body would leave without passing here
ZERO_COPY_EXTENSIONS: Final = frozenset({"http.response.pathsend", "http.response.zerocopysend"})


class Caller(NamedTuple):
    """The caller of a request, read before the wrapped server can change the user on the scope."""

    principal: Principal | None
    is_unseen: bool  # it has credentials, but nothing shows whose they are
    error: Exception | None  # of `principal=`, in place of both


class Request(RedactedRepr, msgspec.Struct, eq=False):
    """One request to the endpoint, handed from station to station, and to the dialects."""

    runtime: Runtime
    app: ASGIApp  # the wrapped application, behind what dialects put in front of it
    scope: Scope  # the session is put on it
    receive: Receive
    send: Send
    headers: RequestHeaders
    at_endpoint: bool = False  # every POST is MCP; if False, the path may serve other things, too
    body: bytes = b""  # as it came, with its credentials, once it is read; only here, since this does not print it
    message: Message | None = None  # the JSON-RPC message, once it is read
    credentials: dict[str, str] = {}  # taken out of the headers, by the name of their dialect
    sent_id: str | None = None  # the session id in the message, which a refusal repeats to its sender
    absent: NoCredential | None = None  # why nothing identifies its session
    is_answered: bool = False  # a dialect answers it in place of the wrapped server
    is_reached: bool = False  # on a handshake: a dialect says that its client creates sessions in that way
    client_capabilities: bytes | None = None  # a JSON object, to be stored with a session that is created
    attaches: bool = False  # the application sees the session
    session: Session | None = None  # once it is open
    beside: tuple[Claims, ...] = ()  # sessions that it carries besides
    outgoing: bytes = b""  # the body as the application gets it
    has_body: bool = False  # the body was read, and the application has not received it yet
    claims: Claims | None = None  # of the session that a request without a message belongs to, once they are verified
    call: Call | None = None  # whose stream a GET listens to, or resumes
    label: str | None = None  # as which the log has a refusal of a request without a message
    upstream_id: str | None = None  # the wrapped server's transport session, if it is sealed in the session
    admitting_statuses: frozenset[int] = frozenset()  # of the wrapped server, after which our refusal is still sent
    notes: dict[str, Any] = {}  # what dialects remember between their hooks; each struct has another dict
    arrived_at: float = msgspec.field(default_factory=perf_counter)
    watch: Watching = UNWATCHED  # what observers learn of it
    caller: Caller | None = None  # once it is read

    @property
    def current_message(self) -> Message:
        """The message of a request that has one."""
        assert self.message is not None
        return self.message

    async def receive_body(self) -> ASGIMessage:
        """Return the whole body once, and from then on what the server's own `receive` returns."""
        if not self.has_body:
            return await self.receive()
        body, self.outgoing, self.has_body = self.outgoing, b"", False
        return {"type": "http.request", "body": body, "more_body": False}

    def extract_event_id(self) -> None:
        """Take the event id from which a GET resumes out of the headers; to other methods it means nothing.

        Raises:
            Refusal: There are several, and two readers may take different ones.
        """
        method = self.scope.get("method")  # None for a websocket, whose server may read it all the same
        if method is None or (method == "POST" and LAST_EVENT_ID not in self.headers.by_name):
            return
        event_ids, others = pop_event_ids(self.scope["headers"])
        if event_ids:
            self.scope["headers"] = others
            if method == "GET":
                self.headers.event_id = single_header(event_ids, "duplicate_event_header") or None

    @property
    def is_own_page(self) -> bool:
        """True if the sender may use what a browser adds by itself: a cookie, or the session of its user."""
        return is_own_page(self.headers, self.scope.get("scheme", "http"))

    @property
    def principal(self) -> Principal | None:
        """The authenticated caller."""
        if self.caller is None:
            return self.runtime.principal(self.scope)
        if self.caller.error is not None:
            raise self.caller.error
        return self.caller.principal

    @property
    def is_unseen(self) -> bool:
        """True if the request has credentials, but nothing shows whose they are."""
        if self.caller is None:
            return is_unseen(self.runtime.principal, self.scope, self.headers.by_name)
        return self.caller.is_unseen

    def read_caller(self) -> None:
        """Read who the caller is, once, since the wrapped server may change the scope."""
        if self.caller is None:
            try:
                self.caller = Caller(self.principal, self.is_unseen, None)
            except Exception as error:  # noqa: BLE001  # it counts when the answer does
                self.caller = Caller(None, False, error.with_traceback(None))

    def user_or_warn(self) -> Principal | None:
        """Return the authenticated caller if it is one user, for whom sessions may be found by nothing else.

        The log warns, once, of one that is an OAuth client.
        """
        principal = self.principal
        return None if principal is None or warns_of_client(principal) else principal

    def check_principal(self) -> None:
        """Check that `principal=` names callers, also for a request that needs no principal.

        What the function itself raises counts when its answer does: the wrapped server may refuse such a caller.
        """
        if self.runtime.principal is not from_scope:
            self.read_caller()
            if self.caller is not None and isinstance(self.caller.error, ConfigurationError):
                raise self.caller.error

    @property
    def trusts_proxy(self) -> bool:
        """Whether the server has shown that it trusts the proxy that the request came by."""
        return trusts_proxy(self.headers, self.scope.get("client"))

    @property
    def is_secure(self) -> bool:
        return self.scope.get("scheme") == "https"

    @property
    def client_path(self) -> str:
        """The path of the request as its client writes it, without a slash at the end."""
        path, root = self.scope["path"], self.scope.get("root_path", "")
        whole: str = path if path.startswith(root) else root + path  # a proxy may have taken the root path off
        prefix = unquote(stripped_prefix(self.headers)) if self.trusts_proxy else ""
        if prefix and not f"{root}/".startswith(f"{prefix}/"):
            whole = prefix + whole
        return quote(whole.rstrip("/") or "/", safe=_UNESCAPED, errors="replace")

    @property
    def server_id(self) -> str | None:
        """The id of the wrapped server's transport session that the request belongs to, or None."""
        if self.upstream_id is not None:
            return self.upstream_id
        sent = None if self.headers.session_id is not None else self.headers.by_name.get(SESSION_HEADER)
        return None if sent is None else sent.decode("latin-1")

    def edit_headers(self, dropped: set[bytes], *added: Header) -> None:
        """Replace headers that the application sees."""
        self.scope["headers"] = edit(self.scope["headers"], drop=dropped, add=added)

    def prepare_headers(self, *, wants_whole: bool) -> None:
        """Let the headers announce the body as the application gets it, and the trace context that it names.

        Args:
            wants_whole: True if the answer may be changed, so it must be neither compressed nor sent as a file.
        """
        dropped: set[bytes] = set()
        added: list[Header] = []
        if wants_whole:
            if ACCEPT_CODING in self.headers.by_name:
                dropped.add(ACCEPT_CODING)
            extensions = self.scope.get("extensions")
            if extensions and not ZERO_COPY_EXTENSIONS.isdisjoint(extensions):
                retained = {name: value for name, value in extensions.items() if name not in ZERO_COPY_EXTENSIONS}
                self.scope["extensions"] = retained
        if self.has_body and self.outgoing is not self.body:
            dropped |= {LENGTH, _ENCODING}
            added.append((LENGTH, b"%d" % len(self.outgoing)))
        if (traceparent := self.watch.traceparent) is not None:
            dropped |= {b"traceparent", b"tracestate"}
            added.append((b"traceparent", traceparent.encode()))
        if dropped:
            self.scope["headers"] = [header for header in self.scope["headers"] if header[0] not in dropped] + added

    def record_refused(self, refusal: Refusal, method: str | None) -> None:
        """Record that the request, or a message in it, is refused; a warning of attacks names who sent it."""
        event = RequestRefused(refusal.reason, refusal.code, method, refusal.ref, refusal.claim)
        self.runtime.observers.refused(event, partial(caller_of, self.scope, self.runtime.principal))

    def refusal_body(self, refusal: Refusal) -> bytes:
        """Record that the message is refused, and return the error as JSON."""
        message = self.current_message
        self.record_refused(refusal, message.label)
        self.watch.refuse(refusal)
        return rewrite.error(message.id, refusal.code, refusal.client_message, self._error_data(refusal))

    def _error_data(self, refusal: Refusal) -> dict[str, Any] | None:
        """Return `error.data`: also the id as its sender wrote it, or the versions that are spoken."""
        if refusal.reason == "modern_era":
            return {"supported": sorted(HANDSHAKE_VERSIONS), "requested": self.headers.modern_version}
        if not isinstance(refusal, SessionNotFound):
            return error_data(refusal)
        sent_id = refusal.sent_id or self.sent_id
        return {**({} if sent_id is None else {"sessionId": sent_id}), **(error_data(refusal) or {})}


def error_data(refusal: Refusal) -> dict[str, Any] | None:
    """Return the reason, for the owner of a session that has ended, and whether the call may have run; or None."""
    reason = {"reason": refusal.reason} if isinstance(refusal, _OWNER_LEARNS) else {}
    return {**reason, **({"executed": True} if refusal.executed else {})} or None


def session_header_values(start: ASGIMessage) -> list[str]:
    """Return the transport sessions that the start of a response names."""
    return [value.decode("latin-1") for name, value in start.get("headers", ()) if name.lower() == SESSION_HEADER]


def record_correlation(request: Request, session: Session | None) -> None:
    """Store the name that the client gives its conversation for handlers, and set it on the current span."""
    correlation = correlation_of(request.runtime.correlate, request.current_message.meta, request.headers.first)
    tracing = sys.modules.get("opentelemetry.trace")  # if it was never imported, nothing traces
    if correlation is not None and tracing is not None:  # spans below the current one are stamped at their start
        tracing.get_current_span().set_attributes(attributes_of(correlation))
    if session is None:
        request.scope["mcp_correlation"] = correlation
    else:
        session.correlation = correlation


def carried_session(request: Request) -> Session:
    """Return the session that a request carries, whose method needs one."""
    assert request.session is not None
    return request.session


def params_of(request: Request) -> dict[str, Any]:
    """Return the members of `params` but `_meta`, as Python values, or refuse with `invalid_params`."""
    try:
        params = json.loads(request.current_message.body).get("params") or {}
    except (ValueError, RecursionError):  # a number of thousands of digits, or no stack left for the nesting
        raise refusal_for("invalid_params") from None
    return {name: value for name, value in params.items() if name != "_meta"}
