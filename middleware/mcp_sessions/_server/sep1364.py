"""One request's way where dialects of SEP-1364 are spoken, too: the same way, with what their field adds to it.

The field is read, held against the header and taken out before the message is forwarded, and written into
a successful answer. An `initialize` may begin a session. What none of these dialects concerns goes the way
of every other message.

Transport sessions of the wrapped server whose client may skip `notifications/initialized`, and has not sent it.

SEP-1364's second alternative makes it optional where both sides spoke the same version; a server of today
waits for it all the same. So it is sent for the client, before the first message that needs it. A server
that keeps transport sessions keeps them in its process, and so does this.
"""

from __future__ import annotations

from collections import OrderedDict
from functools import partial
from typing import Final

import msgspec
from starlette.types import ASGIApp, Receive, Scope, Send

from .._protocol import decision, rewrite
from .._protocol.decision import Carries, Step
from .._protocol.draft import INITIALIZE, SessionMetadata, speaks_draft
from .._protocol.headers import SESSION_HEADER
from .._protocol.jsonrpc import Message, MessageKind
from .._protocol.jsonrpc import Message as Request
from .._protocol.sep1364 import TERMINATE, Sep1364, agrees_on_version, capabilities, check_header, field
from .._session.claims import BESIDE, FIELD, SESSION, TRANSPORT
from .._session.claims import Kind as TokenKind
from ..errors import Refusal, SessionNotFound, SessionRequired, refuse
from . import answers
from .answers import FieldAnswers, notify
from .context import WAY, crossing, has_servers_own
from .methods import begin
from .request import ConversingExchange
from .response import Opened, Opening, Responder
from .sessions import ActiveSession


