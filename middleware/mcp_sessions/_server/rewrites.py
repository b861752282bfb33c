"""What a response may need on its way out, one class each; `response.Response` sends what they return.

Only a successful answer to the request itself is touched; everything else keeps the server's bytes. A session that an
`initialize` begins is minted when the server's success is seen, not before. Cookies are set by the answer to
`server/discover`: two clients that share a cookie jar are both left without, since the second one begins with a live
cookie, and their conversations never merge.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from functools import partial
from typing import ClassVar, Final
from urllib.parse import quote

from starlette.types import Message as ASGIMessage
from starlette.types import Scope

from .._errors import DataError, Refusal, SessionNotFound, StateError, StoreUnavailable
from .._protocol import cookies, rewrite
from .._protocol.cookies import SHARED_JAR
from .._protocol.decision import ADVERTISING, CANCELLED, ECHOES, Decision
from .._protocol.draft import INITIALIZE, SessionMetadata, speaks_draft
from .._protocol.headers import Header
from .._protocol.jsonrpc import REQUEST, Message
from .._protocol.sep1364 import agrees_on_version, capabilities, field
from .._session.claims import COEXISTING, COOKIE, FIELD, SESSION, TRANSPORT, Kind
from .._session.events import RequestRefused
from .._tokens import seal
from .active import ActiveSession, Bridged
from .answers import refuse_at_once, refused_body
from .context import BridgedInitialize, RequestContext, session_header_values
from .minting import initialize_session
from .response import Response, Rewrite
from .resumption import StreamGuard, StreamRequest
from .sessions import open_session

INTERNAL_ERROR: Final = -32603
_UNESCAPED: Final = "/:@!$&'()*+,=~"  # in a path, but for the semicolon, which ends an attribute of a cookie
_log: Final = logging.getLogger("mcp_sessions")


class Advertise(Rewrite, kw_only=True):
    """Sessions among the capabilities in an answer that tells what the server can do."""

    settings: bytes
    capability: bytes

    async def on_text(self, text: bytes, response: Response) -> bytes | None:
        response.answer = rewrite.advertise(text, response.request_id, self.settings, self.capability)
        return response.answer


class EchoSession(Rewrite, kw_only=True):
    """The session, written into the answer, or the error that takes its place where the state cannot be kept."""

    is_repeatable: ClassVar[bool] = True
    session: ActiveSession

    async def on_text(self, text: bytes, response: Response) -> bytes | None:
        try:
            return rewrite.echo(text, response.request_id, self.session.encode_metadata)
        except StateError as error:
            return rewrite.error(response.request_id, INTERNAL_ERROR, str(error))


class SaveState(Rewrite, kw_only=True):
    """The state of a session whose client carries none, kept before the answer leaves."""

    is_repeatable: ClassVar[bool] = True
    session: ActiveSession

    async def on_text(self, text: bytes, response: Response) -> bytes | None:
        """Return the answer if it may be cached, with hints that keep others from it; an error if nothing is kept."""
        try:
            if response.is_answer(text):
                await self.session.save()
        except (StateError, DataError, StoreUnavailable) as error:
            return rewrite.error(response.request_id, INTERNAL_ERROR, str(error))
        return rewrite.private(text, response.request_id)


class SetCookie(Rewrite, kw_only=True):
    """A session named by a cookie in the start of a successful `server/discover`."""

    ctx: RequestContext
    message: Message

    async def on_text(self, text: bytes, response: Response) -> bytes | None:
        """Set the cookie with the success; where the caller gets none, the answer leaves without."""
        if self.defers_start and response.is_answer(text):
            self.defers_start = False
            header = await first_cookie(self.ctx, self.message)
            if header is not None:
                response.extra_headers += (header,)
        return None


class NameTransport(Rewrite, kw_only=True):
    """A transport session, named in the start of a successful `initialize` of a server that names none."""

    ctx: RequestContext
    message: Message

    async def on_text(self, text: bytes, response: Response) -> bytes | None:
        """Mint the session with the success; where the caller gets none, the answer leaves without."""
        if not (self.defers_start and response.is_answer(text)):
            return None
        self.defers_start = False
        if response.session_id is None:
            try:
                response.name((await initialize_session(self.ctx, self.message, TRANSPORT)).token)
            except Refusal as refusal:
                code = refusal.code
                self.ctx.runtime.telemetry.emit(RequestRefused(refusal.reason, code, INITIALIZE))
        return None


class TranslateIds(Rewrite, kw_only=True):
    """Ids of ours in place of the wrapped server's, on every response that crosses the bridge."""

    ctx: RequestContext
    message: Message | None = None  # an `initialize`
    mint: Callable[[str], Awaitable[ActiveSession]] | None = None  # for it: seals the server's id in a session
    server_id: str = ""

    def on_start(self, start: ASGIMessage) -> ASGIMessage:
        """Return the start with our id, or none, where it may have named the server's."""
        if isinstance(self.ctx.bridge, BridgedInitialize):
            ids = session_header_values(start)
            self.server_id = ids[0] if len(ids) == 1 else ""
            self.defers_start = self.server_id != "" and seal.can_carry(self.server_id)
            if self.server_id and not self.defers_start:
                _log.error("the server's transport id is not visible ASCII, or too long, so its client cannot get it")
        return self.ctx.translated(start)

    async def on_text(self, text: bytes, response: Response) -> bytes | None:
        """Name ours for the server's with the success; where the client gets none, the response is a refusal."""
        if self.defers_start and self.mint is not None and response.is_answer(text):
            self.defers_start = False
            assert self.message is not None
            assert isinstance(self.ctx.bridge, BridgedInitialize)
            try:
                self.ctx.bridge.session = session = await self.mint(self.server_id)
            except Refusal as refusal:
                self.ctx.bridge.orphaned_id, response.terminated = self.server_id, True
                await refuse_at_once(self.ctx, self.message, refusal)
            else:
                response.translate(session.token)
        return None


