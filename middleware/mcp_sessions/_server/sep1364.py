"""The part of SEP-1364 that needs sessions: the field in an answer, and the wrapped server's own sessions beside it.

An `initialize` may begin a session, or go on with one. By the second alternative a client may leave
`notifications/initialized` out where both sides spoke the same version; a server of today waits for it all the same,
so it is sent for the client, before the first message that needs it.
"""

from __future__ import annotations

from collections import OrderedDict
from functools import partial
from typing import Final

from .._protocol import rewrite
from .._protocol.headers import SESSION_HEADER
from .._protocol.jsonrpc import Message
from .._protocol.sep1364 import agrees_on_version, capabilities, field
from .._session.claims import BESIDE, FIELD, TRANSPORT, Kind
from ..errors import Refusal
from .answers import notify, refused_body
from .context import BridgedInitialize, RequestContext
from .minting import initialize_session, mint_with_capabilities
from .response import ResponseFilter
from .rewrites import Rewrite
from .sessions import ActiveSession

CONFIRMATION: Final = "notifications/initialized"
MAX_WAITING: Final = 10_000  # transport sessions; those of clients that never came back go first
_EARLY: Final = frozenset({"initialize", "ping"})


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


class PendingInitialized:
    """The transport sessions of one middleware that wait for `notifications/initialized`.

    A server that keeps transport sessions keeps them in its process, and so does this.

    Args:
        max_waiting: How many are remembered at most; the oldest go first.
    """

    def __init__(self, *, max_waiting: int = MAX_WAITING) -> None:
        self._max_waiting: Final = max_waiting
        self._waiting: Final[OrderedDict[str, None]] = OrderedDict()

    def add(self, transport: str) -> None:
        """Remember a transport session whose client need not confirm it."""
        self._waiting[transport] = None
        if len(self._waiting) > self._max_waiting:
            self._waiting.popitem(last=False)

    async def send_initialized(self, ctx: RequestContext, message: Message) -> None:
        """Confirm a transport session that waits for it, where a message comes before its client did so.

        Args:
            ctx: The request.
            message: The message that is about to be forwarded.
        """
        transport = ctx.headers.first(SESSION_HEADER)
        if transport is None or transport not in self._waiting or message.method in _EARLY:
            return
        if message.method != CONFIRMATION:
            await notify(ctx, CONFIRMATION)
        self._waiting.pop(transport, None)  # only now: a message beside this one must not overtake it
