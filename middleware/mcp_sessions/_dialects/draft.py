"""The data-layer sessions draft (2026-02-23): a client sends its session in `params._meta`, and carries its state.

It creates a session with `sessions/create` and ends it with `sessions/delete`; each success repeats the session in
`result._meta`. Forks and lists are extensions of this package. A list shows sessions by their public names: an id is a
credential, and the caller need not be the client that holds the session.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from functools import partial
from typing import Any, Final

import msgspec
from msgspec import Raw

from .._protocol import rewrite
from .._protocol.headers import RequestHeaders
from .._protocol.jsonrpc import SESSION_KEY, Message
from .._protocol.metadata import declares_sessions, instant, parse_metadata
from .._protocol.methods import CREATE, DELETE, EXTENSIONS
from .._protocol.rewrite import Answer
from .._refusals import refusal
from .._server import minting
from .._server.changes import SaveState
from .._server.context import Request, carried_session, params_of
from .._server.response import Change, Response
from .._server.runtime import Runtime
from .._server.sessions import encode_metadata
from .._session.claims import SESSION
from .._session.endings import Ending
from .._session.session import Session
from .._tokens.keys import base64url, from_base64url
from ..stores._base import FIRST, Position, Record, idle_at
from .base import Answers, Credential, Dialect, NoCredential

PAGE: Final = 100  # sessions
_CURSOR: Final = re.compile(r"([0-9]{1,15}) ([!-~]{1,64})", re.ASCII)
_NAMED_NONE: Final = NoCredential("it sends session ids itself and sent none", "let it call sessions/create first")


def offered_extensions(names: Collection[str], *, tracked: bool) -> list[str]:
    """Return the extensions that a deployment names, as far as it can have them: only tracked sessions are listed."""
    return [name for name in EXTENSIONS if name in names and (tracked or name != "list")]


class Draft(Dialect):
    """`_meta`, `sessions/create`, `sessions/delete`. It is always on."""

    name: str = "_meta"
    kinds: frozenset[str] = frozenset({SESSION})
    carries_state: bool = True

    def __init__(self, extensions: Collection[str]) -> None:
        optional = {"fork": Answers(self.answer_fork, "required"), "list": Answers(list_sessions)}
        self._answers: Final = {
            CREATE: Answers(self.answer_create, "refused", "session_on_create"),
            DELETE: Answers(delete, "required"),
            **{f"sessions/{name}": answers for name, answers in optional.items() if name in extensions},
        }

    def answers(self, request: Request) -> Answers | None:
        """Return what answers a method of the draft or of our extensions."""
        return None if request.message is None else self._answers.get(request.message.method)

    def find(self, request: Request, earlier: Sequence[Credential]) -> Credential | None:
        """Return the session in `_meta`."""
        message, header = request.message, request.headers.session_id
        if message is None:  # the header may repeat the session whose stream is resumed
            is_resuming = header is not None and request.headers.event_id is not None
            is_ours = is_resuming and request.runtime.kind_of(header or "") == SESSION
            return Credential(self, header or "", SESSION) if is_ours else None
        if message.session is None:
            return None
        metadata = parse_metadata(message.session)
        return Credential(self, metadata.session_id, SESSION, metadata.state, in_message=True)

    def absence(self, headers: RequestHeaders, message: Message) -> NoCredential | None:
        """Return why a client that declares sessions is in none."""
        return _NAMED_NONE if declares_sessions(message) else None

    def reaches(self, request: Request) -> bool:
        """Return whether a client declares that it sends session ids itself."""
        return declares_sessions(request.current_message)

    def concerns(self, message: Message) -> bool:
        """Return whether a message is a method of the draft, or carries a session."""
        return message.method in self._answers or rewrite.without_session(message) != message.body

    async def prepare(self, request: Request) -> None:
        """Take the session out of `_meta`."""
        message = request.message
        assert message is not None
        if request.outgoing is not message.body:  # another dialect has changed it
            message = msgspec.structs.replace(message, body=request.outgoing)
        request.outgoing = rewrite.without_session(message)

    def changes(self, request: Request, session: Session | None) -> Sequence[Change]:
        """Repeat the session in the answer."""
        return () if session is None else (Echo(session=session),)

    async def answer_create(self, request: Request) -> dict[str, Any]:
        """Create a session for the caller."""
        made = await self.create(request, SESSION, params=minting.hook_params(request))
        return {"session": close_and_encode(request.runtime, made)}

    async def answer_fork(self, request: Request) -> dict[str, Any]:
        """Create a session from the one that the request carries, and repeat that one."""
        runtime, parent = request.runtime, carried_session(request)
        if parent.kind != SESSION:
            raise refusal("session_missing")
        made = await minting.fork(request, self, parent)
        shown = close_and_encode(runtime, made)
        return {"session": shown, "_meta": {SESSION_KEY: close_and_encode(runtime, parent)}}


class Echo(SaveState, kw_only=True):
    """The session in `result._meta`, with its state if that has changed."""

    async def save(self, answer: Answer, response: Response) -> bytes | None:
        """Return the answer with the session; hints for caches become private and stale."""
        write = partial(close_and_encode, response.request.runtime, self.session)
        return rewrite.echo(answer, write)


def close_and_encode(runtime: Runtime, session: Session) -> Raw:
    """Close the state of a session, since its client gets it now, and return the session's metadata."""
    session._state._close()
    return Raw(encode_metadata(runtime, session))


async def delete(request: Request) -> dict[str, Any]:
    """End the session; on return every worker refuses it."""
    await carried_session(request)._end(Ending("deleted", "client"))
    return {}


async def list_sessions(request: Request) -> dict[str, Any]:
    """Return one page of the caller's sessions, oldest first."""
    runtime, carried, cursor = request.runtime, request.session, params_of(request).get("cursor")
    now, audience, after = runtime.clock(), runtime.audience, FIRST if cursor is None else _parse_cursor(cursor)
    principal, records = request.user_or_warn(), list[Record]()
    if principal is None:
        raise refusal("principal_required" if request.principal is None else "principal_is_client")
    for subject in runtime.ring(now).subjects(principal):
        records += await runtime.store.list_sessions(subject=subject, audience=audience, after=after, limit=PAGE + 1)
    records.sort(key=lambda record: record.position)
    own = None if carried is None else carried.ref
    # One that would be refused as idle stays on record until the sweeper looks for such, so a page may hold fewer.
    alive = [record for record in records[:PAGE] if now < idle_at(record.seen_at, runtime.idle_timeout)]
    page: dict[str, Any] = {"sessions": [_to_json(record, own) for record in alive]}
    if len(records) > PAGE:
        created_at, ref = records[PAGE - 1].position
        page["nextCursor"] = base64url(f"{round(created_at * 1000)} {ref}".encode())
    if carried is not None and carried._carries_state:  # only a session that `_meta` named is repeated there
        page["_meta"] = {SESSION_KEY: close_and_encode(runtime, carried)}
    return page


def _to_json(record: Record, own: str | None) -> dict[str, Any]:
    shown = {
        "ref": record.ref,
        "createdAt": instant(record.created_at),
        "lastSeenAt": instant(record.seen_at),
        "expiresAt": instant(record.expires_at),
    }
    return {**shown, "current": True} if record.ref == own else shown


def _parse_cursor(cursor: object) -> Position:
    """Return a position in the caller's own list, which need not be kept from changes."""
    try:
        match = _CURSOR.fullmatch(from_base64url(cursor).decode("ascii")) if isinstance(cursor, str) else None
    except ValueError:
        match = None
    if match is None:
        raise refusal("cursor_unknown")
    return int(match[1]) / 1000, match[2]
