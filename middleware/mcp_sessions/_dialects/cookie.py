"""The cookie: clients of the modern era that keep cookies get a session without asking for one.

The answer to `server/discover` sets a cookie with a token of a special kind, and later requests bring it back. The
cookie only offers a session: many clients ask what a server can do and never come back, so the session is created at
its first use. Two clients that share a cookie jar both get no session, since the second one sends `server/discover`
with a live cookie: their conversations never merge. Our cookies never reach the wrapped server; all others do.
Sources: RFC 6265, sections 4.1, 4.2 and 5.4; RFC 6265bis for `SameSite`, `__Secure-` and `__Host-`; W3C Fetch Metadata.
"""

from __future__ import annotations

import hashlib
import logging
from base64 import b32encode
from collections.abc import Iterable, Sequence
from contextlib import suppress
from functools import lru_cache
from typing import Final

from .._errors import Refusal, SessionNotFound, StoreUnavailable
from .._protocol.headers import Header, RequestHeaders, keeps_cookies
from .._protocol.jsonrpc import RESPONSE, Message
from .._protocol.methods import DISCOVER
from .._protocol.proxies import SHOWS_PATH, hides_tls, port_of, stripped_prefix, strips_prefix
from .._protocol.rewrite import Answer
from .._server import minting
from .._server.changes import SaveState
from .._server.context import Request
from .._server.credentials import RECONNECT, WRAP
from .._server.logs import warn_once
from .._server.response import Change, Response
from .._server.sessions import open_session
from .._session.claims import COOKIE
from .._session.session import Session
from .base import Credential, Dialect, NoCredential

HEADER: Final = b"cookie"
SHARED_JAR: Final = "shared"
"""The cookie's value after two clients shared one cookie jar. It identifies no session."""
UNREADABLE: Final = ""
"""The value for a session cookie that was sent more than once: a session id that is never valid."""
_HOST, _SECURE = b"__Host-", b"__Secure-"  # with the former, no other host of the site can set the cookie
_SHARES: Final = NoCredential(
    "it shares its HTTP client, and so a cookie jar, with another MCP client",
    f'give each an HTTP client of its own, {WRAP}, or set TransportSessions(cookie="shared")',
    "cookie_jar_shared",
)
_NO_JAR: Final = NoCredential("it sent no cookie, and is not known to keep any", 'set wire=Wire(era="auto")')
_NOT_LED: Final = NoCredential(
    "it sent no cookie, and was not led to the header: it sent no server/discover, or the wrapped server serves the "
    "modern era alone",
    RECONNECT,
)
_NONE: Final = NoCredential(
    "it keeps no cookies, sent no server/discover, or a proxy strips a path prefix, so that the cookie does not fit",
    f'{WRAP}, set wire=Wire(era="legacy"), or set TransportSessions(cookie_path=)',
)
_STRIPPED: Final = NoCredential(
    "a proxy strips a prefix of its path, so that it does not send the cookie back",
    "start the server with that prefix as --root-path, let it trust X-Forwarded-Prefix of its proxy, or set "
    "TransportSessions(cookie_path=)",
)
UNTRUSTED_PREFIX: Final = (
    "a proxy strips %a from the path (X-Forwarded-Prefix), but the server does not trust it, so clients do not send "
    "the cookie of their session back: let the server trust its proxy, as uvicorn does with --forwarded-allow-ips, "
    "start it with that prefix as --root-path, or set TransportSessions(cookie_path=)"
)
UNTRUSTED_TLS: Final = (
    "TLS ends at a proxy (X-Forwarded-Proto) that the server does not trust, so the cookie of a session is not Secure: "
    "let the server trust its proxy, as uvicorn does with --forwarded-allow-ips"
)
_MAX_PREFIX: Final = 64  # characters, in the log
_log: Final = logging.getLogger("mcp_sessions")


