"""The transport header: clients of the legacy era send the `Mcp-Session-Id` that the answer to `initialize` named.

A stateless server names none, so the middleware puts its own id there. A server that keeps its own transport sessions
is bridged: its id travels sealed inside ours; it replaces ours in requests, and is taken out of answers. Two clients
never share one of the server's sessions, since each of ours is created for one of them. A session that `initialize`
starts is created when the server has succeeded, not before.
Sources: MCP 2025-11-25, Streamable HTTP, "Session Management"; the data-layer sessions draft for the mirrored header.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from functools import partial
from typing import Any, Final

from starlette.types import ASGIApp, Receive, Scope, Send
from starlette.types import Message as ASGIMessage

from .._affinity.relay import Kept
from .._errors import Refusal, SessionNotFound
from .._protocol.epochs import LateAnswer, restore
from .._protocol.headers import (
    ACCEPT_CODING,
    SESSION_HEADER,
    RequestHeaders,
    edit,
    keeps_cookies,
    single_header,
)
from .._protocol.jsonrpc import RESPONSE, Message
from .._protocol.methods import INITIALIZE
from .._protocol.rewrite import Answer
from .._refusals import refusal
from .._server.answers import end_upstream, send_status
from .._server.changes import SaveState
from .._server.context import Request, session_header_values
from .._server.credentials import RECONNECT, WRAP
from .._server.minting import mint_for
from .._server.response import Change, Response
from .._server.sessions import open_session
from .._session.claims import TRANSPORT, looks_like_session_id
from .._session.session import Session
from .._tokens import seal
from .._tokens.seal import Upstream
from .base import Credential, Dialect, NoCredential
from .crossing import CROSSING, Crossing
from .marking import MarkingSend, Recorder
from .takeover import SETTINGS, KeepSetting, begin_again, store_params, take_over

_MISSING_SESSION: Final = frozenset({400, 404})  # what a stateful server answers, past its guards, to one without an id
_AUTHENTIC_BUT_DEAD: Final = frozenset(
    {"expired", "ended", "store_lost", "begun_in_another_process", "bridge_key_unknown", "bridge_seal"}
)
_OFF: Final = NoCredential("sessions by the transport header are off", 'set transport="auto"')
_SERVERS_OWN: Final = NoCredential(
    "the wrapped server keeps transport sessions of its own",
    "give the wrapped server stateless_http=True, or set transport=TransportSessions(bridge=True)",
)
_STATEFUL: Final = (
    "the wrapped server has transport sessions of its own, so legacy clients without session support get none of ours: "
    "give it stateless_http=True, or set transport=TransportSessions(bridge=True)"
)
_EARLIER: Final = NoCredential(
    "its Mcp-Session-Id comes from an earlier deployment, in which the wrapped server kept transport sessions",
    "connect the client again; where a session is required, it gets HTTP 404 and may do so by itself",
    "session_header_stale",
)
_NONE: Final = NoCredential("it sent no Mcp-Session-Id", WRAP)
_NOT_SENT: Final = NoCredential("it sent no Mcp-Session-Id", RECONNECT)
_ACCEPTED: Final = 202
_log: Final = logging.getLogger("mcp_sessions")


class Transport(Dialect):
    """The header `Mcp-Session-Id` of clients whose server names no transport session.

    Args:
        is_on: Whether they get a session; if not, our ids in the header are refused.
        lifetime: Seconds from creation to expiry.
    """

    name: str = "Mcp-Session-Id"
    kinds: frozenset[str] = frozenset({TRANSPORT})
    is_always_sent: bool = True

    def __init__(self, *, is_on: bool, lifetime: float) -> None:
        self.is_on = is_on
        self.lifetime = lifetime

    def extract(self, request: Request) -> None:
        """Take our id out of the headers.

        Raises:
            Refusal: There are several, and two readers may take different ones.
        """
        headers = request.headers
        if SESSION_HEADER not in headers.by_name:
            return
        copies = headers.all(SESSION_HEADER)
        if any(self._takes(request, session_id) for session_id in copies):
            request.edit_headers({SESSION_HEADER})
            headers.session_id = single_header(copies)
        else:
            single_header(copies)

    def _takes(self, request: Request, session_id: str) -> bool:
        """Return whether an id is kept from the wrapped server."""
        return looks_like_session_id(session_id)

    def startup_warning(self, servers: Sequence[Any]) -> str | None:
        """Return a warning if clients get no session because a server keeps transport sessions."""
        return _STATEFUL if self.is_on and any(server.stateless is False for server in servers) else None

    def find(self, request: Request, earlier: Sequence[Credential]) -> Credential | NoCredential | None:
        """Return the session of the header, unless the header repeats the message's, or belongs to it.

        The token is not looked at: whether it is authentic must not show before its owner is known.
        """
        header, message = request.headers.session_id, request.message
        if message is not None and message.method == INITIALIZE:  # it begins a session, whatever it carries
            return None
        own = earlier[0] if earlier else None
        if header is None:
            is_earlier = SESSION_HEADER in request.headers.by_name and self.is_on and request.runtime.is_stateless
            return _EARLIER if is_earlier and own is None and not request.headers.is_modern else None
        if own is not None and (own.owns_header or own.id == header):
            return None
        if not self.is_on:
            raise refusal("session_header_alone" if own is None else "session_header_mismatch")
        return Credential(self, header, TRANSPORT, beside=own is not None and own.in_message)

    def absence(self, headers: RequestHeaders, message: Message) -> NoCredential | None:
        """Return why a client of the legacy era sent no session id."""
        if headers.is_modern:
            return None
        if not self.is_on:
            return _OFF
        if SESSION_HEADER in headers.by_name:
            return _SERVERS_OWN
        return _NONE if keeps_cookies(headers) else _NOT_SENT

    async def open(self, request: Request, credential: Credential, *, fail_open: bool) -> Session:
        """Load the session, or refuse with 404, so that clients initialize again; beside another session, with 400."""
        try:
            session = await open_session(request, credential.id, TRANSPORT, fail_open=fail_open)
        except SessionNotFound as error:
            if credential.beside and error.reason not in _AUTHENTIC_BUT_DEAD:
                raise refusal("session_header_mismatch", ref=error.ref) from None
            error.http_status = 404
            raise
        return session

    def changes(self, request: Request, session: Session | None) -> Sequence[Change]:
        """Store the session's state; name a new session with the answer to `initialize`."""
        if session is not None:
            return (SaveState(session=session),)
        message = request.message
        if message is None or message.method != INITIALIZE:
            return ()
        return (NameSession(defers_start=True, transport=self),) if self.may_name(request) else ()

    def may_name(self, request: Request) -> bool:
        """Return whether the answer to `initialize` may name a new logical session."""
        return self.is_on and not request.headers.is_modern and not request.is_reached