class FieldExchange(ConversingExchange):
    """One POST to the MCP path, in a deployment that opted for dialects of SEP-1364.

    Args:
        begun: The session that the bridge has made for a transport session of the server's, once it has.
    """

    begun: ActiveSession | None = None

    @property
    def _opted(self) -> Sep1364:
        assert self.options.opted is not None
        return self.options.opted

    # --- what came ---------------------------------------------------------------------------

    def _speaks_of_sessions(self, item: Message) -> bool:
        about = self._opted.subject(item)
        needs = self._opted.requires(item, about or decision.subject(item, self.options.subjects))
        return needs or about is not None or self._opted.said(item) is not None or super()._speaks_of_sessions(item)

    def _named(self, message: Message) -> SessionMetadata | None:
        return self._opted.named(message, super()._named(message))

    def _is_transport(self, message: Message, named: SessionMetadata | None) -> bool:
        said = field(message)
        if said is None:
            return super()._is_transport(message, named)
        kind = self._kind(said)
        is_bridged = self.options.bridges and self.header is not None and kind == BESIDE
        if is_bridged and super()._is_transport(message, named):  # the server's own is sealed in it
            return True
        check_header(said, kind, self.head.first(SESSION_HEADER), is_ours=self.header is not None)
        return False

    def _kind(self, session_id: str) -> TokenKind | None:
        return self.options.tokens.kind(self.options.ring(self.options.clock()), session_id)

    def _decide(self, message: Message, named: SessionMetadata | None, is_transport: bool) -> Step:
        about = self._opted.subject(message)
        told = about or decision.subject(message, self.options.subjects)
        if named is None and self._opted.requires(message, told):
            raise SessionRequired
        if about is None:
            return super()._decide(message, named, is_transport)
        return decision.decide(about, Carries.NOTHING if named is None else Carries.SESSION)

    async def _open(
        self, message: Message, named: SessionMetadata | None, is_transport: bool, step: Step
    ) -> ActiveSession | None:
        if named is None or message.names_session:
            return await super()._open(message, named, is_transport, step)
        await super()._open(message, None, is_transport, step)  # one that stands beside it only has to live
        # From here on it is verified whatever the step: also where an answer that the client posts names it.
        if step is Step.FORK:
            raise refuse("session_missing")
        kind = self._kind(named.session_id)
        if kind is None or kind == SESSION:  # a session of the draft is named in `_meta`, where its state is
            raise SessionNotFound("token_kind")
        live = await self._live(message, step, named, kind)
        if self.options.bridges and kind == TRANSPORT:
            self.scope[WAY] = crossing(live)
        return live

    def _answers(self) -> FieldAnswers:
        return FieldAnswers(
            self.app, self.options, self.head, self.scope, self.receive, self.send, handling=self.handling
        )

    async def _handle(
        self, message: Message, step: Step, live: ActiveSession | None, refused: Refusal | None = None
    ) -> None:
        await super()._handle(message, step, live, refused)
        ended = step is Step.DELETE and live is not None and live.outlives
        # What `initialize` began is one session, and it is over.
        if ended and message.method == TERMINATE and has_servers_own(self.scope):
            await answers.hang_up(self.app, self.scope, self.receive)

    # --- forwarded ---------------------------------------------------------------------------

    async def _forward(self, message: Message, step: Step, live: ActiveSession | None) -> None:
        if self._opens(message):
            self._take_over_response()
            self.send = Opening(
                self.send,
                message.id or b"",
                partial(self._opened, message, live),
                partial(self._failed, message),
                max_event_bytes=self.options.max_event_bytes,
            )
        elif live is not None and step in decision.ECHOES and message.id is not None and field(message) is not None:
            self._name_in_answer(message.id, live)
        transport = self.head.first(SESSION_HEADER)
        if transport is not None and self.options.unconfirmed is not None:
            await self.options.unconfirmed.settle(transport, message, self.app, self.scope, self.receive)
        await super()._forward(self._plain(message), step, live)

    def _plain(self, message: Message) -> Message:
        """The message as servers of today read it: without the field, and with the capabilities that they ask for."""
        body = message.body if message.field is None else rewrite.without_field(message.body)
        if message.method == INITIALIZE and self._opted.creates is not None:
            body = rewrite.with_capabilities(body)
        if body is message.body:
            return message
        self._declare(body)
        return msgspec.structs.replace(message, body=body, field=None)

    def _name_in_answer(self, request_id: bytes, live: ActiveSession) -> None:
        self._take_over_response()

        def named(text: bytes) -> bytes | None:
            return rewrite.with_field(text, request_id, live.token)

        self.send = Responder(self.send, named, None, max_event_bytes=self.options.max_event_bytes)

    # --- begun by initialize -----------------------------------------------------------------

    def _opens(self, message: Message) -> bool:
        """Whether the answer of this `initialize` names a session."""
        speaks = self._opted.initializes is not None and not self._opted.is_sessionless
        is_handshake = message.method == INITIALIZE and message.kind is MessageKind.REQUEST and not self.head.is_modern
        return speaks and is_handshake and not speaks_draft(message)

    def _may_name_transport(self, message: Message) -> bool:
        return self._opted.initializes is None and super()._may_name_transport(message)

    def _naming(self, message: Message) -> Send:
        return self.send if self.scope.get(WAY) else super()._naming(message)  # it goes on with a session that it has

    async def _mint_for(self, message: Message, servers_id: str) -> str:
        mint = self._begin if self._opens(message) else self._minted
        self.begun = await mint(message, TRANSPORT, servers_id)
        return self.begun.token

    async def _begin(self, message: Message, kind: TokenKind, servers_id: str | None = None) -> ActiveSession:
        """The session that an `initialize` begins, with what its client can do."""
        mint, said = partial(self._minted, message, kind, servers_id), capabilities(message)
        return await (mint() if said is None else begin(said, mint))

    async def _opened(self, message: Message, live: ActiveSession | None, answer: bytes, own: str | None) -> Opened:
        """The session that an `initialize` goes on with or begins, with what its client can do."""
        if live is None:
            live = self.begun or await self._begin(message, self._kind_beside(own))
        elif (said := capabilities(message)) is not None:
            await live.keep_capabilities(said)
        if own is not None and self.options.unconfirmed is not None and agrees_on_version(message, answer):
            self.options.unconfirmed.note(own)
        return Opened(live.token, in_head=live.claims.kind == TRANSPORT)

    def _kind_beside(self, own: str | None) -> TokenKind:
        """The kind of session that fits what the header is for."""
        alone = TRANSPORT if self.options.transport else FIELD
        return alone if own is None else BESIDE

    def _failed(self, message: Message, refusal: Refusal) -> bytes:
        return self._answers().told(message, refusal)


CONFIRMATION: Final = "notifications/initialized"
MAX_WAITING: Final = 10_000  # transport sessions; those of clients that never came back go first
_EARLY: Final = frozenset({"initialize", "ping"})


class Unconfirmed:
    """The transport sessions of one middleware that wait for `notifications/initialized`."""

    def __init__(self, *, max_waiting: int = MAX_WAITING) -> None:
        """Args:
        max_waiting: How many are remembered at most; the oldest go first.
        """
        self._max_waiting: Final = max_waiting
        self._waiting: Final[OrderedDict[str, None]] = OrderedDict()

    def note(self, transport: str) -> None:
        """A transport session has begun whose client need not confirm it."""
        self._waiting[transport] = None
        if len(self._waiting) > self._max_waiting:
            self._waiting.popitem(last=False)

    async def settle(self, transport: str, message: Request, app: ASGIApp, scope: Scope, receive: Receive) -> None:
        """Confirm a transport session, if it waits for that and this message comes before its client did so.

        Args:
            transport: The server's own id of it.
            message: What is about to be forwarded.
            app: The wrapped application.
            scope: The message's own scope.
            receive: The server's `receive`.
        """
        if transport not in self._waiting or message.method in _EARLY:
            return
        if message.method != CONFIRMATION:
            await notify(app, scope, receive, CONFIRMATION)
        self._waiting.pop(transport, None)  # only now: a message beside this one must not overtake it