class Cookie(Dialect):
    """A cookie that the answer to `server/discover` sets.

    Args:
        audience: The deployment: servers on one host differ by it.
        shared: Whether all clients that share a cookie jar are one conversation.
        lifetime: Seconds from creation to expiry.
        leads: Whether clients not known to keep cookies are led to the header (`era="auto"`).
        path: The path of the cookie, or None for that of the request as its client writes it.
    """

    name: str = "cookie"
    kinds: frozenset[str] = frozenset({COOKIE})
    is_always_sent: bool = True

    def __init__(
        self, audience: str, *, shared: bool, lifetime: float, leads: bool = False, path: str | None = None
    ) -> None:
        self._family: Final = family_of(audience)
        self._path: Final = path
        self._leads: Final = leads
        self._shared: Final = shared
        self.lifetime = lifetime

    def extract(self, request: Request) -> None:
        """Take the session cookie out of the headers. Use it in the modern era only, and not from other sites."""
        if HEADER not in request.headers.by_name:
            return
        value, request.scope["headers"] = pop_session_cookie(
            request.scope["headers"], self._family, self._name(request)
        )
        if value is not None and request.headers.is_modern and request.is_own_page:
            request.credentials[self.name] = value

    def find(self, request: Request, earlier: Sequence[Credential]) -> Credential | NoCredential | None:
        """Return the session of the cookie, in which neither `server/discover` nor a method of a dialect is."""
        message = request.message
        value = request.credentials.get(self.name)
        if message is None:
            return None if value in {None, SHARED_JAR} else Credential(self, value, COOKIE)
        if earlier or not request.headers.is_modern:
            return None
        if value == SHARED_JAR:
            return _SHARES
        if value is None:
            if request.headers.by_name.keys().isdisjoint(SHOWS_PATH) or self._path is not None:  # nearly always
                return None
            return _STRIPPED if strips_prefix(request.headers, request.client_path) else None
        is_outside = message.method == DISCOVER or message.kind is RESPONSE or request.is_answered
        return None if is_outside else Credential(self, value, COOKIE)

    def absence(self, headers: RequestHeaders, message: Message) -> NoCredential | None:
        """Return why a client of the modern era sent no cookie."""
        if not headers.is_modern:
            return None
        return _NONE if keeps_cookies(headers) else _NOT_LED if self._leads else _NO_JAR

    async def open(self, request: Request, credential: Credential, *, fail_open: bool) -> Session:
        """Load the session, and create it at its first use."""
        session = await open_session(request, credential.id, COOKIE, is_offered=True, fail_open=fail_open)
        if request.attaches and not session._has_begun:
            await minting.activate(request.runtime, session, request.scope)
        return session

    def changes(self, request: Request, session: Session | None) -> Sequence[Change]:
        """Store the state of a session that was attached; offer one with the answer to `server/discover`."""
        if session is not None:
            return (SaveState(session=session),) if request.attaches else ()
        if request.current_message.method != DISCOVER or request.is_reached:
            return ()
        may_offer = request.headers.is_modern and request.is_own_page
        return (Offer(defers_start=True, cookie=self),) if may_offer else ()

    async def refuse(self, request: Request, error: Refusal) -> Header | None:
        """Return a new cookie in place of a dead one, since its client does not know that it has one."""
        return await self.offer(request) if isinstance(error, SessionNotFound) else None

    async def offer(self, request: Request) -> Header | None:
        """Return a cookie that offers a session, or None if the caller gets none. Nothing is stored or counted."""
        runtime, message = request.runtime, request.message
        try:
            await runtime.store.open()
            offered = minting.new_session(request, self, COOKIE)
        except Refusal as reason:
            request.record_refused(reason, None if message is None else message.label)
            return None
        with suppress(StoreUnavailable):
            await runtime.store.register_at_epoch(offered._claims)
        return self._header(request, runtime.tokens.mint(offered._ring, offered._claims))

    async def renew(self, request: Request) -> Header | None:
        """Offer a session with the answer to `server/discover`; None if its client keeps the cookie that it has."""
        value = request.credentials.get(self.name)
        if value == SHARED_JAR and not self._shared:
            return None
        if value is None:
            return await self.offer(request)
        try:
            await open_session(request, value, COOKIE, is_offered=True)
        except SessionNotFound:
            return await self.offer(request)
        except StoreUnavailable:
            pass  # the session may be alive; another cookie could give one client the session of another
        if self._shared:
            return None
        _log.warning(
            "two MCP clients share one cookie jar, so neither has a session: give each an HTTP client of its own, wrap "
            'them with with_sessions, or set TransportSessions(cookie="shared") where they are one conversation'
        )
        return self._header(request, SHARED_JAR)

    def _header(self, request: Request, value: str) -> Header:
        self._warn_of_proxies(request)
        return set_cookie(self._name(request), value, path=self._path_for(request), secure=request.is_secure)

    def _name(self, request: Request) -> bytes:
        """Return the name of the cookie of an endpoint."""
        path = self._path_for(request)
        prefix = b"" if not request.is_secure else _HOST if path == "/" else _SECURE  # `__Host-` needs the path `/`
        return prefix + self._family + place_of(port_of(request.headers), request.client_path)

    def _path_for(self, request: Request) -> str:
        return request.client_path if self._path is None else self._path

    def _warn_of_proxies(self, request: Request) -> None:
        """Warn, once, if a proxy that the server does not trust makes the cookie useless or less safe."""
        prefix = stripped_prefix(request.headers)
        if prefix and self._path is None and not request.trusts_proxy:
            warn_once(UNTRUSTED_PREFIX, UNTRUSTED_PREFIX, prefix[:_MAX_PREFIX])
        if hides_tls(request.headers, request.scope.get("scheme", "http")):
            warn_once(UNTRUSTED_TLS, UNTRUSTED_TLS)


