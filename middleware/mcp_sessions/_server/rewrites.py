"""What a response may need on its way out, one class each; `response.ResponseFilter` sends what they give.

Only a successful answer to the request itself is touched: errors, notifications and everything else on the same stream
keep the server's bytes. A session that an `initialize` begins is minted when the server's success is seen, not before.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from functools import partial
from typing import TYPE_CHECKING, Final

import msgspec
from starlette.types import Message as ASGIMessage

from .._protocol import rewrite
from .._protocol.cookies import DISCOVER
from .._protocol.decision import ADVERTISING
from .._protocol.draft import INITIALIZE, speaks_draft
from .._protocol.headers import SESSION_HEADER
from .._protocol.jsonrpc import Message
from .._protocol.sep1364 import agrees_on_version, capabilities, field
from .._session.claims import BESIDE, FIELD, SESSION, TRANSPORT, Kind
from .._session.events import RequestRefused
from .._tokens import seal
from ..errors import DataError, Refusal, StateError, StoreUnavailable
from .answers import refuse_at_once, refused_body
from .context import Bridged, BridgedInitialize, RequestContext
from .cookies import first_cookie, may_have_cookie
from .minting import initialize_session, mint_with_capabilities
from .sessions import ActiveSession

if TYPE_CHECKING:
    from .response import ResponseFilter

INTERNAL_ERROR: Final = -32603
_log: Final = logging.getLogger("mcp_sessions")


class Rewrite(msgspec.Struct, eq=False):
    """One thing that a response may need.

    Args:
        holds: Whether the start of an event stream has to wait, since a session may be named there.
        reads_any_type: Whether it looks for the success in a body of any type, and changes none.
    """

    holds: bool = False
    reads_any_type: bool = False

    async def on_text(self, text: bytes, response: ResponseFilter) -> bytes | None:
        """Return what takes the place of a JSON-RPC message of the response, or None to leave it."""


class Advertise(Rewrite, kw_only=True):
    """Sessions among the capabilities in an answer that tells what the server can do."""

    settings: bytes
    capability: bytes

    async def on_text(self, text: bytes, response: ResponseFilter) -> bytes | None:
        """Return the answer with the draft's capability and the experimental one."""
        response.answer = rewrite.advertise(text, response.request_id, self.settings, self.capability)
        return response.answer


class EchoSession(Rewrite, kw_only=True):
    """The session in the metadata of the answer."""

    session: ActiveSession

    async def on_text(self, text: bytes, response: ResponseFilter) -> bytes | None:
        """Return the answer with the session, as the filter does where nothing else is to be done."""
        return response.echo(text, self.session)


class SaveState(Rewrite, kw_only=True):
    """The state of a session whose client carries none, kept before the answer leaves."""

    session: ActiveSession

    async def on_text(self, text: bytes, response: ResponseFilter) -> bytes | None:
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

    async def on_text(self, text: bytes, response: ResponseFilter) -> bytes | None:
        """Set the cookie with the success; where the caller gets none, the answer leaves without."""
        if self.holds and response.is_answer(text):
            self.holds = False
            header = await first_cookie(self.ctx, self.message)
            if header is not None:
                response.named.append(header)
        return None


class NameTransport(Rewrite, kw_only=True):
    """A transport session, named in the start of a successful `initialize` of a server that names none."""

    ctx: RequestContext
    message: Message

    async def on_text(self, text: bytes, response: ResponseFilter) -> bytes | None:
        """Mint the session with the success; where the caller gets none, the answer leaves without."""
        if not (self.holds and response.is_answer(text)):
            return None
        self.holds = False
        if response.session_id is None:
            try:
                response.name((await initialize_session(self.ctx, self.message, TRANSPORT)).token)
            except Refusal as refusal:
                code = self.ctx.runtime.code(refusal)
                self.ctx.runtime.emit(RequestRefused(refusal.reason, code, INITIALIZE))
        return None


class TranslateIds(Rewrite, kw_only=True):
    """Ids of ours in place of the wrapped server's, on every response that crosses the bridge.

    Args:
        bridge: How the request crosses; None where its client sees no id.
        mint: For an `initialize`: mints a session with the server's id sealed inside.
        refuse: For an `initialize`: answers with a refusal.
        server_id: The id that the server named for the transport session that it begins.
    """

    bridge: Bridged | BridgedInitialize | None
    mint: Callable[[str], Awaitable[ActiveSession]] | None = None
    refuse: Callable[[Refusal], Awaitable[None]] | None = None
    server_id: str = ""

    def on_start(self, start: ASGIMessage) -> ASGIMessage:
        """Return the start with our id, or none, where it may have named the server's."""
        ids = [value.decode("latin-1") for name, value in start.get("headers", ()) if name.lower() == SESSION_HEADER]
        kept = [(name, value) for name, value in start.get("headers", ()) if name.lower() != SESSION_HEADER]
        if isinstance(self.bridge, BridgedInitialize):
            self.server_id = _carried(ids)
            self.holds = self.server_id != ""
        elif self.bridge is not None and ids == [self.bridge.server_id]:
            kept.append((SESSION_HEADER, self.bridge.client_id.encode("ascii")))
        return {**start, "headers": kept}

    async def on_text(self, text: bytes, response: ResponseFilter) -> bytes | None:
        """Name ours for the server's with the success; where the client gets none, the response is a refusal."""
        if self.holds and self.mint is not None and response.is_answer(text):
            self.holds = False
            assert isinstance(self.bridge, BridgedInitialize)
            try:
                self.bridge.session = await self.mint(self.server_id)
            except Refusal as refusal:
                self.bridge.orphaned_id, response.is_over = self.server_id, True
                assert self.refuse is not None
                await self.refuse(refusal)
            else:
                response.translate(self.bridge.session.token)
        return None


