"""What a response may need on its way out, one class each; `response.Response` sends what they return.

Only a successful answer to the request itself is touched; everything else keeps the server's bytes. A session that an
`initialize` begins is minted when the server's success is seen, not before. Cookies are set by the answer to
`server/discover`: two clients that share a cookie jar are both left without, since the second one begins with a live
cookie, and their conversations never merge.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from typing import ClassVar, Final

from .._errors import DataError, Refusal, SessionNotFound, StateError, StoreUnavailable
from .._protocol import cookies, rewrite
from .._protocol.cookies import SHARED_JAR
from .._protocol.decision import ADVERTISING, CANCELLED, ECHOES, Decision
from .._protocol.draft import INITIALIZE, SessionMetadata, speaks_draft
from .._protocol.headers import Header
from .._protocol.jsonrpc import REQUEST, Message
from .._protocol.sep1364 import agrees_on_version, capabilities, field
from .._session.claims import COEXISTING, COOKIE, FIELD, SESSION, TRANSPORT
from .active import ActiveSession, Bridged
from .answers import refuse_at_once
from .context import BridgedInitialize, RequestContext
from .minting import mint_for, offer
from .response import Response, Rewrite
from .resumption import StreamRequest
from .sessions import open_session

INTERNAL_ERROR: Final = -32603
_log: Final = logging.getLogger("mcp_sessions")


class Advertise(Rewrite, kw_only=True):
    """Sessions among the capabilities in an answer that tells what the server can do."""

    settings: bytes
    capability: bytes

    async def on_text(self, text: bytes, response: Response) -> bytes | None:
        return rewrite.advertise(text, response.request_id, self.settings, self.capability)


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


class NameSession(Rewrite, kw_only=True):
    """A new session, named in the start of a successful `initialize` or `server/discover`."""

    ctx: RequestContext
    message: Message
    name: Callable[[RequestContext, Message, Response], Awaitable[None]]

    async def on_text(self, text: bytes, response: Response) -> bytes | None:
        """Name the session with the success, whose text stays."""
        if self.defers_start and response.is_answer(text):
            self.defers_start = False
            await self.name(self.ctx, self.message, response)
        return None


async def _set_cookie(ctx: RequestContext, message: Message, response: Response) -> None:
    header = await first_cookie(ctx, message)
    if header is not None:
        response.extra_headers += (header,)


async def _name_transport(ctx: RequestContext, message: Message, response: Response) -> None:
    """Name a session for the client of a server that names none; where it gets none, the answer leaves without."""
    try:
        response.name((await mint_for(ctx, message, TRANSPORT)).token)
    except Refusal as refusal:
        ctx.record_refused(refusal, INITIALIZE)


async def _name_bridged(ctx: RequestContext, message: Message, response: Response) -> None:
    """Name ours, with the server's sealed inside, in place of the server's; where there is none, refuse."""
    bridge, sep1364 = ctx.bridge, ctx.runtime.rules.sep1364
    assert isinstance(bridge, BridgedInitialize)
    if not bridge.server_id:
        if _may_name_transport(ctx, message):
            await _name_transport(ctx, message, response)
        return
    begins = sep1364 is not None and sep1364.begins_session(message, modern=ctx.headers.is_modern)
    try:
        stated = capabilities(message) if begins else None
        bridge.session = await mint_for(ctx, message, TRANSPORT, server_id=bridge.server_id, capabilities=stated)
    except Refusal as refusal:
        bridge.is_orphaned = response.terminated = True
        await refuse_at_once(ctx, message, refusal)
    else:
        response.name(bridge.session.token)


class Sep1364Field(Rewrite, kw_only=True):
    """The session in the top-level field of the answer, and in its headers if they mirror it."""

    ctx: RequestContext
    message: Message
    session: ActiveSession | None  # that the message names
    begins: bool  # it is an `initialize`, which begins a session where it names none

    async def on_text(self, text: bytes, response: Response) -> bytes | None:
        """Return the answer with the session, or with the refusal where there is none to be had."""
        if self.begins and response.is_answer(text):
            self.begins = False
            try:
                self.session = await self._begin(text, response)
            except Refusal as refusal:
                return self.ctx.refused_body(self.message, refusal)
            finally:
                self.defers_start = False
        return None if self.session is None else rewrite.with_field(text, response.request_id, self.session.token)

    async def _begin(self, answer: bytes, response: Response) -> ActiveSession:
        """Go on with the session that is named, or begin one, and keep what its client can do."""
        ctx, session, bridge = self.ctx, self.session, self.ctx.bridge
        own = response.session_id  # the server's, or what is named in its place
        if session is not None:
            value = capabilities(self.message)
            if value is not None:
                await session.keep_capabilities(value)
        elif isinstance(bridge, BridgedInitialize) and bridge.session is not None:
            session = bridge.session
        else:
            alone = TRANSPORT if ctx.runtime.transport.header else FIELD
            kind = alone if own is None else COEXISTING
            session = await mint_for(ctx, self.message, kind, capabilities=capabilities(self.message))
        if own is not None and agrees_on_version(self.message, answer):
            ctx.runtime.unconfirmed.add(own)
        if own is None and self.defers_start and session.claims.kind == TRANSPORT:
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
    rewrites = rewrites_for(ctx, message, session if decision.action in ECHOES else None)
    if not rewrites:
        return passing_response(ctx)
    ctx.demand_whole_answer()
    observer = None if ctx.telemetry is None else ctx.telemetry.observer
    response = Response(ctx, ctx.send, message.id or b"", rewrites, observer, message)
    if session is not None:
        response.request = StreamRequest(session.claims, message.id, message.label, _upstream_id(ctx), session=session)
        response.fail_open, response.recheck_at = decision.fail_open, session.recheck_at
    return response


def passing_response(ctx: RequestContext) -> Response | None:
    """Return what observes a response whose body passes as it came, or None if nothing does."""
    observer = None if ctx.telemetry is None else ctx.telemetry.observer
    return None if observer is None else Response(ctx, ctx.send, observer=observer, passes_body=True)


def _upstream_id(ctx: RequestContext) -> str | None:
    """Return the id of the wrapped server's transport session that a request comes by, or None where it has none."""
    if isinstance(ctx.bridge, Bridged):
        return ctx.bridge.server_id
    return ctx.server_id


