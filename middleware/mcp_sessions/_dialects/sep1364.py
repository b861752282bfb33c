"""Both alternatives of SEP-1364, "Specification": a top-level `sessionId`, mirrored in the header `Mcp-Session-Id`.

By alternative 1 `sessions/create` creates a session or renews its client's capabilities; it is of this dialect and not
of the draft if it gives `capabilities` or a `sessionId`. By alternative 2 `initialize` creates a session or continues
one, and `terminate` ends it. What is null is absent.
"""

from __future__ import annotations

from abc import abstractmethod
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from typing import Any, Final

from msgspec import Raw

from .._errors import Refusal, SessionNotFound
from .._protocol import rewrite
from .._protocol.headers import SESSION_HEADER
from .._protocol.jsonrpc import REQUEST, RESPONSE, Message
from .._protocol.metadata import declares_sessions, parse_metadata
from .._protocol.methods import CREATE, DELETE, INITIALIZE, INITIALIZED, PING, SESSIONLESS
from .._protocol.rewrite import Answer
from .._protocol.strict_json import NULL, join, last_members, string
from .._refusals import refusal
from .._server import minting
from .._server.answers import end_upstream, notify
from .._server.changes import SaveState
from .._server.context import Request, carried_session
from .._server.option_types import as_seconds
from .._server.response import Change, Response
from .._server.sessions import open_session, store_capabilities
from .._session.claims import COEXISTING, FIELD, SESSION, TRANSPORT, Kind
from .._session.endings import Ending
from .._session.session import Session
from . import transport_of
from .base import Answers, Credential, Dialect
from .transport import cross

FIELD_NAME: Final = "sessionId"
TERMINATE: Final = "terminate"
MAX_WAITING: Final = 10_000  # transport sessions that wait for a confirmation; the oldest go first
_CREATES: Final = frozenset({CREATE, "session/create"})
_OWN: Final = frozenset({FIELD_NAME, "capabilities"})  # params of which the draft's `sessions/create` has none
_DELETES: Final = frozenset({DELETE, "session/delete"})
_NEVER_REQUIRING: Final = frozenset({INITIALIZE, INITIALIZED, PING})
"""What a client may send before it has a session, if sessions are required."""


class _Field(Dialect):
    """What both alternatives share: the field, and the header that must repeat it."""

    name: str = "SEP-1364"
    kinds: frozenset[str] = frozenset({FIELD, COEXISTING})

    def find(self, request: Request, earlier: Sequence[Credential]) -> Credential | None:
        """Return the session of the field or of a method's params, unless an earlier dialect has found it.

        If `_meta` names a session as well, that one counts, and must be the same.
        """
        message, header = request.message, request.headers.session_id
        if message is None:  # a GET may name it in the header alone
            if header is None or request.scope["method"] == "DELETE" or request.runtime.kind_of(header) != FIELD:
                return None
            return Credential(self, header, FIELD)
        if earlier:
            return None
        in_field = field(message)
        named = agreed(in_field, self.id_in_params(message))
        if named is None:
            return None
        if message.session is not None:
            agreed(parse_metadata(message.session).session_id, named)
        kind = None if message.session is not None else request.runtime.kind_of(named)
        # Across the bridge, the server's own session is sealed in that of the header, beside which this one can stand.
        stands_beside = kind == COEXISTING and transport_of(request.runtime).bridge and header is not None
        contradicted = in_field is not None and not stands_beside and not _is_mirrored(request, named, kind)
        if message.session is not None:
            if contradicted:
                raise refusal("session_header_mismatch")
            return None
        if kind is None or kind == SESSION:  # a session of the draft is named in `_meta`, with its state
            raise _repeating(SessionNotFound("token_kind"), named)
        owns_header = in_field is not None and not stands_beside
        return Credential(self, named, kind, in_message=True, owns_header=owns_header, contradicted=contradicted)

    async def open(self, request: Request, credential: Credential, *, fail_open: bool) -> Session:
        """Load the session; its owner learns that the header contradicts the field."""
        session = await open_session(request, credential.id, credential.kind, fail_open=fail_open)
        if credential.contradicted:
            raise refusal("session_header_mismatch", ref=session.ref)
        if credential.kind == TRANSPORT and transport_of(request.runtime).bridge:
            await cross(request, session)
        return session

    async def prepare(self, request: Request) -> None:
        """Take the field out of the message."""
        if request.current_message.field is not None:
            envelope = last_members(request.outgoing)
            request.outgoing = join({name: value for name, value in envelope.items() if name != FIELD_NAME})

    def changes(self, request: Request, session: Session | None) -> Sequence[Change]:
        """Store the session's state, and repeat the session in the field of the answer."""
        if session is None:
            return ()
        message = request.message
        repeats = message is not None and field(message) is not None
        own = SaveState(session=session)
        return (own, NameInField(session=session)) if repeats else (own,)

    def concerns(self, message: Message) -> bool:
        """Return whether a message names a session, or is a method of this dialect."""
        return agreed(field(message), self.id_in_params(message)) is not None

    @abstractmethod
    def id_in_params(self, message: Message) -> str | None:
        """Return the session that a method of this dialect names in its params."""