class Bridge(Transport):
    """The header of clients whose server keeps transport sessions: they see our ids in place of the server's.

    Args:
        names: Whether clients get a session if the server names none.
        lifetime: Seconds from creation to expiry.
    """

    reads_everything: bool = True
    serves_streams: bool = True
    lives_in_process: bool = True

    def __init__(self, *, names: bool, lifetime: float) -> None:
        super().__init__(is_on=True, lifetime=lifetime)
        self._names: Final = names

    def extract(self, request: Request) -> None:
        """Take the id out of the headers; until it is known to be ours, the server sees the request without any."""
        if SESSION_HEADER in request.headers.by_name:
            request.admitting_statuses = _MISSING_SESSION
        super().extract(request)

    def _takes(self, request: Request, session_id: str) -> bool:
        # To a stateless server, an id of an earlier deployment says nothing.
        return not request.runtime.is_stateless or looks_like_session_id(session_id)

    def startup_warning(self, servers: Sequence[Any]) -> str | None:
        """Return no warning: clients get a session beside that of the server."""
        return None

    def wrap(self, request: Request, app: ASGIApp) -> ASGIApp:
        """Let the request cross the bridge."""
        return partial(call_upstream, request, app)

    async def open(self, request: Request, credential: Credential, *, fail_open: bool) -> Session:
        """Load the session, by which the request reaches the server's."""
        session = await super().open(request, credential, fail_open=fail_open)
        await cross(request, session)
        return session

    async def prepare(self, request: Request) -> None:
        """Let an `initialize` begin a session of the wrapped server, and give an answer the id of its question."""
        message = request.current_message
        if message.method == INITIALIZE:
            request.notes.setdefault(CROSSING, Crossing(begins=True))
        crossing: Crossing | None = request.notes.get(CROSSING)
        if crossing is not None and not crossing.begins:
            try:
                request.outgoing = restore(message, request.outgoing, crossing.epoch)
            except LateAnswer:
                crossing.is_late = True

    def changes(self, request: Request, session: Session | None) -> Sequence[Change]:
        """Store the session's state; name a session with `initialize`, unless it continues one that it has."""
        message = request.message
        if session is None and message is not None and message.method == INITIALIZE:
            return () if CROSSING in request.notes else (NameSession(defers_start=True, transport=self),)
        changes = super().changes(request, session)
        if session is not None and message is not None and message.method in SETTINGS and self._can_move(request):
            return (*changes, KeepSetting(session=session))
        return changes

    def _can_move(self, request: Request) -> bool:
        """Return True if another worker may take the session over."""
        return request.runtime.affinity is not None

    def may_name(self, request: Request) -> bool:
        """Return whether the answer to `initialize` may name a new session if the server names none."""
        return self._names and super().may_name(request)


