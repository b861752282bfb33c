"""One request's way: body, message, decision, session, and then forwarded, answered or refused.

An `Exchange` lives for one POST to the MCP path and reads in the order in which things happen. It
decides nothing itself: `protocol` does, from a table.

One request's way where the names of conversations are looked for: the same way, with a label around it.

What spans and handlers find without a scope is a context variable, which must not outlive its request.
"""

from __future__ import annotations

from collections.abc import Awaitable
from contextlib import nullcontext
from functools import partial
from math import inf
from typing import TYPE_CHECKING

from starlette.types import Send

from .._protocol import decision, draft, jsonrpc, rewrite
from .._protocol.decision import ATTACH, FORWARD, LIST, NOTHING, STABLE, Carries, Step
from .._protocol.draft import INITIALIZE, Role, SessionMetadata, speaks_draft
from .._protocol.headers import SESSION_HEADER
from .._protocol.jsonrpc import NOTIFICATION, REQUEST, RESPONSE, SESSION_KEY, Message
from .._protocol.labels import client_of
from .._protocol.strict_json import is_deeper
from .._session.claims import SESSION, TRANSPORT
from .._session.claims import Kind as TokenKind
from .._session.current import correlation_variable, session_variable
from .._session.events import RequestRefused, SessionUsed
from .._session.session import Session
from ..errors import NOT_JSONRPC, EraRefused, InvalidRequest, Refusal, SessionNotFound, refuse
from . import body as request_body
from .answers import Answers
from .context import WAY, Beginning, Crossing, Forwarding, crossing
from .labels import Conversation
from .methods import METHODS, Asked
from .response import Handshake, Responder, Watched, WriteBack
from .sessions import ActiveSession, mint
from .streams import Origin

if TYPE_CHECKING:
    from ..telemetry.outcome import RequestTelemetry


