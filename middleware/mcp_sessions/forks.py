"""A session made from another one, which shares its data, begins with a copy of it, or begins empty.

The application's `on_create` sees a fork as it sees any new session, with `session.parent` set and the data in place.
Where sessions are tracked, the parent is looked at once more after the fork is on record: whoever ends a lineage in
between finds either the record or no fork.
"""

from __future__ import annotations

from typing import Any

from starlette.types import Scope

from . import lineage, minting
from .errors import SessionEnded
from .lineage import Mode
from .live import Live
from .options import Options
from .session import Principal
from .stores.base import Standing


async def fork(
    parent: Live, mode: Mode, options: Options, *, principal: Principal | None, params: dict[str, Any], scope: Scope
) -> Live:
    """Make a session from a live one of the same caller.

    Args:
        parent: The session that it is made from.
        mode: What it begins with.
        options: The deployment's.
        principal: Who the caller is.
        params: What `sessions/fork` was called with, for `on_create`.
        scope: The ASGI scope, likewise.

    Raises:
        CreateLimited: The caller has made too many sessions.
        CreateRefused: The application refuses.
        SessionEnded: The parent was ended meanwhile.
        StoreUnavailable: The fork cannot be recorded, or the data cannot be copied.
    """
    minted = minting.make(options, principal, now=int(options.clock()), **lineage.below(parent.claims, mode))
    child = minted.live
    try:
        await minted.record()
        try:
            await _fill(child, parent, mode, options)
            await _check_again(child, parent, options)
            await minted.prepare(params, scope)
        except BaseException:  # leave nothing behind
            await options.endings.forget(child.claims.ref)
            raise
    except BaseException as error:
        minted.unmade(error)
        raise
    minted.announce()
    return child


async def _fill(child: Live, parent: Live, mode: Mode, options: Options) -> None:
    """Give a fork what it begins with. Its client holds the state, so that is copied wherever data is shared."""
    if mode == "fresh":
        return
    child.session.state.update(parent.session.state)
    if mode == "copy":
        source = options.shelf(lineage.owner(parent.claims), parent.claims.expires_at)
        await options.store.copy(source, options.shelf(child.claims.ref, child.claims.expires_at))


async def _check_again(child: Live, parent: Live, options: Options) -> None:
    if not options.tracked:  # what ends the lineage ends this fork, too, at its first request
        return
    found = await options.store.standings([parent.claims, lineage.mark(child.claims)])
    if not all(standing is Standing.LIVE for standing in found):
        raise SessionEnded(ref=parent.claims.ref)
