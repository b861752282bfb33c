"""What every station of one request shares: its context, how it crosses the bridge, what its conversation is called.

The wrapped application sees the scope that the server made for this request, whose headers are edited in place;
middleware outside sees the edits afterwards.
"""

from __future__ import annotations

import sys
from functools import partial
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import quote

import msgspec
from starlette.types import ASGIApp, Receive, Scope, Send
from starlette.types import Message as ASGIMessage

from .._errors import ConfigurationError, SessionEnded, SessionExpired, SessionNotFound
from .._protocol import cookies, rewrite
from .._protocol.cookies import COOKIE
from .._protocol.decision import requested_session
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
from .._session.claims import Principal, RedactedRepr, looks_like_session_id
from .._session.events import RequestRefused
from .._session.session import Session
from ..telemetry._core import attributes_of
from .active import ActiveSession, Bridged
from .logs import caller_of, warns_of_client
from .principal import from_scope

if TYPE_CHECKING:
    from .._errors import Refusal
    from ..telemetry._outcome import RequestTelemetry
    from .runtime import Runtime

_ENCODING: Final = b"transfer-encoding"
_OWNER_LEARNS: Final = (SessionExpired, SessionEnded)
_UNESCAPED: Final = "/:@!$&'()*+,=~"  # in a path, but for the semicolon, which ends an attribute of a cookie
# ASGI extensions by which a body would leave without passing here
ZERO_COPY_EXTENSIONS: Final = frozenset({"http.response.pathsend", "http.response.zerocopysend"})


class BridgedInitialize(RedactedRepr, msgspec.Struct):
    """An `initialize` that may begin a transport session of the wrapped server."""

    server_id: str = ""  # the server's, once it has named one
    session: ActiveSession | None = None  # ours, once it is minted for the server's
    is_orphaned: bool = False  # no client holds the server's, since ours was refused