class Offer(Change, kw_only=True):
    """The cookie that a successful answer to `server/discover` sets."""

    cookie: Cookie

    async def on_answer(self, answer: Answer, response: Response) -> bytes | None:
        """Add the cookie to the headers once the success is seen; the text stays."""
        if self.defers_start:
            self.defers_start = False
            header = await self.cookie.renew(response.request)
            response.extra_headers += () if header is None else (header,)
        return None


def family_of(audience: str) -> bytes:
    """Return how the names of the cookies of a deployment begin, without their prefix."""
    return b"mcp-session-" + _digest("cookie", audience)


@lru_cache(maxsize=256)
def place_of(port: str, path: str) -> bytes:
    """Return how they end for an endpoint, since clients send a host's cookies to each of its ports."""
    return _digest("cookie-place", f"{port}{path}")


def _digest(use: str, text: str) -> bytes:
    return b32encode(hashlib.sha256(f"mcp-sessions/1/{use}/{text}".encode()).digest()[:5]).lower()


def pop_session_cookie(headers: Iterable[Header], family: bytes, name: bytes) -> tuple[str | None, list[Header]]:
    """Return the value of our cookie, or None, and the headers without any cookie of the deployment.

    Those with another prefix are taken out as well and never read: over plain text, or on another host of the site,
    anybody could have set them. So are those of the deployment's other endpoints, on other ports, say.

    Args:
        headers: The headers of the request.
        family: How the names of the deployment's cookies begin, without their prefix.
        name: The name of our cookie.
    """
    values, kept = list[bytes](), list[Header]()
    for header in headers:
        if header[0] == HEADER and family in header[1]:
            others = []
            for pair in header[1].split(b";"):
                key, _, value = pair.strip().partition(b"=")
                if key.rstrip() == name:
                    values.append(value.strip())
                elif not key.removeprefix(_SECURE).removeprefix(_HOST).startswith(family):
                    others.append(pair.strip())
            header = (HEADER, b"; ".join(others))  # noqa: PLW2901  # what is left of it
            if not others:
                continue
        kept.append(header)
    if not values:
        return None, kept
    return values[0].decode("latin-1") if len(values) == 1 else UNREADABLE, kept


def set_cookie(name: bytes, value: str, *, path: str, secure: bool) -> Header:
    """Return the header that sets our cookie until its client is closed; the token holds when the session ends.

    Args:
        name: The name of our cookie.
        value: A token, or `SHARED_JAR`.
        path: The path to which clients send it, percent-encoded.
        secure: Whether the request came by https.
    """
    attributes = b"; Path=%b; HttpOnly; SameSite=Strict%b" % (path.encode("ascii"), b"; Secure" if secure else b"")
    return b"set-cookie", name + b"=" + value.encode("ascii") + attributes
