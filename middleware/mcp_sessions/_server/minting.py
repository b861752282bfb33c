"""New sessions: recorded, filled by the application, and only then announced; and forks of a session.

What fails on the way leaves nothing behind. How a session is named on the wire is decided elsewhere.
"""

from __future__ import annotations

import inspect
import logging
import secrets
from collections.abc import Awaitable, Callable
from contextlib import nullcontext, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import msgspec
from starlette.types import Scope

from .._errors import CreateFailed, PrincipalDataTooLarge, Refusal, StoreUnavailable, TooMuchData
from .._protocol.jsonrpc import Message
from .._protocol.labels import client_of
from .._refusals import refusal
from .._session.claims import COOKIE, PRINCIPAL, SESSION, TRANSPORT, Claims, Kind, Principal, floor_ms
from .._session.events import SessionCreated
from .._session.session import Session
from .._tokens import seal
from ..stores._base import LIVE, Record
from ..telemetry import hook
from .active import ActiveSession, check_capabilities, end_of
from .context import RequestContext
from .current import warn_once
from .lifecycle import NOT_BEGUN
from .logs import log_extra
from .principal import is_unseen
from .runtime import Runtime
from .sessions import RECHECK_AFTER, refusal_of

if TYPE_CHECKING:
    from ..telemetry._spans import Start
    from .options import OnCreate

UNSEEN_PRINCIPAL: Final = (
    "no session for a request with an Authorization header, since this middleware does not see who the caller is. Pass "
    "principal=, a function that returns the caller for an ASGI scope; or use add_sessions if the application adds the "
    "authentication of Starlette, the SDK or FastMCP. If sessions are meant to be anonymous, so that anyone who learns "
    "an id can use it, pass principal=lambda scope: None"
)
Publish = Callable[[ActiveSession], Awaitable[None]]
_log: Final = logging.getLogger("mcp_sessions")


@dataclass(frozen=True, slots=True)
class NewSession:
    """A new session before it is announced, also as the application sees it and as its start is traced."""

    active: ActiveSession
    session: Session
    start: Start | None

    async def register_at_epoch(self) -> None:
        """Note its name where the store needs it; a store that does not answer now may refuse the session later."""
        with suppress(StoreUnavailable):
            await self.active.runtime.store.register_at_epoch(self.active.claims)

    def commit(self) -> None:
        claims, runtime = self.active.claims, self.active.runtime
        runtime.telemetry.emit(SessionCreated(claims.ref, claims.expires_at, claims.kind == PRINCIPAL))
        if self.start is not None:
            runtime.telemetry.recorder().created(claims, self.start)

    def abort(self, error: BaseException) -> None:
        if self.start is not None:
            self.start.end(error)


async def mint(
    runtime: Runtime,
    *,
    principal: Principal | None,
    params: dict[str, Any],
    scope: Scope,
    kind: Kind = SESSION,
    client: str | None = None,
    server_id: str | None = None,
    capabilities: bytes | None = None,
    publish: Publish | None = None,
) -> ActiveSession:
    """Mint a session for a caller, with the params and the scope that `on_create` gets.

    A transport session may have the wrapped server's own id sealed inside. What its client can do, a JSON object, is
    kept with it where it is passed; `publish` then makes it findable, or raises.

    Raises the refusal that the caller is answered with.
    """
    if capabilities is not None:
        check_capabilities(capabilities)
    _check_caller(runtime, scope)
    # A store that is opened by the first use only could take a session for one from before it began to remember.
    await runtime.store.open()
    lifetime = runtime.transport.lifetime if kind in {TRANSPORT, COOKIE, PRINCIPAL} else runtime.lifetime
    now = runtime.clock()
    fields = {"kind": kind, "expires_at": int(now) + int(lifetime), "client": client}
    if kind != SESSION:  # its state may be in this process, which may be a fork of another
        fields["boot"] = runtime.boot()
    made = _make(runtime, principal, now=now, server_id=server_id, **fields)
    try:
        if runtime.tracked:
            # Before the hook: what it makes is freed by `on_end`, which only a record leads to.
            await _register(made.active)
        else:
            await made.register_at_epoch()
        if runtime.on_create is not None:
            try:
                await _fill_by_hook(runtime.on_create, made, params, scope)
            except BaseException:
                if runtime.tracked or made.session.has_data:  # what was kept for a session that never was
                    await runtime.terminator.purge(made.active.claims.ref)
                raise
        await _complete(made, capabilities, publish)
    except BaseException as error:
        made.abort(error)
        raise
    made.commit()
    return made.active


def _check_caller(runtime: Runtime, scope: Scope) -> None:
    if is_unseen(runtime.principal, scope):
        warn_once(UNSEEN_PRINCIPAL, UNSEEN_PRINCIPAL)
        raise refusal("principal_unseen")