class RequestContext(RedactedRepr, msgspec.Struct, eq=False):
    """One request to the endpoint, handed from station to station.

    `bridge` is set where an id begins to cross: by `open_sessions` for a session with the server's id inside, by
    `rewrites` for an `initialize`, and by `leads_to_legacy` while it asks. `transport.call_upstream` reads it.
    """

    runtime: Runtime
    app: ASGIApp  # the wrapped application, across the bridge where there is one
    scope: Scope  # the session is put on it
    receive: Receive
    send: Send
    headers: RequestHeaders
    at_endpoint: bool  # every POST is MCP; elsewhere the path may serve other things, too
    body: bytes = b""  # as it came, with its credentials, once it is read; only here, since this does not print it
    telemetry: RequestTelemetry | None = None  # what records the message, if anything does, once it is known
    session: ActiveSession | None = None  # what it named, once that is open
    bridge: Bridged | BridgedInitialize | None = None  # how the request crosses the bridge, if an id crosses

    def extract_session_credentials(self) -> None:
        """Take our cookie, our session header and the event id out of what the application sees.

        Raises:
            Refusal: `duplicate_session_header` or `duplicate_event_header`: There are several, and two readers may take
                different ones.
        """
        headers, name = self.headers, self.runtime.transport.cookie_name
        if self.scope["method"] != "POST" or LAST_EVENT_ID in headers.by_name:
            self._extract_event_id()
        if name is not None and COOKIE in headers.by_name:
            value, self.scope["headers"] = cookies.pop_session_cookie(
                self.scope["headers"], name, path=self.client_path, secure=self.is_secure
            )
            if self.accepts_cookies:
                headers.cookie = value
        if SESSION_HEADER in headers.by_name:
            session_id = single_header(headers.all(SESSION_HEADER))
            if self.runtime.transport.bridges or looks_like_session_id(session_id):
                headers.session_id = session_id
                self.edit_headers({SESSION_HEADER})

    def _extract_event_id(self) -> None:
        """Take the event id from which a GET resumes; to other methods it means nothing, so it is dropped."""
        event_ids, others = pop_event_ids(self.scope["headers"])
        if event_ids:
            self.scope["headers"] = others
            if self.scope["method"] == "GET":
                self.headers.event_id = single_header(event_ids, "duplicate_event_header") or None

    def cookie_of(self, value: str) -> Header:
        """Return the header that sets our cookie."""
        name = self.runtime.transport.cookie_name
        assert name is not None
        return cookies.set_cookie(name, value, path=self.client_path, secure=self.is_secure)

    @property
    def accepts_cookies(self) -> bool:
        """Whether a cookie of ours counts in this request: in the modern era, and from our own pages."""
        return self.runtime.transport.cookie_name is not None and self.headers.is_modern and self.is_own_page

    @property
    def is_own_page(self) -> bool:
        """Whether the sender may use what a browser adds by itself: a cookie, or the session of its principal."""
        return is_own_page(self.headers, self.scope.get("scheme", "http"))

    @property
    def principal(self) -> Principal | None:
        """The authenticated caller."""
        return self.runtime.principal(self.scope)

    @property
    def user(self) -> Principal | None:
        """The authenticated caller if it is one user, for whom sessions may be found by nothing else."""
        principal = self.principal
        return None if principal is None or warns_of_client(principal) else principal

    def check_principal(self) -> None:
        """Check that `principal=` names callers, also for a request that needs no principal.

        What the function itself raises counts when its answer does: the wrapped server may refuse such a caller.
        """
        if self.runtime.principal is not from_scope:
            try:
                self.runtime.principal(self.scope)
            except ConfigurationError:
                raise
            except Exception:  # noqa: BLE001, S110  # see above
                pass

    @property
    def is_secure(self) -> bool:
        return self.scope.get("scheme") == "https"

    @property
    def client_path(self) -> str:
        """The path of the request as its client writes it, without a slash at the end."""
        path, root = self.scope["path"], self.scope.get("root_path", "")
        whole: str = path if path.startswith(root) else root + path  # a proxy may have taken the root path off
        return quote(whole.rstrip("/") or "/", safe=_UNESCAPED, errors="replace")

    @property
    def server_id(self) -> str | None:
        """The id of the wrapped server's transport session that it comes by, or None."""
        if isinstance(self.bridge, Bridged):
            return self.bridge.server_id
        return None if self.headers.session_id is not None else self.headers.first(SESSION_HEADER)

    def edit_headers(self, dropped: set[bytes], *added: Header) -> None:
        """Replace headers that the application sees."""
        self.scope["headers"] = edit(self.scope["headers"], drop=dropped, add=added)

    def demand_whole_answer(self) -> None:
        """Ask the application for an answer that can be changed: not compressed, and with no file sent around us."""
        self.scope["headers"] = [header for header in self.scope["headers"] if header[0] != ACCEPT_CODING]
        extensions = self.scope.get("extensions") or {}
        if not ZERO_COPY_EXTENSIONS.isdisjoint(extensions):
            retained = {name: value for name, value in extensions.items() if name not in ZERO_COPY_EXTENSIONS}
            self.scope["extensions"] = retained

    def record_refused(self, refusal: Refusal, method: str | None) -> None:
        """Record that the request, or a message in it, is refused; a warning of attacks names who sent it."""
        event = RequestRefused(refusal.reason, refusal.code, method, refusal.ref)
        self.runtime.telemetry.emit(event, partial(caller_of, self.scope, self.runtime.principal))

    def refusal_body(self, message: Message, refusal: Refusal) -> bytes:
        """Record that a message is refused, and return the error as JSON."""
        self.record_refused(refusal, message.label)
        if self.telemetry is not None:
            self.telemetry.refuse(refusal)
        return rewrite.error(message.id, refusal.code, refusal.client_message, self._error_data(message, refusal))

    def _error_data(self, message: Message, refusal: Refusal) -> dict[str, Any] | None:
        """Return `error.data`: also the id as its sender wrote it, or the versions that are spoken."""
        if refusal.reason == "modern_era":
            return {"supported": sorted(HANDSHAKE_VERSIONS), "requested": self.headers.modern_version}
        if not isinstance(refusal, SessionNotFound):
            return error_data(refusal)
        metadata, sep1364 = requested_session(message, None), self.runtime.rules.sep1364
        session_id = None if metadata is None else metadata.session_id
        if metadata is None and sep1364 is not None:
            session_id = sep1364.named_id(message)
        return {**({} if session_id is None else {"sessionId": session_id}), **(error_data(refusal) or {})}

    def carry_trace(self, body: bytes, traceparent: str | None) -> bytes:
        """Return a body that names our trace context in `_meta` in place of its client's; so do the HTTP headers."""
        if traceparent is None:
            return body
        self.edit_headers({b"traceparent", b"tracestate"}, (b"traceparent", traceparent.encode()))
        return self.set_content_length(rewrite.with_trace(body, traceparent))

    def set_content_length(self, body: bytes) -> bytes:
        """Let the headers announce a body that was changed, and return it."""
        length, names = (LENGTH, b"%d" % len(body)), self.headers.by_name
        if LENGTH in names and _ENCODING not in names:  # nearly always, and cheaper
            self.scope["headers"] = [length if header[0] == LENGTH else header for header in self.scope["headers"]]
        else:
            self.edit_headers({LENGTH, _ENCODING}, length)
        return body


def hide_credentials(runtime: Runtime, scope: Scope) -> None:
    """Take our cookie and our session headers out of a websocket upgrade, for which no session is opened."""
    transport, headers = runtime.transport, scope["headers"]
    if transport.cookie_name is not None:
        _, headers = cookies.pop_session_cookie(headers, transport.cookie_name, path="/", secure=True)
    scope["headers"] = [
        (name, value)
        for name, value in headers
        if name != SESSION_HEADER or not (transport.bridges or looks_like_session_id(value))
    ]


def error_data(refusal: Refusal) -> dict[str, Any] | None:
    """Return the reason, for the owner of a session that has ended, and whether the call may have run; or None."""
    reason = {"reason": refusal.reason} if isinstance(refusal, _OWNER_LEARNS) else {}
    return {**reason, **({"executed": True} if refusal.executed else {})} or None


def session_header_values(start: ASGIMessage) -> list[str]:
    """Return the transport sessions that the start of a response names."""
    return [value.decode("latin-1") for name, value in start.get("headers", ()) if name.lower() == SESSION_HEADER]


def label(ctx: RequestContext, message: Message, session: Session | None) -> None:
    """Leave the name that the client gives the conversation where handlers and spans look."""
    correlation = correlation_of(ctx.runtime.correlate, message.meta, ctx.headers.first)
    tracing = sys.modules.get("opentelemetry.trace")  # nothing traces where it was never imported
    if correlation is not None and tracing is not None:  # spans below the current one are stamped at their start
        tracing.get_current_span().set_attributes(attributes_of(correlation))
    if session is None:
        ctx.scope["mcp_correlation"] = correlation
    else:
        session.correlation = correlation
