"""What a response may need on its way out, one class each; `response.Response` sends what they return.

Only a successful answer to the request itself is touched; everything else keeps the server's bytes. A session that an
`initialize` begins is minted when the server's success is seen, not before. Cookies are set by the answer to
`server/discover`: two clients that share a cookie jar are both left without, since the second one begins with a live
cookie, and their conversations never merge.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import ClassVar, Final

from .._errors import DataError, DataGone, Refusal, SessionEnded, StateError, StoreUnavailable
from .._protocol import rewrite
from .._protocol.decision import ADVERTISING, ECHOES, Decision
from .._protocol.draft import INITIALIZE, speaks_draft
from .._protocol.jsonrpc import REQUEST, Message
from .._protocol.sep1364 import agrees_on_version, capabilities, field
from .._session.claims import COEXISTING, FIELD, SESSION, TRANSPORT
from .active import ActiveSession
from .context import BridgedInitialize, RequestContext
from .logs import log_extra
from .minting import first_cookie, mint_for
from .response import Response, Rewrite
from .resumption import StreamRequest

INTERNAL_ERROR: Final = -32603
_log: Final = logging.getLogger("mcp_sessions")


class Advertise(Rewrite):
    """Sessions among the capabilities in an answer that tells what the server can do."""

    async def on_text(self, text: bytes, response: Response) -> bytes | None:
        runtime = response.ctx.runtime
        capability = b"{}" if runtime.rules.sep1364 is None else runtime.rules.sep1364.capability
        return rewrite.advertise(text, response.request_id, runtime.settings, capability)


class KeepState(Rewrite, kw_only=True):
    """The state of the session, kept before the answer leaves: in the answer itself if its client carries it.

    Where it cannot be kept, an error takes the place of the answer.
    """

    is_repeatable: ClassVar[bool] = True
    session: ActiveSession

    async def on_text(self, text: bytes, response: Response) -> bytes | None:
        """Return the answer with the session, or with hints that keep others from it if it may be cached."""
        try:
            if self.session.claims.kind == SESSION:
                return rewrite.echo(text, response.request_id, self.session.encode_metadata)
            if response.is_answer(text):
                await self.session.save()
        except (StateError, DataError, StoreUnavailable) as error:
            return self._withhold(error, response)
        return rewrite.private(text, response.request_id)

    def _withhold(self, error: StateError | DataError | StoreUnavailable, response: Response) -> bytes:
        """Return the error that takes the place of an answer whose state was not stored."""
        ref = self.session.claims.ref
        refusal = SessionEnded() if isinstance(error, DataGone) else error
        if isinstance(refusal, Refusal):
            refusal.ref, refusal.executed = ref, True
            return response.refusal_body(refusal)
        label = "" if response.request is None else response.request.label
        text = "answer of %s in session %s withheld: its state cannot be stored (%s); the client gets an error"
        _log.error(text, ascii(label), ref, type(error).__name__, extra=log_extra(ref))
        return rewrite.error(response.request_id, INTERNAL_ERROR, str(error), {"executed": True})


class MakePrivate(Rewrite):
    """The answer to a call of another process, whose state is not here: its cache hints keep others from it."""

    async def on_text(self, text: bytes, response: Response) -> bytes | None:
        return rewrite.private(text, response.request_id)


class NameSession(Rewrite, kw_only=True):
    """A new session, named in the start of a successful `initialize` or `server/discover`."""

    message: Message

    async def on_text(self, text: bytes, response: Response) -> bytes | None:
        """Name the session with the success, whose text stays; where it gets none, the answer leaves without."""
        if not self.defers_start or not response.is_answer(text):
            return None
        self.defers_start = False
        ctx, message = response.ctx, self.message
        if message.method != INITIALIZE:
            cookie = await first_cookie(ctx, message)
            response.extra_headers += () if cookie is None else (cookie,)
        elif isinstance(ctx.bridge, BridgedInitialize) and ctx.bridge.server_id:
            await self._name_bridged(ctx.bridge, response)
        elif _may_name_transport(ctx, message):
            try:
                response.name((await mint_for(ctx, message, TRANSPORT)).token)
            except Refusal as refusal:
                ctx.record_refused(refusal, INITIALIZE)
        return None

    async def _name_bridged(self, bridge: BridgedInitialize, response: Response) -> None:
        """Name our session, with the server's id sealed inside; if none can be minted, refuse instead."""
        ctx, message, server_id = response.ctx, self.message, bridge.server_id
        try:
            stated = capabilities(message) if _begins_field(ctx, message) else None
            bridge.session = await mint_for(ctx, message, TRANSPORT, server_id=server_id, capabilities=stated)
        except Refusal as refusal:
            bridge.is_orphaned = True
            await response.refuse(refusal)
        else:
            response.name(bridge.session.token)