class Exchange(Forwarding):
    """One POST to the MCP path.

    Args:
        handling: What telemetry tells of the message, once it is known; None where nobody listens.
    """

    handling: RequestTelemetry | None = None

    def run(self) -> Awaitable[None]:
        """Take the request from its first byte to the last of its response."""
        if self.header is not None:
            self._edit_headers({SESSION_HEADER})
        try:
            body = request_body.read_body(
                self.receive, self.head, max_bytes=self.options.max_body_bytes, timeout=self.options.body_timeout
            )
            if not isinstance(body, bytes):
                return self._run_on(body)
            message = self._parse(body)
        except Refusal as refusal:
            return self._answers().refuse_unread(refusal)
        return self._take_in(message, body)

    async def _run_on(self, arriving: Awaitable[bytes]) -> None:
        """As `run`, where the body did not come with the head."""
        try:
            body = await arriving
            message = self._parse(body)
        except Refusal as refusal:
            await self._answers().refuse_unread(refusal)
        else:
            await self._take_in(message, body)

    def _take_in(self, message: Message | None, body: bytes) -> Awaitable[None]:
        if message is not None:
            # Most messages pass as they are. What `protocol.TABLE` would say of them is told here at once.
            meta, options = message.params.meta, self.options
            names_session = meta is not None and SESSION_KEY in meta
            if names_session or self.header is not None or message.method in options.attended or options.is_attentive:
                return self._judge(message)
            if options.tells():
                return self._told(message, FORWARD, None)
        if session_variable.get() is not None:
            return self._call(body, self.send)
        # Mostly no session is around either, and nothing is to be set.
        self.scope["mcp_session"] = None
        self.scope.setdefault("state", {})["mcp_session"] = None
        return self.app(self.scope, request_body.Replay(body, self.receive), self.send)

    async def _judge(self, message: Message) -> None:
        handle = self._told if self.options.tells() else self._handle
        try:
            if self.options.legacy_only and self.head.is_modern:
                raise EraRefused
            named = self._named(message)
            is_transport = self._is_transport(message, named)
            step = self._decide(message, named, is_transport)
            live = await self._open(message, named, is_transport, step)
        except Refusal as refusal:
            await handle(message, FORWARD, None, refusal)
        else:
            await handle(message, step, live)

    def _handle(
        self, message: Message, step: Step, live: ActiveSession | None, refused: Refusal | None = None
    ) -> Awaitable[None]:
        if refused is not None:
            return self._answers().refuse(message, refused)
        if step in decision.ANSWERED:
            asked = Asked(self.options, self.scope, message, live)
            return self._answers().answer(message, partial(METHODS[step], asked))
        return self._forward(message, step, live)

    async def _told(
        self, message: Message, step: Step, live: ActiveSession | None, refused: Refusal | None = None
    ) -> None:
        """Handle a message while telemetry tells of it."""
        telemetry = self.options.telemetry()
        self.handling = telemetry.begin(
            message,
            version=self.head.version,
            session=None if live is None else live.claims,
            is_forwarded=refused is None and step not in decision.ANSWERED,
        )
        telemetry.store_context(self.scope, message)
        if self.handling is None:
            await self._handle(message, step, live, refused)
            return
        self.send = telemetry.observed(self.send, self.handling)
        try:
            await self._handle(message, step, live, refused)
        except BaseException as error:
            self.handling.end(error)
            raise
        self.handling.end()

    _named = staticmethod(draft.named)
    """The session that a message names, unverified."""

    def _is_transport(self, message: Message, named: SessionMetadata | None) -> bool:
        """Whether the header of ours names a transport session; an `initialize` begins anew, whatever it carries."""
        if self.header is None or message.method == INITIALIZE:
            return False
        return self.options.role(self.header, named) is Role.TRANSPORT

    def _open(
        self, message: Message, named: SessionMetadata | None, is_transport: bool, step: Step
    ) -> Awaitable[ActiveSession | None]:
        """The session of the request: the one that `_meta` names, else the transport session. Both must live."""
        in_meta = named if step in decision.NEEDS_LIVE_SESSION else None
        if in_meta is not None and not is_transport:
            return self._live(message, step, in_meta, SESSION)
        return self._open_both(message, in_meta, self.header if is_transport else None, step)

    async def _open_both(
        self, message: Message, named: SessionMetadata | None, header: str | None, step: Step
    ) -> ActiveSession | None:
        live = None
        if header is not None:
            try:
                live = await self._live(message, step, SessionMetadata(header, None), TRANSPORT)
                if self.options.bridges:
                    self.scope[WAY] = crossing(live)
            except SessionNotFound as refusal:
                raise SessionNotFound(refusal.reason, ref=refusal.ref, http_status=404) from None
        return live if named is None else await self._live(message, step, named, SESSION)

    def _live(self, message: Message, step: Step, named: SessionMetadata, kind: TokenKind) -> Awaitable[ActiveSession]:
        return ActiveSession.open(
            named,
            self.options,
            principal=self.options.principal(self.scope),
            lenient=self.options.lets_unknown_in and self._may_go_unchecked(message, step),
            kind=kind,
        )

    def _may_go_unchecked(self, message: Message, step: Step) -> bool:
        """Whether a request goes on though the store does not answer: never one that ends or needs a session."""
        return step not in decision.ANSWERED and self._lack(message) is NOTHING

    def _answers(self) -> Answers:
        return Answers(self.app, self.options, self.head, self.scope, self.receive, self.send, self.handling)

    # --- what came ---------------------------------------------------------------------------

    def _parse(self, body: bytes) -> Message | None:
        """The one message in a body, or None for a body that passes as it came: a batch, or no JSON-RPC."""
        if len(body) > self.options.max_nesting and is_deeper(body, self.options.max_nesting):
            raise refuse("nesting_too_deep")
        try:
            parsed = jsonrpc.parse(body, max_batch=self.options.max_batch)
        except InvalidRequest as refusal:
            if self.strict or refusal.reason != NOT_JSONRPC:
                raise
        else:
            if isinstance(parsed, Message):
                return parsed
            if any(map(self._speaks_of_sessions, parsed.items)):
                raise refuse("batch")
        if self.header is not None:
            raise refuse("session_header_alone")
        return None

    def _speaks_of_sessions(self, item: Message) -> bool:
        named = item.names_session
        about_sessions = decision.subject(item, self.options.subjects) in decision.ABOUT_SESSIONS
        return named or about_sessions or self._lack(item) is Carries.TOO_LITTLE

    def _decide(self, message: Message, named: SessionMetadata | None, is_transport: bool) -> Step:
        about = decision.subject(message, self.options.subjects)
        # What creates or deletes a session speaks of the one in `_meta`; a transport session beside it says nothing.
        has_session = named is not None or (is_transport and about not in decision.ABOUT_SESSIONS)
        step = decision.decide(about, decision.SESSION if has_session else self._lack(message))
        return decision.list_step(self.options.lists, modern=self.head.is_modern) if step is LIST else step

    def _lack(self, message: Message) -> Carries:
        policy, kind = self.options.policy, message.kind
        if policy.summary == "never" or kind is RESPONSE:
            return NOTHING
        asked = policy.requires(message.method, message.target, kind is NOTIFICATION)
        return Carries.TOO_LITTLE if asked else NOTHING

    # --- forwarded ---------------------------------------------------------------------------

    def _forward(self, message: Message, step: Step, live: ActiveSession | None) -> Awaitable[None]:
        options, body, send = self.options, message.body, self.send
        # SDK 1.x logs a notification that it does not know as a whole, and nothing answers one that could echo.
        if step is STABLE or (live is not None and message.kind is NOTIFICATION):
            body = rewrite.without_session(message)
            self._declare(body)
        session = Session(live) if live is not None and step is ATTACH else None
        if options.conversation is not None and message.kind is not RESPONSE:
            body = self._converse(options.conversation, message, session, body)
        if session is not None and options.listen is not None:
            options.listen(SessionUsed(session.ref, message.label))
        current = session
        if message.method == INITIALIZE:  # in which stateful servers start the task that serves the whole connection
            current, send = None, self._naming(message)
        echoed = live if step in decision.ECHOES else None
        writes = WriteBack.of(message, echoed, options.settings, options.capability)
        responder = None if writes is None else self._responder(send, writes, message, live)
        answering = send if responder is None else responder.__call__
        return self._call(body, answering, session, current, live=live, responder=responder)

    def _responder(self, send: Send, writes: WriteBack, message: Message, live: ActiveSession | None) -> Responder:
        """What changes the answer on its way out."""
        self._take_over_response()
        watch, late_at = (None, inf) if live is None else (partial(self._watched, message, live), live.late_at)
        return Responder(
            send,
            writes.__call__,  # a method that is bound: an instance is called in twice the time
            watch,
            late_at=late_at,
            clock=self.options.clock,
            save=writes.save if writes.saves else None,
            max_event_bytes=self.options.max_event_bytes,
        )

    def _converse(self, conversation: Conversation, message: Message, session: Session | None, body: bytes) -> bytes:
        """The body with what is told of the conversation, whose name is noted."""
        found = conversation.note(message, self.head, session, self.scope)
        told = conversation.carried(message, body, session, found)
        if told is not body:
            self._declare(told)
        return told

    def _naming(self, message: Message) -> Send:
        """What names a transport session in the answer to `initialize`: for the server's own, or where it has none."""
        if self.options.bridges:
            refuse = partial(self._answers().refuse_at_once, message)
            self.scope[WAY] = Beginning(message.id or b"", partial(self._mint_for, message), refuse)
        if self._may_name_transport(message):
            return Handshake(self.send, message.id or b"", partial(self._mint_transport, message))
        return self.send

    def _may_name_transport(self, message: Message) -> bool:
        is_request = message.kind is REQUEST and not self.head.is_modern
        return self.options.transport and is_request and not speaks_draft(message)

    async def _mint_transport(self, message: Message) -> str | None:
        """The id of a new transport session, or None where the caller gets none and goes on without."""
        try:
            live = await self._minted(message, TRANSPORT)
        except Refusal as refusal:
            self.options.emit(RequestRefused(refusal.reason, self.options.code(refusal), INITIALIZE))
            return None
        return live.token

    async def _mint_for(self, message: Message, servers_id: str) -> str:
        """The id of ours for a transport session that the server has begun.

        Raises:
            Refusal: The caller gets none.
        """
        return (await self._minted(message, TRANSPORT, servers_id)).token

    async def _minted(self, message: Message, kind: TokenKind, servers_id: str | None = None) -> ActiveSession:
        """A session that an `initialize` begins."""
        principal = self.options.principal(self.scope)
        with nullcontext() if self.handling is None else self.handling.current():
            return await mint(
                self.options,
                principal=principal,
                params={},
                scope=self.scope,
                kind=kind,
                client=client_of(message),
                servers_id=servers_id,
            )

    def _watched(self, message: Message, live: ActiveSession) -> Watched:
        """What ends the event stream that answers a request of a session."""
        assert message.id is not None
        way = self.scope.get(WAY)
        own = None if self.header is not None else self.head.first(SESSION_HEADER)
        return Watched(
            Origin(live.claims, message.id, message.label),
            way.servers if isinstance(way, Crossing) else own,
            self.options.streams,
            told=self._answers().ended(message, live.claims.ref),
            is_spared=lambda: live.outlives,
        )


class ConversingExchange(Exchange):
    """One POST to the MCP path, in a deployment with `correlate=` or `propagate=`."""

    async def run(self) -> None:
        """Take the request from its first byte to the last of its response."""
        token = correlation_variable.set(None)
        try:
            await super().run()
        finally:
            correlation_variable.reset(token)
