"""The methods about sessions: `sessions/create`, `sessions/delete` and those of dialects and extensions.

Each returns the members of its result, or raises the refusal that is answered. A list shows sessions by their public
names: an id is a credential, and the caller need not be the client that holds the session.
Source: the data-layer sessions draft; the extensions are ours.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any, Final

from msgspec import Raw

from .._protocol.decision import Action
from .._protocol.draft import instant
from .._protocol.jsonrpc import SESSION_KEY, Message
from .._protocol.sep1364 import FIELD_NAME, required_capabilities
from .._refusals import refusal
from .._session.claims import COEXISTING, FIELD, SESSION, Kind
from .._tokens.keys import base64url, from_base64url
from ..stores._base import FIRST, Position, Record, idle_at
from . import minting
from .active import ActiveSession
from .answers import Method
from .context import RequestContext

PAGE: Final = 100  # sessions
_CURSOR: Final = re.compile(r"([0-9]{1,15}) ([!-~]{1,64})", re.ASCII)


async def create(ctx: RequestContext, message: Message) -> dict[str, Any]:
    return {"session": Raw((await _mint(ctx, message)).encode_metadata())}


async def delete(ctx: RequestContext, _: Message) -> dict[str, Any]:
    """End the session; on return every worker refuses it."""
    await _carried(ctx).end("deleted")
    return {}


async def fork(ctx: RequestContext, message: Message) -> dict[str, Any]:
    """Mint a session from the one that the request carries, and echo that one."""
    parent = _carried(ctx)
    made = await minting.fork(parent, params=_params(message), scope=ctx.scope)
    if ctx.telemetry is not None:
        ctx.telemetry.name_session(made.claims.ref)
    return {"session": Raw(made.encode_metadata()), "_meta": {SESSION_KEY: Raw(parent.encode_metadata())}}


async def list_sessions(ctx: RequestContext, message: Message) -> dict[str, Any]:
    """Return one page of the caller's sessions, oldest first."""
    runtime, carried, cursor = ctx.runtime, ctx.session, _params(message).get("cursor")
    now, audience, after = runtime.clock(), runtime.audience, FIRST if cursor is None else _parse_cursor(cursor)
    principal, records = ctx.user, list[Record]()
    if principal is None:
        raise refusal("principal_required" if ctx.principal is None else "principal_is_client")
    for subject in runtime.ring(now).subjects(principal):
        records += await runtime.store.list_sessions(subject=subject, audience=audience, after=after, limit=PAGE + 1)
    records.sort(key=lambda record: record.position)
    own = None if carried is None else carried.claims.ref
    # One that would be refused as idle stays on record until the sweeper looks for such, so a page may hold fewer.
    alive = [record for record in records[:PAGE] if now < idle_at(record.seen_at, runtime.idle_timeout)]
    page: dict[str, Any] = {"sessions": [_shown(record, own) for record in alive]}
    if len(records) > PAGE:
        created_at, ref = records[PAGE - 1].position
        page["nextCursor"] = base64url(f"{round(created_at * 1000)} {ref}".encode())
    if carried is not None and carried.claims.kind == SESSION:  # only a session that `_meta` named is echoed there
        page["_meta"] = {SESSION_KEY: Raw(carried.encode_metadata())}
    return page


async def create_in_field(ctx: RequestContext, message: Message) -> dict[str, Any]:
    kind = COEXISTING if ctx.server_id is not None else FIELD  # for as long as it lives
    return {FIELD_NAME: (await _mint(ctx, message, kind, required_capabilities(message))).token}


async def update_capabilities(ctx: RequestContext, message: Message) -> dict[str, Any]:
    session = _carried(ctx)
    await session.keep_capabilities(required_capabilities(message))
    return {FIELD_NAME: session.token}


METHODS: Final[Mapping[Action, Method]] = {
    Action.CREATE: create,
    Action.CREATE_SEP1364: create_in_field,
    Action.UPDATE_CAPABILITIES: update_capabilities,
    Action.DELETE: delete,
    Action.FORK: fork,
    Action.LIST_SESSIONS: list_sessions,
}


def _carried(ctx: RequestContext) -> ActiveSession:
    """Return the session that a request carries, where its method needs one."""
    assert ctx.session is not None
    return ctx.session


def _params(message: Message) -> dict[str, Any]:
    """Return the members of `params` but `_meta`, as Python values, or refuse with `invalid_params`."""
    try:
        params = json.loads(message.body).get("params") or {}
    except (ValueError, RecursionError):  # a number of thousands of digits, or no stack left for the nesting
        raise refusal("invalid_params") from None
    return {name: value for name, value in params.items() if name != "_meta"}


async def _mint(
    ctx: RequestContext, message: Message, kind: Kind = SESSION, capabilities: bytes | None = None
) -> ActiveSession:
    params = {} if ctx.runtime.on_create is None else _params(message)
    return await minting.mint_for(ctx, message, kind, params=params, capabilities=capabilities)


def _shown(record: Record, own: str | None) -> dict[str, Any]:
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