class NameSession(Change, kw_only=True):
    """A new session, named in the headers of the successful answer to `initialize`."""

    transport: Transport

    async def on_answer(self, answer: Answer, response: Response) -> bytes | None:
        """Name the session once the success is seen, whose text stays; without one, the answer leaves as it is."""
        if not self.defers_start:
            return None
        self.defers_start = False
        request = response.request
        crossing: Crossing | None = request.notes.get(CROSSING)
        if crossing is not None and crossing.server_id:
            await self._name_bridged(crossing, response)
        elif self.transport.may_name(request):
            request.runtime.is_stateless = True
            try:
                response.name((await mint_for(request, self.transport, TRANSPORT)).id)
            except Refusal as refused:
                request.record_refused(refused, INITIALIZE)
        return None

    async def _name_bridged(self, crossing: Crossing, response: Response) -> None:
        """Name our session, with the server's id sealed inside; if none can be created, refuse instead."""
        request = response.request
        try:
            made = await mint_for(request, self.transport, TRANSPORT, upstream=await self._upstream(crossing, request))
        except Refusal as refused:
            crossing.is_orphaned = True
            await response.refuse(refused)
        else:
            if request.runtime.affinity is not None:
                request.runtime.affinity.owners.begin(made._claims, crossing.server_id)
            response.new_session = made
            response.name(made.id)

    async def _upstream(self, crossing: Crossing, request: Request) -> Upstream:
        """Return what is sealed in the token: also who owns the session, if it may have to be taken over."""
        runtime = request.runtime
        if runtime.affinity is None:
            return Upstream(crossing.server_id)
        now = runtime.clock()
        params = await store_params(request, runtime.ring(now).signing, int(now + (self.transport.lifetime or 0)))
        return Upstream(crossing.server_id, runtime.affinity.workers.name, params)


# --- the bridge ---


async def cross(request: Request, session: Session) -> None:
    """Let a request reach the server's session that is sealed in a logical one, or the one that has taken its place."""
    upstream = seal.open_upstream(session._key, session._claims)
    if upstream is None:
        return
    affinity, server_id, epoch = request.runtime.affinity, upstream.server_id, 0
    if affinity is not None and upstream.owner:
        ownership = await affinity.owners.owned(session._claims, upstream)
        if ownership is None and request.scope["method"] != "DELETE":
            ownership = await take_over(request, session, upstream)
        if ownership is not None:
            server_id, epoch = ownership.server_id, ownership.epoch
    is_moving = affinity is not None and upstream.owner != ""
    request.notes[CROSSING] = Crossing(session.id, server_id, epoch=epoch, may_begin_again=is_moving)
    request.upstream_id = upstream.server_id  # the same in every epoch, since event ids are bound to it
    request.admitting_statuses = frozenset()