class SEP1364Create(_Field):
    """The dialect of SEP-1364's first alternative: `dialects=[SEP1364Create()]`.

    Args:
        required: Whether all messages except `initialize`, `notifications/initialized` and `ping` must carry a session,
            as `capabilities.sessions` announces.
    """

    def __init__(self, *, required: bool = False) -> None:
        self.required: Final = required
        self.capability: Mapping[str, Any] = {"required": required}
        self._create: Final = Answers(self.create_or_renew, repeated=(FIELD_NAME,))
        self._delete: Final = Answers(delete, "required")

    def answers(self, request: Request) -> Answers | None:
        """Return what answers `sessions/create` and `sessions/delete` in the manner of this dialect."""
        return None if request.message is None else self._answers(request.message)

    def _answers(self, message: Message) -> Answers | None:
        method = message.method
        if method in _CREATES and (method != CREATE or not _OWN.isdisjoint(message.all_params)):
            return self._create
        return self._delete if method in _DELETES else None

    def requires(self, request: Request, own: Credential | None) -> bool:
        """Return whether a message lacks a session in the message itself."""
        message = request.message
        if not self.required or message is None or message.method in _NEVER_REQUIRING or message.kind is RESPONSE:
            return False
        return own is None or not own.in_message

    def concerns(self, message: Message) -> bool:
        """Return whether a message names or needs a session, or is a method of this dialect."""
        needs = self.required and message.method not in _NEVER_REQUIRING and message.kind is not RESPONSE
        return needs or self._answers(message) is not None or super().concerns(message)

    async def prepare(self, request: Request) -> None:
        """Take the field out, and give `initialize` the capabilities that servers of today require."""
        await super().prepare(request)
        if request.current_message.method == INITIALIZE:
            request.outgoing = rewrite.with_capabilities(request.outgoing)

    def id_in_params(self, message: Message) -> str | None:
        """Return the session that `sessions/create` renews or `sessions/delete` ends."""
        value = message.all_params.get(FIELD_NAME) if message.method in _CREATES | _DELETES else None
        return None if value is None else _text(value)

    async def create_or_renew(self, request: Request) -> dict[str, Any]:
        """Create a session with the client's capabilities, or store those in the session that the message names."""
        stated = capabilities(request.current_message)
        if stated is None:
            raise refusal("capabilities_missing")
        if request.sent_id is not None:
            session = carried_session(request)
            await store_capabilities(request.runtime, session, stated)
            return {FIELD_NAME: session.id}
        kind = COEXISTING if request.server_id is not None else FIELD  # for as long as it lives
        request.client_capabilities = stated
        return {FIELD_NAME: (await self.create(request, kind, params=minting.hook_params(request))).id}


class SEP1364Initialize(_Field):
    """The dialect of SEP-1364's second alternative: `dialects=[SEP1364Initialize()]`.

    Args:
        sessionless: Whether this server has no sessions: `initialize` returns none, and a request with one gets an
            error.
    """

    def __init__(self, *, sessionless: bool = False) -> None:
        self.sessionless: Final = sessionless
        self._terminate: Final = Answers(terminate, "required", "field_missing")
        # Transport sessions of the wrapped server whose clients need not send `notifications/initialized`.
        self._unconfirmed: Final[OrderedDict[str, None]] = OrderedDict()

    def reaches(self, request: Request) -> bool:
        """Return whether `initialize` may begin a session of this dialect."""
        return not request.headers.is_modern

    def answers(self, request: Request) -> Answers | None:
        """Return what answers `terminate`."""
        message = request.message
        return self._terminate if message is not None and message.method == TERMINATE else None

    def find(self, request: Request, earlier: Sequence[Credential]) -> Credential | None:
        """Return the session of the field, which a server without sessions refuses."""
        message = request.message
        named = None if message is None else agreed(field(message), self.id_in_params(message))
        if self.sessionless and named is not None:
            raise _repeating(SessionNotFound("sessionless"), named)
        return super().find(request, earlier)

    def concerns(self, message: Message) -> bool:
        """Return whether a message names a session, or ends one."""
        return message.method == TERMINATE or super().concerns(message)

    def id_in_params(self, message: Message) -> str | None:
        """Return the session that `terminate` ends."""
        value = message.all_params.get(FIELD_NAME) if message.method == TERMINATE else None
        return None if value is None else _text(value)

    async def prepare(self, request: Request) -> None:
        """Send the server the confirmation that this dialect lets clients leave out, and take the field out."""
        message, transport = request.current_message, request.headers.first(SESSION_HEADER)
        if self._begins(request):
            request.client_capabilities = capabilities(message)
        if transport is not None and transport in self._unconfirmed and message.method not in SESSIONLESS:
            if message.method != INITIALIZED:
                await notify(request, INITIALIZED)
            self._unconfirmed.pop(transport, None)  # only now: a concurrent message must not overtake it
        await super().prepare(request)

    def changes(self, request: Request, session: Session | None) -> Sequence[Change]:
        """Repeat the session in the answer; that of `initialize` begins one if it names none."""
        if not self._begins(request):
            return super().changes(request, session)
        own = () if session is None else (SaveState(session=session),)
        named = None if request.sent_id is None else request.session  # perhaps found by the other alternative
        return (*own, BeginInField(defers_start=True, dialect=self, session=named))

    def _begins(self, request: Request) -> bool:
        """Return whether the answer names a session that it begins or continues."""
        message = request.current_message
        is_handshake = message.method == INITIALIZE and message.kind is REQUEST and not request.headers.is_modern
        return is_handshake and not self.sessionless and not declares_sessions(message)

    def confirm_later(self, transport: str) -> None:
        """Note a transport session of the server whose client need not send the confirmation."""
        self._unconfirmed[transport] = None
        if len(self._unconfirmed) > MAX_WAITING:
            self._unconfirmed.popitem(last=False)