async def initialize_session(
    ctx: RequestContext,
    message: Message,
    kind: Kind,
    server_id: str | None = None,
    *,
    capabilities: bytes | None = None,
) -> ActiveSession:
    with nullcontext() if ctx.telemetry is None else ctx.telemetry.current():
        return await mint(
            ctx.runtime,
            principal=ctx.runtime.principal(ctx.scope),
            params={},
            scope=ctx.scope,
            kind=kind,
            client=client_of(message),
            server_id=server_id,
            capabilities=capabilities,
        )


async def _complete(made: NewSession, capabilities: bytes | None, publish: Publish | None) -> None:
    """Keep what the client can do, and make the session findable, where either is asked for."""
    try:
        if capabilities is not None:
            await made.active.keep_capabilities(capabilities)
        if publish is not None:
            await publish(made.active)
    except BaseException:  # `on_create` has run, and no client will ever know the session: `on_end` frees what it made
        with suppress(StoreUnavailable):
            await made.session.end(NOT_BEGUN)
        raise


def _make(
    runtime: Runtime, principal: Principal | None, *, now: float, server_id: str | None = None, **fields: Any
) -> NewSession:
    """Make a new session, with these claims in addition to its name, its creation and its owner."""
    ring = runtime.ring(now)
    subject = ring.signing.subject(principal)
    if runtime.create_limit is not None:
        runtime.create_limit.spend(subject, now=now)
    jti = secrets.token_urlsafe(16)
    issuer, audience = runtime.tokens.issuer, runtime.audience
    new = Claims(issuer=issuer, audience=audience, jti=jti, issued_at=floor_ms(now), subject=subject, **fields)
    if server_id is not None:
        new = msgspec.structs.replace(new, upstream=seal.seal_upstream(ring.signing, server_id, new))
    start = runtime.telemetry.recorder().start(new) if runtime.telemetry.is_recording() else None
    claims = new if start is None else msgspec.structs.replace(new, trace=start.trace)
    token = "" if claims.kind == PRINCIPAL else runtime.tokens.mint(ring, claims)
    ends_at = claims.expires_at if runtime.idle_timeout is None else end_of(claims, runtime, int(now))
    active = ActiveSession(token, claims, ring, runtime, principal, None, ends_at, now + RECHECK_AFTER)
    return NewSession(active, Session(active), start)


async def _register(new: ActiveSession) -> None:
    limits, principal = new.runtime.limits, new.principal
    hashes = None if principal is None else new.ring.signing.component_hashes(principal)
    max_sessions = limits.anonymous_sessions if principal is None else limits.sessions_per_principal
    await new.runtime.store.register(Record.of(new.claims, hashes), max_sessions=max_sessions)


async def _fill_by_hook(on_create: OnCreate, made: NewSession, params: dict[str, Any], scope: Scope) -> None:
    """Let the application fill a new session; where its client carries no state, that is kept."""
    try:
        with hook(made.session.ref):
            outcome = on_create(made.session, params, scope)
            if inspect.isawaitable(outcome):
                await outcome
        if made.active.claims.kind != SESSION:
            await made.active.save()
    except Refusal:
        raise
    except Exception as error:
        ref = made.active.claims.ref
        _log.exception("on_create of session %s raised %s", ref, type(error).__name__, extra=log_extra(ref))
        raise CreateFailed(ref=ref) from error


async def fork(parent: ActiveSession, *, params: dict[str, Any], scope: Scope) -> ActiveSession:
    """Mint a session for the caller of a live one, with a copy of its state and data; see `mint`.

    It ends alone, but expires no later than its parent: forking must not prolong what a stolen id is worth.
    """
    runtime, origin = parent.runtime, parent.claims
    _check_caller(runtime, scope)
    made = _make(
        runtime,
        parent.principal,
        now=runtime.clock(),
        kind=SESSION,
        expires_at=origin.expires_at,
        client=origin.client,
    )
    try:
        if runtime.tracked:
            await _register(made.active)
        else:
            await made.register_at_epoch()
        await _copy(parent, made.active)
        await _check_parent(parent)
        if runtime.on_create is not None:
            await _fill_by_hook(runtime.on_create, made, params, scope)
    except BaseException as error:  # leave nothing behind
        made.abort(error)
        await runtime.terminator.purge(made.active.claims.ref)
        raise
    made.commit()
    return made.active


async def _copy(parent: ActiveSession, child: ActiveSession) -> None:
    runtime = parent.runtime
    child.session.state.update(parent.session.state)
    source, target = (
        runtime.places.namespace(one.ref, one.expires_at, subject=one.subject) for one in (parent.claims, child.claims)
    )
    try:
        await runtime.store.copy(source, target)
    except PrincipalDataTooLarge:
        raise TooMuchData(ref=parent.claims.ref) from None


async def _check_parent(parent: ActiveSession) -> None:
    """Refuse where the parent has ended, now that the fork has its date: what ended the parent may not end the fork."""
    status = await parent.runtime.status(parent.claims)
    if status is not LIVE:
        raise refusal_of(status, parent.claims)
