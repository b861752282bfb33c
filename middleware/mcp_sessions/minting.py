"""New sessions: made, recorded, filled by the application, and only then told to anybody.

What goes wrong on the way leaves nothing behind. Nothing here knows how a session is named on the wire.
"""

from __future__ import annotations

import secrets
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import msgspec
from starlette.types import Scope

from . import hooks
from .dialects import upstream
from .events import SessionCreated
from .live import LATE, Live, end_of
from .options import Options
from .session import Principal, Session
from .stores.base import Record
from .tokens import SESSION, TRANSPORT, Claims, Kind

if TYPE_CHECKING:
    from .telemetry.session_spans import Start


@dataclass(frozen=True, slots=True)
class Minted:
    """A new session, before anybody knows of it: what follows is `announce`, or `unmade`.

    Args:
        live: The session.
        session: The same, as the application sees it.
        start: Its start as it is traced, or None.
    """

    live: Live
    session: Session
    start: Start | None

    async def record(self) -> None:
        """Note it in the store, where sessions are tracked.

        Raises:
            StoreUnavailable: It cannot be recorded.
        """
        options = self.live.options
        if options.tracked:
            await options.store.record(Record.of(self.live.claims))

    async def prepare(self, params: dict[str, Any], scope: Scope) -> None:
        """Let the application fill it.

        Raises:
            CreateRefused: The application refuses.
        """
        if self.live.options.on_create is not None:
            await hooks.call(self.live.options.on_create, self.session, params, scope)

    def announce(self) -> None:
        """Tell that it is complete."""
        claims, options = self.live.claims, self.live.options
        if self.start is not None:
            options.telemetry().created(claims, self.start)
        options.emit(SessionCreated(claims.ref, claims.expires_at, claims.parent))

    def unmade(self, error: BaseException) -> None:
        """Tell that it came to nothing."""
        if self.start is not None:
            self.start.end(error)


async def mint(
    options: Options,
    *,
    principal: Principal | None,
    params: dict[str, Any],
    scope: Scope,
    kind: Kind = SESSION,
    client: str | None = None,
    servers_id: str | None = None,
) -> Live:
    """Make a session for a caller, as far as the application lets it.

    Args:
        options: The deployment's.
        principal: Who the caller is.
        params: What `sessions/create` was called with, for `on_create`.
        scope: The ASGI scope, likewise.
        kind: What its token may be used as.
        client: What the client calls itself, or None.
        servers_id: The wrapped server's own transport session, to be sealed inside.

    Raises:
        CreateLimited: The caller has made too many.
        CreateRefused: The application refuses.
        StoreUnavailable: The session cannot be recorded.
    """
    # A store that is opened by the first use only could take a session for one from before it began to remember.
    await options.store.open()
    lasts = options.transport_lifetime if kind == TRANSPORT else options.lifetime
    now = int(options.clock())
    said: dict[str, Any] = {"kind": kind, "expires_at": now + int(lasts), "client": client}
    minted = make(options, principal, now=now, servers_id=servers_id, **said)
    try:
        await minted.record()  # before the hook: what it makes is freed by `on_end`, which only a record leads to
        await _prepared(minted, params, scope)
    except BaseException as error:
        minted.unmade(error)
        raise
    minted.announce()
    return minted.live


async def _prepared(minted: Minted, params: dict[str, Any], scope: Scope) -> None:
    """Let the application fill a new session, and leave nothing behind where it refuses."""
    live = minted.live
    try:
        await minted.prepare(params, scope)
    except BaseException:
        if live.options.tracked or minted.session.has_data:  # what was kept for a session that never was
            await live.options.endings.forget(live.claims.ref)
        raise


def make(
    options: Options, principal: Principal | None, *, now: int, servers_id: str | None = None, **said: Any
) -> Minted:
    """A new session, before anybody knows of it.

    Args:
        options: The deployment's.
        principal: Who the caller is.
        now: Unix seconds.
        servers_id: What the wrapped server calls its transport session, to be sealed inside.
        said: What its claims say, but for its name, its making and whose it is.

    Raises:
        CreateLimited: The caller has made too many.
    """
    ring = options.ring(now)
    subject = ring.signing.subject(principal)
    if options.create_limit is not None:
        options.create_limit.spend(subject, now=now)
    jti = secrets.token_urlsafe(16)
    if servers_id is not None:
        said["upstream"] = upstream.seal(ring.signing, servers_id, jti=jti, subject=subject, audience=options.audience)
    new = Claims(jti=jti, issued_at=now, subject=subject, kid=ring.signing.kid, audience=options.audience, **said)
    start = options.telemetry().start(new) if options.tells() else None
    claims = new if start is None else msgspec.structs.replace(new, trace=start.trace)
    token = options.tokens.mint(ring, claims)
    live = Live(token, claims, ring, options, principal, None, end_of(claims, options, now), now + LATE)
    return Minted(live, live.session, start)
