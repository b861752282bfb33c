"""The methods about sessions: `sessions/create`, `sessions/delete` and those of dialects and extensions.

Each returns the members of its result, or raises the refusal that is answered. A list shows sessions by their public
names: an id is a credential, and the caller need not be the client that holds the session.
Source: the data-layer sessions draft; the extensions are ours.
"""

from __future__ import annotations

import json
import re
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final

import msgspec
from msgspec import Raw

from .._protocol.decision import Action
from .._protocol.draft import instant
from .._protocol.jsonrpc import Message
from .._protocol.labels import client_of
from .._protocol.members import SESSION_KEY
from .._protocol.sep1364 import FIELD_NAME, required_capabilities
from .._refusals import refusal
from .._session.claims import COEXISTING, FIELD, SESSION, Kind, Principal, RedactedRepr
from .._tokens.keys import base64url, from_base64url
from ..stores._base import FIRST, Position, Record, idle_at
from . import minting
from .active import ActiveSession
from .context import RequestContext


class MethodCall(RedactedRepr, msgspec.Struct):
    """A request about sessions."""

    ctx: RequestContext
    message: Message
    carried: ActiveSession | None

    @property
    def session(self) -> ActiveSession:
        """The session that the request carries, where the method needs one."""
        assert self.carried is not None
        return self.carried

    def params(self) -> dict[str, Any]:
        """Return the members of `params` but `_meta`, as Python values, or refuse with `invalid_params`."""
        try:
            params = json.loads(self.message.body).get("params") or {}
        except (ValueError, RecursionError):  # a number of thousands of digits, or no stack left for the nesting
            raise refusal("invalid_params") from None
        return {name: value for name, value in params.items() if name != "_meta"}

    def principal(self) -> Principal:
        principal = self.ctx.runtime.principal(self.ctx.scope)
        if principal is None:
            raise refusal("principal_required")
        return principal

    async def mint(self, kind: Kind = SESSION, capabilities: bytes | None = None) -> ActiveSession:
        runtime, scope = self.ctx.runtime, self.ctx.scope
        client = client_of(self.message)
        if client is None and self.carried is not None:  # a transport session knows it from its `initialize`
            client = self.carried.claims.client
        return await minting.mint(
            runtime,
            principal=runtime.principal(scope),
            params={} if runtime.on_create is None else self.params(),
            scope=scope,
            kind=kind,
            client=client,
            capabilities=capabilities,
        )


Method = Callable[[MethodCall], Awaitable[dict[str, Any]]]
PAGE: Final = 100  # sessions
_CURSOR: Final = re.compile(r"([0-9]{1,15}) ([!-~]{1,64})", re.ASCII)


async def create(call: MethodCall) -> dict[str, Any]:
    return {"session": Raw((await call.mint()).encode_metadata())}


async def delete(call: MethodCall) -> dict[str, Any]:
    """End the session; on return every worker refuses it."""
    await call.session.session.end("deleted")
    return {}


async def fork(call: MethodCall) -> dict[str, Any]:
    """Mint a session from the one that the request carries, and echo that one."""
    made = await minting.fork(call.session, params=call.params(), scope=call.ctx.scope)
    return {"session": Raw(made.encode_metadata()), "_meta": {SESSION_KEY: Raw(call.session.encode_metadata())}}


async def list_sessions(call: MethodCall) -> dict[str, Any]:
    carried = call.carried
    page = await _page(call, None if carried is None else carried.claims.ref)
    if carried is None or carried.claims.kind != SESSION:  # only a session that `_meta` named is echoed there
        return page
    return {**page, "_meta": {SESSION_KEY: Raw(carried.encode_metadata())}}


async def create_in_field(call: MethodCall) -> dict[str, Any]:
    capabilities = required_capabilities(call.message)
    kind = COEXISTING if call.ctx.has_upstream_session else FIELD  # for as long as it lives
    made = await call.mint(kind, capabilities)
    return {FIELD_NAME: made.token}


async def renew(call: MethodCall) -> dict[str, Any]:
    await call.session.keep_capabilities(required_capabilities(call.message))
    return {FIELD_NAME: call.session.token}


METHODS: Final[Mapping[Action, Method]] = {
    Action.CREATE: create,
    Action.CREATE_SEP1364: create_in_field,
    Action.UPDATE_CAPABILITIES: renew,
    Action.DELETE: delete,
    Action.FORK: fork,
    Action.LIST_SESSIONS: list_sessions,
}


async def _page(call: MethodCall, own: str | None) -> dict[str, Any]:
    """Return one page of the caller's sessions, oldest first; `own` is the one that the request carries."""
    runtime, cursor = call.ctx.runtime, call.params().get("cursor")
    subjects, audience = _subjects(call), runtime.audience
    after = FIRST if cursor is None else _parse_cursor(cursor)
    listed = [
        record
        for subject in subjects
        for record in await runtime.store.list_sessions(subject=subject, audience=audience, after=after, limit=PAGE + 1)
    ]
    listed.sort(key=lambda record: record.position)
    # One that would be refused as idle stays on record until the sweeper looks for such, so a page may hold fewer.
    idle_timeout, now = runtime.whole_idle_timeout, runtime.clock()
    alive = [record for record in listed[:PAGE] if now < idle_at(record.seen_at, idle_timeout)]
    page: dict[str, Any] = {"sessions": [_shown(record, own) for record in alive]}
    if len(listed) > PAGE:
        created_at, ref = listed[PAGE - 1].position
        page["nextCursor"] = base64url(f"{round(created_at * 1000)} {ref}".encode())
    return page


def _subjects(call: MethodCall) -> list[str]:
    runtime = call.ctx.runtime
    return runtime.ring(runtime.clock()).subjects(call.principal())


def _shown(record: Record, own: str | None) -> dict[str, Any]:
    shown = {
        "ref": record.ref,
        "createdAt": instant(record.created_at),
        "lastSeenAt": instant(record.seen_at),
        "expiresAt": instant(record.expires_at),
    }
    return {**shown, **({"current": True} if record.ref == own else {})}


def _parse_cursor(cursor: object) -> Position:
    """Return a position in the caller's own list, which need not be kept from changes."""
    try:
        match = _CURSOR.fullmatch(from_base64url(cursor).decode("ascii")) if isinstance(cursor, str) else None
    except ValueError:
        match = None
    if match is None:
        raise refusal("cursor_unknown")
    return int(match[1]) / 1000, match[2]