class Sep1364Field(Rewrite, kw_only=True):
    """The session in the top-level field of the answer, and in its headers if they mirror it."""

    ctx: RequestContext
    message: Message
    session: ActiveSession | None  # that the message names
    begins: bool  # it is an `initialize`, which begins a session where it names none
    named_id: str | None = None  # the session that was named in the headers

    async def on_text(self, text: bytes, response: Response) -> bytes | None:
        """Return the answer with the session, or with the refusal where there is none to be had."""
        session = self.session
        if self.begins and response.is_answer(text):
            try:
                session = await self._begun(text, response)
            except Refusal as refusal:
                return refused_body(self.ctx, self.message, refusal)
            finally:
                self.defers_start = False
        return None if session is None else rewrite.with_field(text, response.request_id, session.token)

    async def _begun(self, answer: bytes, response: Response) -> ActiveSession:
        """Go on with the session that is named, or begin one, and keep what its client can do."""
        ctx, session, bridge, pending = self.ctx, self.session, self.ctx.bridge, self.ctx.runtime.unconfirmed
        own = None if response.session_id == self.named_id else response.session_id
        if session is not None:
            value = capabilities(self.message)
            if value is not None:
                await session.keep_capabilities(value)
        elif isinstance(bridge, BridgedInitialize) and bridge.session is not None:
            session = bridge.session
        else:
            alone = TRANSPORT if ctx.runtime.transport.header else FIELD
            session = await begin_session(ctx, self.message, alone if own is None else COEXISTING)
        if own is not None and pending is not None and agrees_on_version(self.message, answer):
            pending.add(own)
        # A second success in the same event stream names its session in place of the first.
        may_name = self.defers_start or (self.named_id is not None and response.pending_start is not None)
        if own is None and may_name and session.claims.kind == TRANSPORT:
            self.named_id = session.token
            response.name(session.token)
        return session