def rewrites_for(ctx: RequestContext, message: Message, echoed: ActiveSession | None) -> tuple[Rewrite, ...]:
    """Return what the answer to a request needs, in this order."""
    if message.method in ADVERTISING:
        return tuple(_handshake_rewrites(ctx, message, echoed))
    if echoed is None:
        return ()
    if ctx.runtime.rules.sep1364 is not None and field(message) is not None:
        return (_keep_state(echoed), Sep1364Field(ctx=ctx, message=message, session=ctx.session, begins=False))
    return (_keep_state(echoed),)


def _keep_state(echoed: ActiveSession) -> Rewrite:
    return EchoSession(session=echoed) if echoed.claims.kind == SESSION else SaveState(session=echoed)


def _handshake_rewrites(ctx: RequestContext, message: Message, echoed: ActiveSession | None) -> list[Rewrite]:
    """Return what the answer to `initialize` or `server/discover` needs, which may begin a session."""
    runtime, sep1364 = ctx.runtime, ctx.runtime.rules.sep1364
    begins = sep1364 is not None and sep1364.begins_session(message, modern=ctx.headers.is_modern)
    capability = b"{}" if sep1364 is None else sep1364.capability
    rewrites: list[Rewrite] = [Advertise(settings=runtime.settings, capability=capability)]
    if echoed is not None:
        rewrites.insert(echoed.claims.kind == SESSION, _keep_state(echoed))
    if (name := _naming(ctx, message)) is not None:
        rewrites.append(NameSession(defers_start=True, ctx=ctx, message=message, name=name))
    if begins or (sep1364 is not None and echoed is not None and field(message) is not None):
        rewrites.append(Sep1364Field(defers_start=begins, ctx=ctx, message=message, session=ctx.session, begins=begins))
    return rewrites


def _naming(
    ctx: RequestContext, message: Message
) -> Callable[[RequestContext, Message, Response], Awaitable[None]] | None:
    """Return what names a new session in the start of the answer to `initialize` or `server/discover`, if any does."""
    if message.method != INITIALIZE:
        return _set_cookie if ctx.accepts_cookies and not speaks_draft(message) else None
    if ctx.bridge is not None:  # it continues a session that it has
        return None
    if ctx.runtime.transport.bridges:
        ctx.bridge = BridgedInitialize()
        return _name_bridged
    return _name_transport if _may_name_transport(ctx, message) else None


def _may_name_transport(ctx: RequestContext, message: Message) -> bool:
    sep1364 = ctx.runtime.rules.sep1364
    begins_otherwise = sep1364 is not None and sep1364.initializes is not None
    is_legacy = not (ctx.headers.is_modern or speaks_draft(message))
    return ctx.runtime.transport.header and is_legacy and not begins_otherwise


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
    """Return a cookie that offers a session, or None where the caller gets none."""
    try:
        return _header(ctx, await offer(ctx, message))
    except Refusal as refusal:
        ctx.record_refused(refusal, message.label)
        return None


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
    return cookies.set_cookie(name, value, path=ctx.client_path, secure=ctx.is_secure)
