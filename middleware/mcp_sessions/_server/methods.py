"""What each method about sessions does: `sessions/create`, `sessions/delete` and those of dialects and extensions.

Every one gives the members of its result, or raises the refusal that is answered. Who may ask was judged before, by the
wrapped server's own guards; whether the session lives, by the store. Nothing here sends an answer.
Source: the data-layer sessions draft; the extensions are ours.

The recorded sessions of one principal, for that principal: shown page by page, and ended all at once.

Sessions are told by their public names. No id is shown, since an id is a credential and whoever reads a list need not
be who holds the session. Nothing here judges who asks.
"""

from __future__ import annotations

import json
import re
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from functools import partial
from typing import Any, Final

import msgspec
from starlette.types import Scope

from .._protocol.decision import Step
from .._protocol.draft import instant
from .._protocol.jsonrpc import SESSION_KEY, Message
from .._protocol.labels import client_of
from .._protocol.sep1364 import FIELD_NAME, stated
from .._session.claims import BESIDE, FIELD, MODES, SESSION, Principal
from .._tokens.keys import base64url, from_base64url
from ..errors import InvalidParams, PrincipalRequired, StoreUnavailable, refuse
from ..stores.base import Record, idle_at
from . import sessions
from .context import has_servers_own
from .lifecycle import ENDED_ALL, NOT_BEGUN
from .runtime import Runtime
from .sessions import ActiveSession, check_capabilities, mint


class Asked(msgspec.Struct):
    """A request about sessions.

    Args:
        options: The deployment's.
        scope: The ASGI scope.
        message: The request.
        live: The session that it carries, or None.
    """

    options: Runtime
    scope: Scope
    message: Message
    live: ActiveSession | None

    @property
    def principal(self) -> Principal | None:
        """Who asks."""
        return self.options.principal(self.scope)

    @property
    def client(self) -> str | None:
        """What the client calls itself, or did when it opened the transport session by which it asks."""
        return client_of(self.message) or (None if self.live is None else self.live.claims.client)

    @property
    def session(self) -> ActiveSession:
        """The session that the request carries, where the method needs one."""
        assert self.live is not None
        return self.live

    def params(self) -> dict[str, Any]:
        """The members of `params` but `_meta`, as Python values.

        Raises:
            InvalidParams: A number has thousands of digits, or there is no stack left for the nesting.
        """
        try:
            params = json.loads(self.message.body).get("params") or {}
        except (ValueError, RecursionError):
            raise InvalidParams from None
        return {name: value for name, value in params.items() if name != "_meta"}


Method = Callable[[Asked], Awaitable[dict[str, Any]]]


async def create(asked: Asked) -> dict[str, Any]:
    """Mint a session."""
    params = {} if asked.options.on_create is None else asked.params()
    live = await mint(asked.options, principal=asked.principal, params=params, scope=asked.scope, client=asked.client)
    return {"session": live.metadata()}


async def delete(asked: Asked) -> dict[str, Any]:
    """End the session, and with `descendants` all of its forks; on return every worker refuses what was ended."""
    session, descendants = asked.session.session, asked.params().get("descendants", False)
    if not (descendants is False or (descendants is True and session.parent is None)):
        raise refuse("descendants_refused")
    await session.end("deleted", descendants=descendants)
    return {}


async def fork(asked: Asked) -> dict[str, Any]:
    """Mint a session from the one that the request carries, and echo that one."""
    params = asked.params()
    mode = params.get("mode")
    if not (isinstance(mode, str) and mode in MODES):
        raise refuse("fork_mode_unknown")
    made = await sessions.fork(
        asked.session, mode, asked.options, principal=asked.principal, params=params, scope=asked.scope
    )
    return {"session": made.metadata(), "_meta": {SESSION_KEY: asked.session.metadata()}}


async def list_sessions(asked: Asked) -> dict[str, Any]:
    """Show a page of the caller's sessions, by their public names."""
    cursor = asked.params().get("cursor")
    own = None if asked.live is None else asked.live.claims.ref
    page = await sessions_page(asked.options, _somebody(asked), cursor, own=own)
    if asked.live is None or asked.live.claims.kind != SESSION:  # only a session that `_meta` named is echoed there
        return page
    return {**page, "_meta": {SESSION_KEY: asked.live.metadata()}}


async def end_all(asked: Asked) -> dict[str, Any]:
    """End all sessions of the caller; on return every worker refuses them."""
    await end_all_of_principal(asked.options, _somebody(asked))
    return {}


def _somebody(asked: Asked) -> Principal:
    principal = asked.principal
    if principal is None:
        raise PrincipalRequired
    return principal