def response_for(ctx: RequestContext, message: Message, decision: Decision) -> Response | None:
    """Return what changes or observes the response to a message on its way out, or None where nothing does."""
    session = ctx.session
    if message.kind is not REQUEST:
        if message.method == CANCELLED and "requestId" in message.all_params:
            ref = None if session is None else session.claims.ref
            ctx.runtime.streams.cancel(ref, _upstream_id(ctx), bytes(message.all_params["requestId"]))
        return passing_response(ctx)
    rewrites = rewrites_for(ctx, message, session if decision.step in ECHOES else None)
    if not rewrites:
        return passing_response(ctx)
    ctx.demand_whole_answer()
    observer = None if ctx.telemetry is None else ctx.telemetry.observer
    response = Response(ctx, ctx.send, message.id or b"", rewrites, observer)
    response.may_name = message.method in ADVERTISING
    if session is not None:
        response.make_guard = partial(_guard, ctx, message, session, decision.fail_open)
        response.recheck_at = session.recheck_at
    return response


def passing_response(ctx: RequestContext) -> Response | None:
    """Return what observes a response whose body passes as it came, or translates its ids; None if nothing does."""
    observer = None if ctx.telemetry is None else ctx.telemetry.observer
    rewrites = translation(ctx)
    if observer is None and not rewrites:
        return None
    return Response(ctx, ctx.send, b"", rewrites, observer, passes_body=True)


def translation(ctx: RequestContext) -> tuple[Rewrite, ...]:
    return (TranslateIds(ctx=ctx),) if ctx.runtime.transport.bridges else ()


def _guard(ctx: RequestContext, message: Message, session: ActiveSession, fail_open: bool) -> StreamGuard:
    return StreamGuard(
        StreamRequest(session.claims, message.id, message.label),
        _upstream_id(ctx),
        ctx.runtime.streams,
        ctx.runtime.events,
        refused=partial(refused_body, ctx, message),
        ended_by_this_request=lambda: session.ended_by_own_request,
        fail_open=fail_open,
    )


def _upstream_id(ctx: RequestContext) -> str | None:
    """Return the id of the wrapped server's transport session that a request comes by, or None where it has none."""
    if isinstance(ctx.bridge, Bridged):
        return ctx.bridge.server_id
    return ctx.server_id


def rewrites_for(ctx: RequestContext, message: Message, echoed: ActiveSession | None) -> tuple[Rewrite, ...]:
    """Return what the answer to a request needs, in this order."""
    rewrites: list[Rewrite] = []
    if message.method in ADVERTISING:
        rewrites = _handshake_rewrites(ctx, message, echoed)
    elif echoed is not None:
        sep1364 = ctx.runtime.rules.sep1364
        rewrites.append(_keep_state(echoed))
        if sep1364 is not None and field(message) is not None:
            rewrites.append(Sep1364Field(ctx=ctx, message=message, session=ctx.session, begins=False))
    if rewrites and not isinstance(ctx.bridge, BridgedInitialize):
        return (*translation(ctx), *rewrites)
    return tuple(rewrites)


def _keep_state(echoed: ActiveSession) -> Rewrite:
    return EchoSession(session=echoed) if echoed.claims.kind == SESSION else SaveState(session=echoed)