class Sep1364Field(Rewrite, kw_only=True):
    """The session in the top-level field of the answer, and in its headers if they mirror it.

    Args:
        ctx: The request.
        message: The message.
        session: The session that it names, or None.
        begins: Whether it is an `initialize`, which begins a session where it names none.
        named_id: The session that was named in the headers.
    """

    ctx: RequestContext
    message: Message
    session: ActiveSession | None
    begins: bool
    named_id: str | None = None

    async def on_text(self, text: bytes, response: ResponseFilter) -> bytes | None:
        """Return the answer with the session, or with the refusal where there is none to be had."""
        session = self.session
        if self.begins and response.is_answer(text):
            try:
                session = await self._begun(text, response)
            except Refusal as refusal:
                return refused_body(self.ctx, self.message, refusal)
            finally:
                self.holds = False
        return None if session is None else rewrite.with_field(text, response.request_id, session.token)

    async def _begun(self, answer: bytes, response: ResponseFilter) -> ActiveSession:
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
            alone = TRANSPORT if ctx.runtime.transport else FIELD
            session = await begin_session(ctx, self.message, alone if own is None else BESIDE)
        if own is not None and pending is not None and agrees_on_version(self.message, answer):
            pending.add(own)
        # A second success in the same event stream names its session in place of the first.
        may_name = self.holds or (self.named_id is not None and response.start is not None)
        if own is None and may_name and session.claims.kind == TRANSPORT:
            self.named_id = session.token
            response.name(session.token)
        return session


def _carried(ids: list[str]) -> str:
    """Return the server's id, or nothing where it names none that can be carried."""
    server_id = ids[0] if len(ids) == 1 else ""
    if server_id and not seal.can_carry(server_id):
        _log.error("the server's transport id is no visible ASCII, or too long: its client cannot get it")
        return ""
    return server_id


def rewrites_for(
    ctx: RequestContext, message: Message, session: ActiveSession | None, *, echoes: bool
) -> tuple[Rewrite, ...]:
    """Return what the answer to a request needs, in the order in which it is done; nothing where it is the echo alone.

    Args:
        ctx: The request.
        message: The message.
        session: Its session, or None.
        echoes: Whether that is written back.
    """
    runtime, sep1364, first, last = ctx.runtime, ctx.runtime.rules.sep1364, list[Rewrite](), list[Rewrite]()
    if message.method == INITIALIZE and ctx.bridge is None:  # else it goes on with a session that it has
        begins_otherwise = sep1364 is not None and sep1364.initializes is not None
        may_name = runtime.transport and not begins_otherwise and not ctx.headers.is_modern
        if may_name and not speaks_draft(message):
            last.append(NameTransport(holds=True, reads_any_type=True, ctx=ctx, message=message))
        if runtime.bridges:
            first.append(_translation(ctx, message))
    elif message.method == DISCOVER and may_have_cookie(ctx) and not speaks_draft(message):
        last.append(SetCookie(holds=True, reads_any_type=True, ctx=ctx, message=message))
    keeps = session is not None and echoes and session.claims.kind != SESSION
    if session is not None and keeps:
        first.append(SaveState(session=session))
    if message.method in ADVERTISING:
        first.append(Advertise(settings=runtime.settings, capability=runtime.capability))
    if sep1364 is not None:
        last += field_rewrites(ctx, message, session, echoes=echoes)
    if session is not None and echoes and not keeps and (first or last):
        first.append(EchoSession(session=session))
    return (*first, *last)


def _translation(ctx: RequestContext, message: Message) -> TranslateIds:
    ctx.bridge = BridgedInitialize()
    sep1364, mint = ctx.runtime.rules.sep1364, partial(initialize_session, ctx, message, TRANSPORT)
    if sep1364 is not None and sep1364.begins_session(message, modern=ctx.headers.is_modern):
        mint = partial(begin_session, ctx, message, TRANSPORT)
    refuse = partial(refuse_at_once, ctx, message)
    return TranslateIds(reads_any_type=True, bridge=ctx.bridge, mint=mint, refuse=refuse)


def field_rewrites(
    ctx: RequestContext, message: Message, session: ActiveSession | None, *, echoes: bool
) -> list[Rewrite]:
    """Return what writes the field into the answer to a message, if anything does."""
    sep1364 = ctx.runtime.rules.sep1364
    if sep1364 is not None and sep1364.begins_session(message, modern=ctx.headers.is_modern):
        return [Sep1364Field(holds=True, ctx=ctx, message=message, session=session, begins=True)]
    if echoes and field(message) is not None:
        return [Sep1364Field(ctx=ctx, message=message, session=session, begins=False)]
    return []


async def begin_session(
    ctx: RequestContext, message: Message, kind: Kind, server_id: str | None = None
) -> ActiveSession:
    """Mint the session that an `initialize` begins, and keep what its client can do.

    Raises:
        Refusal: The caller gets none.
    """
    mint, value = partial(initialize_session, ctx, message, kind, server_id), capabilities(message)
    return await (mint() if value is None else mint_with_capabilities(value, mint))