class NameInField(Change, kw_only=True):
    """The session in the top-level field of the answer."""

    session: Session

    async def on_answer(self, answer: Answer, response: Response) -> bytes | None:
        """Return the answer with the session."""
        return rewrite.with_field(answer, self.session.id)


class BeginInField(Change, kw_only=True):
    """The session that the answer to `initialize` begins or continues, in the field and in the headers."""

    dialect: SEP1364Initialize
    session: Session | None  # that the message names
    is_answered: bool = False

    async def on_answer(self, answer: Answer, response: Response) -> bytes | None:
        """Return the answer with the session, or with the refusal if it cannot be created."""
        if self.is_answered:
            return None
        self.is_answered = True
        try:
            session = await self._begin(answer, response)
        except Refusal as refused:
            return response.request.refusal_body(refused)
        finally:
            self.defers_start = False
        return rewrite.with_field(answer, session.id)

    async def _begin(self, answer: Answer, response: Response) -> Session:
        """Continue the session that is named, or create one, and store what its client can do."""
        request, own = response.request, response.session_id  # the server's id, or what is named in its place
        message, session = request.current_message, self.session or response.new_session
        stated = request.client_capabilities
        if session is None:
            session = await self._create(request, own)
        elif self.session is not None and stated is not None:
            await store_capabilities(request.runtime, session, stated)
        if own is not None and agrees_on_version(message, answer):
            self.dialect.confirm_later(own)
        if own is None and session.kind == TRANSPORT:
            response.name(session.id)
        return session

    async def _create(self, request: Request, own: str | None) -> Session:
        transport = transport_of(request.runtime)
        names_header = transport.header and request.runtime.keys_persistent
        kind: Kind = COEXISTING if own is not None else TRANSPORT if names_header else FIELD
        lifetime = as_seconds(transport.lifetime) if kind == TRANSPORT else None
        return await minting.mint_for(request, self.dialect, kind, lifetime=lifetime)


async def delete(request: Request) -> dict[str, Any]:
    """End the session; on return every worker refuses it."""
    await carried_session(request)._end(Ending("deleted", "client"))
    return {}


async def terminate(request: Request) -> dict[str, Any]:
    """End the session, and the server's own that has begun with it."""
    await delete(request)
    if request.server_id is not None:
        await end_upstream(request.app, request.scope, request.receive)
    return {}


# --- what messages carry ---


def field(message: Message) -> str | None:
    """Return the session that a message's top-level field names, or None."""
    return None if message.field is None else _text(message.field)


def _text(raw: Raw) -> str | None:
    if raw == NULL:
        return None
    value = string(raw)
    if value is None:
        raise refusal("field_not_string")
    return value


def capabilities(message: Message) -> Raw | None:
    """Return the object in a message's `params.capabilities`, or None without one."""
    value = message.all_params.get("capabilities", NULL)
    return value if bytes(value).startswith(b"{") else None


def agreed(*ids: str | None) -> str | None:
    """Return the one session that several places of a message name, or None; refuse several."""
    names = {name for name in ids if name is not None}
    if len(names) > 1:
        raise refusal("session_field_mismatch")
    return names.pop() if names else None


def _repeating(error: SessionNotFound, sent_id: str) -> SessionNotFound:
    """Return the refusal of a session, whose answer repeats the id."""
    error.sent_id = sent_id
    return error


def _is_mirrored(request: Request, named: str, kind: Kind | None) -> bool:
    """Return whether the header, which must be there, names the session of the field.

    A session of the kind `beside` leaves the header to the wrapped server's own transport sessions.
    """
    header = request.headers.first(SESSION_HEADER)
    if header is None:
        raise refusal("field_header_missing")
    return request.headers.session_id is None if kind == COEXISTING else named == header


def agrees_on_version(message: Message, answer: Answer) -> bool:
    """Return whether the successful answer to an `initialize` has the version that the client asked for."""
    asked, result = message.all_params.get("protocolVersion"), rewrite.result_of(answer) or {}
    spoken = result.get("protocolVersion")
    return asked is not None and spoken is not None and string(asked) == string(spoken)