def _handshake_rewrites(ctx: RequestContext, message: Message, echoed: ActiveSession | None) -> list[Rewrite]:
    """Return what the answer to `initialize` or `server/discover` needs, which may begin a session."""
    runtime, sep1364 = ctx.runtime, ctx.runtime.rules.sep1364
    begins = sep1364 is not None and sep1364.begins_session(message, modern=ctx.headers.is_modern)
    naming, rewrites = _naming(ctx, message), list[Rewrite]()
    if message.method == INITIALIZE and ctx.bridge is None and runtime.transport.bridges:
        ctx.bridge = BridgedInitialize()
        mint = partial(begin_session if begins else initialize_session, ctx, message, TRANSPORT)
        rewrites.append(TranslateIds(reads_any_type=True, ctx=ctx, message=message, mint=mint))
    if echoed is not None and echoed.claims.kind != SESSION:
        rewrites.append(SaveState(session=echoed))
    rewrites.append(Advertise(settings=runtime.settings, capability=runtime.capability))
    if echoed is not None and echoed.claims.kind == SESSION:
        rewrites.append(EchoSession(session=echoed))
    rewrites += naming
    if begins:
        rewrites.append(Sep1364Field(defers_start=True, ctx=ctx, message=message, session=ctx.session, begins=True))
    elif sep1364 is not None and echoed is not None and field(message) is not None:
        rewrites.append(Sep1364Field(ctx=ctx, message=message, session=ctx.session, begins=False))
    return rewrites


def _naming(ctx: RequestContext, message: Message) -> list[Rewrite]:
    """Return what names a new session in the start of the answer to `initialize` or `server/discover`, if any does."""
    sep1364 = ctx.runtime.rules.sep1364
    if message.method != INITIALIZE:
        may_name = ctx.accepts_cookies
        naming: type[SetCookie | NameTransport] = SetCookie
    else:
        begins_otherwise = sep1364 is not None and sep1364.initializes is not None
        is_new = ctx.bridge is None  # else it goes on with a session that it has
        may_name = ctx.runtime.transport.header and is_new and not begins_otherwise and not ctx.headers.is_modern
        naming = NameTransport
    if not may_name or speaks_draft(message):
        return []
    return [naming(defers_start=True, reads_any_type=True, ctx=ctx, message=message)]


async def begin_session(
    ctx: RequestContext, message: Message, kind: Kind, server_id: str | None = None
) -> ActiveSession:
    return await initialize_session(ctx, message, kind, server_id, capabilities=capabilities(message))


# --- cookies ---


async def first_cookie(ctx: RequestContext, message: Message) -> Header | None:
    """Return the cookie that the answer to `server/discover` sets, or None where its client keeps what it has."""
    cookie, shares = ctx.headers.cookie, ctx.runtime.transport.shares_cookies
    if cookie == SHARED_JAR and not shares:
        return None
    if cookie is None or not await _is_live(ctx, cookie):
        return await new_cookie(ctx, message)
    if shares:
        return None
    _log.warning(
        "two MCP clients share one cookie jar, so neither has a session: give each an HTTP client of its own, wrap "
        'them with with_sessions, or set TransportSessions(cookie="shared") where they are one conversation'
    )
    return _header(ctx, SHARED_JAR)


async def new_cookie(ctx: RequestContext, message: Message) -> Header | None:
    """Return a cookie for a new session, or None where the caller gets none."""
    try:
        session = await initialize_session(ctx, message, COOKIE)
    except Refusal as refusal:
        ctx.runtime.telemetry.emit(RequestRefused(refusal.reason, refusal.code, message.label))
        return None
    return _header(ctx, session.token)


async def _is_live(ctx: RequestContext, cookie: str) -> bool:
    """Whether a cookie names a live session of the caller, as far as is known."""
    try:
        await open_session(SessionMetadata(cookie), ctx.runtime, ctx.runtime.principal(ctx.scope), kind=COOKIE)
    except SessionNotFound:
        return False
    except StoreUnavailable:  # to take it for dead could give one client the session of another
        return True
    return True


def _header(ctx: RequestContext, value: str) -> Header:
    name = ctx.runtime.transport.cookie_name
    assert name is not None
    return cookies.set_cookie(name, value, path=_path(ctx.scope), secure=ctx.is_secure)


def _path(scope: Scope) -> str:
    """Return the path of the request as its client writes it, without a slash at the end."""
    path, root = scope["path"], scope.get("root_path", "")
    whole: str = path if path.startswith(root) else root + path  # a proxy may have taken the root path off
    return quote(whole.rstrip("/") or "/", safe=_UNESCAPED)