async def call_upstream(request: Request, app: ASGIApp, scope: Scope, receive: Receive, send: Send) -> None:
    """Call the wrapped server with its own id in place of ours, and let its response leave with ours in place of its.

    A live logical session has the server's id sealed inside, and a successful `initialize` begins one. Any other
    request reaches the server without an id, and its client sees none. An answer to a question of another epoch is
    accepted, as the server accepts every answer, and goes no further.
    """
    crossing: Crossing | None = request.notes.get(CROSSING)
    if crossing is not None and crossing.is_late:
        await send_status(send, _ACCEPTED)
    elif crossing is None or crossing.begins:
        await _call(request, app, scope, receive, send)
    elif not crossing.may_begin_again or scope["method"] == "DELETE":
        await _call_in_session(request, app, scope, receive, send)
    else:
        kept, recorder = Kept(receive), Recorder(send)
        await _call_in_session(request, app, scope, kept, recorder)
        if not (recorder.has_forgotten and await _begin_again(request, app, scope, kept.again(), send)):
            await recorder.relay()
    if crossing is not None and crossing.is_orphaned and crossing.server_id:
        await end_upstream(app, scope, receive, crossing.server_id)  # no client will ever use it


async def _begin_again(request: Request, app: ASGIApp, scope: Scope, receive: Receive, send: Send) -> bool:
    """Serve a request in a new session of the server, which forgot the old one; return False if that may not be."""
    assert request.session is not None, "its session is open"
    ownership = await begin_again(request, request.session)
    if ownership is None:
        return False
    if request.message is not None and request.message.kind is RESPONSE:  # the question went with the session
        await send_status(send, _ACCEPTED)
        return True
    request.notes[CROSSING] = Crossing(request.session.id, ownership.server_id, epoch=ownership.epoch)
    await _call_in_session(request, app, scope, receive, send)
    return True


async def _call_in_session(request: Request, app: ASGIApp, scope: Scope, receive: Receive, send: Send) -> None:
    crossing: Crossing = request.notes[CROSSING]
    named = (SESSION_HEADER, crossing.server_id.encode("ascii"))
    # A compressed stream would hide the server's own requests.
    scope = {**scope, "headers": edit(scope["headers"], drop=(ACCEPT_CODING,), add=(named,))}
    await _call(request, app, scope, receive, MarkingSend(send, crossing.epoch, request.runtime.limits.event_bytes))


async def _call(request: Request, app: ASGIApp, scope: Scope, receive: Receive, send: Send) -> None:
    crossing: Crossing | None = request.notes.get(CROSSING)

    async def translate(event: ASGIMessage) -> None:
        if event["type"] == "http.response.start":
            event = _translated(crossing, event)
            if crossing is not None and crossing.begins and crossing.server_id:
                request.upstream_id = crossing.server_id  # for which the ids of events are signed
        await send(event)

    await app(scope, receive, translate)


def _translated(crossing: Crossing | None, start: ASGIMessage) -> ASGIMessage:
    """Return the start of a response with our id or none in place of the server's, which an `initialize` keeps."""
    ids = session_header_values(start)
    headers = [(name, value) for name, value in start.get("headers", ()) if name.lower() != SESSION_HEADER]
    if crossing is not None and not crossing.begins and ids == [crossing.server_id]:
        headers.append((SESSION_HEADER, crossing.client_id.encode("ascii")))
    elif crossing is not None and crossing.begins and len(ids) == 1:
        if seal.can_carry(ids[0]):
            crossing.server_id = ids[0]
        else:
            _log.error("the server's transport id is not visible ASCII, or too long, so its client cannot get it")
    return {**start, "headers": headers}