class Sep1364Field(Rewrite, kw_only=True):
    """The session in the top-level field of the answer, and in its headers if they mirror it."""

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
                return response.ctx.refusal_body(self.message, refusal)
            finally:
                self.defers_start = False
        return None if self.session is None else rewrite.with_field(text, response.request_id, self.session.token)

    async def _begin(self, answer: bytes, response: Response) -> ActiveSession:
        """Go on with the session that is named, or begin one, and keep what its client can do."""
        ctx, session, bridge = response.ctx, self.session, response.ctx.bridge
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


def response_for(ctx: RequestContext, message: Message | None, decision: Decision) -> Response | None:
    """Return what changes or observes the response on its way out, or None where nothing does."""
    observer, session = ctx.telemetry, ctx.session
    rewrites: Sequence[Rewrite] = ()
    if message is not None and message.kind is REQUEST:
        rewrites = rewrites_for(ctx, message, session if decision.action in ECHOES else None)
    if message is None or not rewrites:
        if observer is None:
            return None
        return Response(ctx, ctx.send, observer=observer, passes_body=True, caller_scope=dict(ctx.scope))
    ctx.demand_whole_answer()
    response = Response(
        ctx, ctx.send, message.id or b"", message, rewrites=rewrites, observer=observer, caller_scope=dict(ctx.scope)
    )
    if session is not None:
        response.request = StreamRequest(session.claims, message.id, message.label, ctx.server_id, session=session)
        response.recheck_at = session.recheck_at
    return response


def rewrites_for(ctx: RequestContext, message: Message, echoed: ActiveSession | None) -> Sequence[Rewrite]:
    """Return what the answer to a request needs, in this order."""
    is_handshake, sep1364 = message.method in ADVERTISING, ctx.runtime.rules.sep1364
    rewrites: list[Rewrite] = [] if echoed is None else [KeepState(session=echoed)]
    if is_handshake:
        rewrites.insert(0, Advertise())
    if is_handshake and _may_name_session(ctx, message):
        rewrites.append(NameSession(defers_start=True, message=message))
    begins = is_handshake and _begins_field(ctx, message)
    if begins or (sep1364 is not None and echoed is not None and field(message) is not None):
        rewrites.append(Sep1364Field(defers_start=begins, message=message, session=ctx.session, begins=begins))
    return rewrites


def _begins_field(ctx: RequestContext, message: Message) -> bool:
    """Whether the answer to a handshake names a session in the field of SEP-1364."""
    sep1364 = ctx.runtime.rules.sep1364
    return sep1364 is not None and sep1364.begins_session(message, modern=ctx.headers.is_modern)


def _may_name_session(ctx: RequestContext, message: Message) -> bool:
    """Whether the start of the answer to `initialize` or `server/discover` may name a new session."""
    if message.method != INITIALIZE:
        return ctx.accepts_cookies and not speaks_draft(message)
    if ctx.bridge is not None:  # it continues a session that it has
        return False
    if ctx.runtime.transport.bridges:
        ctx.bridge = BridgedInitialize()
        return True
    return _may_name_transport(ctx, message)


def _may_name_transport(ctx: RequestContext, message: Message) -> bool:
    sep1364 = ctx.runtime.rules.sep1364
    begins_otherwise = sep1364 is not None and sep1364.initializes is not None
    is_legacy = not (ctx.headers.is_modern or speaks_draft(message))
    return ctx.runtime.transport.header and is_legacy and not begins_otherwise