async def open(asked: Asked) -> dict[str, Any]:  # noqa: A001  # the table's word
    """Mint a session that the field of SEP-1364 names, and keep what its client can do."""
    said = stated(asked.message)
    params = {} if asked.options.on_create is None else asked.params()
    kind = BESIDE if has_servers_own(asked.scope) else FIELD  # what begins beside another one stays beside it
    minted = partial(
        mint,
        asked.options,
        principal=asked.principal,
        params=params,
        scope=asked.scope,
        kind=kind,
        client=asked.client,
    )
    live = await begin(said, minted)
    return {FIELD_NAME: live.token}


async def begin(said: bytes, mint: Callable[[], Awaitable[ActiveSession]]) -> ActiveSession:
    """Mint a session and keep what its client can do; where that is not kept, nobody is left with a session.

    Args:
        said: What the client can do, a JSON object.
        mint: Makes the session.

    Raises:
        Refusal: `capabilities_too_large`: There is no room for it.
        SessionEnded: The session ended meanwhile.
        StoreUnavailable: The store did not take it.
    """
    check_capabilities(said)
    live = await mint()
    try:
        await live.keep_capabilities(said)
    except BaseException:  # `on_create` has run, and nobody will ever know the id: `on_end` frees what it made
        with suppress(StoreUnavailable):
            await live.session.end(NOT_BEGUN)
        raise
    return live


async def renew(asked: Asked) -> dict[str, Any]:
    """Keep what the client of a session of SEP-1364 can do now."""
    await asked.session.keep_capabilities(stated(asked.message))
    return {FIELD_NAME: asked.session.token}


METHODS: Final[Mapping[Step, Method]] = {
    Step.CREATE: create,
    Step.OPEN: open,
    Step.RENEW: renew,
    Step.DELETE: delete,
    Step.FORK: fork,
    Step.SESSIONS: list_sessions,
    Step.END_ALL: end_all,
}


PAGE: Final = 100  # sessions
ROUNDS: Final = 10  # of looking for sessions that were made while others ended
_PLACE: Final = re.compile(r"([0-9]{1,15}) ([!-~]{1,64})", re.ASCII)

Place = tuple[int, str]
"""Where a session stands on the list: oldest first, and then by name."""


async def sessions_page(options: Runtime, principal: Principal, cursor: object, *, own: str | None) -> dict[str, Any]:
    """One page of a principal's sessions, oldest first, as `sessions/list` answers.

    Args:
        options: The deployment's.
        principal: Whose sessions.
        cursor: The `nextCursor` of the page before, as the client sent it, or None for the first page.
        own: The session that the request carries, by its `ref`, or None.

    Raises:
        Refusal: `cursor_unknown`: It is none.
        StoreUnavailable: The store did not answer.
    """
    after = (-1, "") if cursor is None else _place_at(cursor)
    alive = (record for record in await _records(options, principal) if _is_used(record, options))
    left = sorted((record for record in alive if _place(record) > after), key=_place)
    shown = left[:PAGE]
    more = {"nextCursor": _cursor(shown[-1])} if len(left) > PAGE else {}
    return {"sessions": [_shown(record, own) for record in shown], **more}


async def end_all_of_principal(options: Runtime, principal: Principal) -> None:
    """End a principal's sessions. Their `on_end` is run by one of the servers, soon.

    Raises:
        StoreUnavailable: The store did not take it, or new ones keep coming. Some sessions may live.
    """
    for _ in range(ROUNDS):
        records = await _records(options, principal)
        if not records:
            return
        await options.endings.revoke(records, ENDED_ALL)
    raise StoreUnavailable("sessions_keep_coming")


async def _records(options: Runtime, principal: Principal) -> list[Record]:
    subjects = options.ring(options.clock()).subjects(principal)
    return [
        record for subject in subjects for record in await options.store.sessions(subject, audience=options.audience)
    ]


def _is_used(record: Record, options: Runtime) -> bool:
    """Whether a session would not be refused as idle: its record stays until somebody looks for such."""
    idle_timeout = None if options.idle_timeout is None else int(options.idle_timeout)
    return options.clock() < idle_at(record.seen_at, idle_timeout)


def _shown(record: Record, own: str | None) -> dict[str, Any]:
    shown = {
        "ref": record.ref,
        "createdAt": instant(record.created_at),
        "lastSeenAt": instant(record.seen_at),
        "expiresAt": instant(record.expires_at),
    }
    root = {} if record.root is None else {"root": record.root}
    return {**shown, **root, "current": True} if record.ref == own else {**shown, **root}


def _place(record: Record) -> Place:
    return record.created_at, record.ref


def _cursor(record: Record) -> str:
    return base64url(f"{record.created_at} {record.ref}".encode())


def _place_at(cursor: object) -> Place:
    """A place in the caller's own list, and so nothing that would have to be kept from changing."""
    try:
        found = _PLACE.fullmatch(from_base64url(cursor).decode("ascii")) if isinstance(cursor, str) else None
    except ValueError:
        found = None
    if found is None:
        raise refuse("cursor_unknown")
    return int(found[1]), found[2]
