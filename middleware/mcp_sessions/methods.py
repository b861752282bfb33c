"""What each method about sessions does: `sessions/create`, `sessions/delete` and those of dialects and extensions.

Every one gives the members of its result, or raises the refusal that is answered. Who may ask was judged before, by the
wrapped server's own guards; whether the session lives, by the store. Nothing here sends an answer.
Source: the data-layer sessions draft; the extensions are ours.
"""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from functools import partial
from typing import Any, Final

import msgspec
from starlette.types import Scope

from . import forks, roster
from .bridge import has_servers_own
from .clientinfo import client_of
from .dialects.field import FIELD_NAME
from .dialects.sep1364_create import stated
from .endings import NOT_BEGUN
from .errors import DescendantsRefused, ForkModeUnknown, InvalidParams, PrincipalRequired, StoreUnavailable
from .jsonrpc import SESSION_KEY, Message
from .lineage import MODES
from .live import Live, check_capabilities
from .minting import mint
from .options import Options
from .protocol import Step
from .session import Principal
from .tokens import BESIDE, FIELD, SESSION


class Asked(msgspec.Struct):
    """A request about sessions.

    Args:
        options: The deployment's.
        scope: The ASGI scope.
        message: The request.
        live: The session that it carries, or None.
    """

    options: Options
    scope: Scope
    message: Message
    live: Live | None

    @property
    def principal(self) -> Principal | None:
        """Who asks."""
        return self.options.principal(self.scope)

    @property
    def client(self) -> str | None:
        """What the client calls itself, or did when it opened the transport session by which it asks."""
        return client_of(self.message) or (None if self.live is None else self.live.claims.client)

    @property
    def session(self) -> Live:
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
        raise DescendantsRefused
    await session.end("deleted", descendants=descendants)
    return {}


async def fork(asked: Asked) -> dict[str, Any]:
    """Mint a session from the one that the request carries, and echo that one."""
    params = asked.params()
    mode = params.get("mode")
    if not (isinstance(mode, str) and mode in MODES):
        raise ForkModeUnknown
    made = await forks.fork(
        asked.session, mode, asked.options, principal=asked.principal, params=params, scope=asked.scope
    )
    return {"session": made.metadata(), "_meta": {SESSION_KEY: asked.session.metadata()}}


async def sessions(asked: Asked) -> dict[str, Any]:
    """Show a page of the caller's sessions, by their public names."""
    cursor = asked.params().get("cursor")
    own = None if asked.live is None else asked.live.claims.ref
    page = await roster.page(asked.options, _somebody(asked), cursor, own=own)
    if asked.live is None or asked.live.claims.kind != SESSION:  # only a session that `_meta` named is echoed there
        return page
    return {**page, "_meta": {SESSION_KEY: asked.live.metadata()}}


async def end_all(asked: Asked) -> dict[str, Any]:
    """End all sessions of the caller; on return every worker refuses them."""
    await roster.end_all(asked.options, _somebody(asked))
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


async def begin(said: bytes, mint: Callable[[], Awaitable[Live]]) -> Live:
    """Mint a session and keep what its client can do; where that is not kept, nobody is left with a session.

    Args:
        said: What the client can do, a JSON object.
        mint: Makes the session.

    Raises:
        CapabilitiesTooLarge: There is no room for it.
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
    Step.SESSIONS: sessions,
    Step.END_ALL: end_all,
}
