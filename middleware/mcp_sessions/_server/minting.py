"""New sessions: recorded, filled by the application, and only then announced; and forks of a session.

What fails on the way leaves nothing behind. A cookie only offers a session: many a client asks what a server can do and
never comes back, so the session begins with its first use. How a session is named on the wire is decided elsewhere.
"""

from __future__ import annotations

import logging
import secrets
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, nullcontext, suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

import anyio
import msgspec
from starlette.types import Scope

from .._errors import (
    DataGone,
    DataTooLarge,
    PrincipalDataTooLarge,
    Refusal,
    SessionEnded,
    SessionNotFound,
    StoreFull,
    StoreUnavailable,
)
from .._protocol.cookies import SHARED_JAR
from .._protocol.draft import SessionMetadata
from .._protocol.headers import Header
from .._protocol.jsonrpc import Message
from .._protocol.labels import client_of
from .._refusals import refusal
from .._session.claims import COEXISTING, COOKIE, FIELD, PRINCIPAL, SESSION, Claims, Kind, Principal, floor_ms
from .._session.events import SessionCreated
from .._session.functions import finish
from .._tokens import seal
from ..stores._base import LIVE, Record
from ..telemetry._core import hook
from .active import STATE_KEY, ActiveSession, check_capabilities, end_of
from .context import RequestContext
from .lifecycle import LEASE, SUPERSEDED
from .logs import log_extra, warn_once, warns_of_client
from .principal import is_unseen
from .resumption import refusal_for_status
from .sessions import RECHECK_AFTER, open_session

if TYPE_CHECKING:
    from .runtime import Runtime

UNSEEN_PRINCIPAL: Final = (
    "no session for a request with an Authorization header, since this middleware does not see who the caller is. Pass "
    "principal=, a function that returns the caller for an ASGI scope; or use add_sessions if the application adds the "
    "authentication of Starlette, the SDK or FastMCP. If sessions are meant to be anonymous, so that anyone who learns "
    "an id can use it, pass principal=lambda scope: None"
)
_PAUSE: Final = 0.02  # seconds between two looks at a session that another worker begins; twice as long each time
_MAX_PAUSE: Final = 1.0  # seconds
_sleep = anyio.sleep
Publish = Callable[[ActiveSession], Awaitable[None]]
_log: Final = logging.getLogger("mcp_sessions")


async def mint(
    runtime: Runtime,
    *,
    principal: Principal | None,
    scope: Scope,
    params: dict[str, Any] | None = None,
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
    # A store that is opened by the first use only could take a session for one from before it began to remember.
    await runtime.store.open()
    session = _make(runtime, principal, scope, kind, client)
    if server_id is not None:
        upstream = seal.seal_upstream(session.ring.signing, server_id, session.claims)
        session.claims = msgspec.structs.replace(session.claims, upstream=upstream)
    async with _beginning(session):
        if capabilities is not None:
            await session.keep_capabilities(capabilities)
        await _run_on_create(session, params or {}, scope)
        if publish is not None:
            try:
                await publish(session)
            except BaseException:  # `on_end` frees what `on_create` made for a session that nobody can find
                with suppress(StoreUnavailable):
                    await session.end(SUPERSEDED)
                raise
    return session


async def mint_for(ctx: RequestContext, message: Message, kind: Kind, **options: Any) -> ActiveSession:
    """Mint a session for the sender of a message, with the options of `mint`."""
    client = client_of(message)
    if client is None and ctx.session is not None:  # a transport session knows it from its `initialize`
        client = ctx.session.claims.client
    with nullcontext() if ctx.telemetry is None else ctx.telemetry.current():
        session = await mint(ctx.runtime, principal=ctx.principal, scope=ctx.scope, kind=kind, client=client, **options)
        if ctx.telemetry is not None:
            ctx.telemetry.name_session(session.claims.ref)
    return session


async def begin_offered(session: ActiveSession, scope: Scope) -> None:
    """Begin a session that was offered: one request does so, and others of the session wait, on any worker.

    Raises what refuses a new session; the next use tries again.
    """
    ref = session.claims.ref
    try:
        async with session.runtime.principals.beginning(ref):
            if (claim := await _claim(session)) is not None:
                await _begin_claimed(session, claim, scope)
    except DataTooLarge:
        raise refusal("data_full", ref=ref) from None
    except DataGone:
        raise SessionEnded(ref=ref) from None


async def _begin_claimed(session: ActiveSession, claim: bytes, scope: Scope) -> None:
    try:
        async with _beginning(session):
            await _run_on_create(session, {}, scope)
            if session.payload is None:
                await session.keep(b"{}")
    except BaseException:
        with anyio.CancelScope(shield=True), suppress(StoreUnavailable, DataGone):
            await session.runtime.store.compare_and_swap(session.namespace, STATE_KEY, claim, None)
        raise
    session.loaded_state = None  # which `on_create` has changed


async def _claim(session: ActiveSession) -> bytes | None:
    """Return what marks a session as this request's to begin, or None once another one has begun it."""
    store, clock, pause = session.runtime.store, session.runtime.clock, _PAUSE
    while True:
        stored = await store.read(session.namespace, STATE_KEY)
        session.take(stored)
        if session.has_begun:
            return None
        if stored is None or not clock() < int(stored) + LEASE:
            claim = b"%d" % clock()
            if await store.compare_and_swap(session.namespace, STATE_KEY, stored, claim):
                return claim
        else:
            await _sleep(pause)
            pause = min(2 * pause, _MAX_PAUSE)  # `on_create` may hang there until its lease is over


async def fork(parent: ActiveSession, *, params: dict[str, Any], scope: Scope) -> ActiveSession:
    """Mint a session for the caller of a live one, with a copy of its state and data; see `mint`.

    It ends alone, but expires no later than its parent: forking must not prolong what a stolen id is worth.
    """
    runtime, origin = parent.runtime, parent.claims
    session = _make(runtime, parent.principal, scope, SESSION, origin.client, expires_at=origin.expires_at)
    async with _beginning(session):
        session.state.update(parent.state)
        try:
            await runtime.store.copy(parent.namespace, session.namespace)
        except PrincipalDataTooLarge:
            raise refusal("data_full", ref=origin.ref) from None
        # Now that the fork has its date: what ended the parent meanwhile may not end the fork.
        (status,) = await runtime.store.statuses((origin,))  # which no store answers from its memory
        if status is not LIVE:
            raise refusal_for_status(status, origin)
        await _run_on_create(session, params, scope)
    return session


@asynccontextmanager
async def _beginning(session: ActiveSession) -> AsyncIterator[None]:
    """Let a new session be filled, and then announce it; what was kept for it goes where that fails.

    Raises the refusal where its caller has too many.
    """
    runtime = session.runtime
    if runtime.create_limit is not None:
        runtime.create_limit.spend(session.claims.subject, now=runtime.clock())
    start = runtime.telemetry.recorder().start(session.claims) if runtime.telemetry.is_recording() else None
    if start is not None:
        session.claims = msgspec.structs.replace(session.claims, trace=start.trace)
    claims = session.claims
    if claims.kind != PRINCIPAL and not session.token:  # one that was offered has its token
        session.token = runtime.tokens.mint(session.ring, claims)
    try:
        await _register(session)
        try:
            yield
        except BaseException:
            await runtime.terminator.purge(claims.ref)
            raise
    except BaseException as error:
        if start is not None:
            start.end(error)
        raise
    runtime.telemetry.emit(SessionCreated(claims.ref, claims.expires_at, claims.kind == PRINCIPAL))
    if start is not None:
        start.end()


def _make(
    runtime: Runtime,
    principal: Principal | None,
    scope: Scope,
    kind: Kind,
    client: str | None,
    *,
    expires_at: int | None = None,
) -> ActiveSession:
    """Make a new session for a caller, which expires after the lifetime of its kind, or when it is said to.

    Raises the refusal where nothing shows who the caller is.
    """
    if is_unseen(runtime.principal, scope, dict(scope["headers"])):
        warn_once(UNSEEN_PRINCIPAL, UNSEEN_PRINCIPAL)
        raise refusal("principal_unseen")
    if principal is not None:
        warns_of_client(principal)
    now = runtime.clock()
    ring = runtime.ring(now)
    lifetime = runtime.lifetime if kind in {SESSION, FIELD, COEXISTING} else runtime.transport.lifetime
    claims = Claims(
        kind=kind,
        issuer=runtime.tokens.issuer,
        audience=runtime.audience,
        jti=secrets.token_urlsafe(16),
        issued_at=floor_ms(now),
        expires_at=int(now) + int(lifetime) if expires_at is None else expires_at,
        subject=ring.signing.subject(principal),
        aliases=ring.signing.aliases(principal),
        client=client,
        boot=None if kind == SESSION else runtime.boot(),  # its state may be in this process
    )
    ends_at = end_of(claims, runtime, int(now))
    return ActiveSession("", claims, ring, runtime, principal, None, ends_at, now + RECHECK_AFTER)


async def _register(new: ActiveSession) -> None:
    """Note a new session in the store. An untracked one begins without its answer, and may then be refused later."""
    store, limits, principal = new.runtime.store, new.runtime.limits, new.principal
    if not new.runtime.tracked:
        with suppress(StoreUnavailable):
            await store.register_at_epoch(new.claims)
        return
    hashes = None if principal is None else new.ring.signing.component_hashes(principal)
    max_sessions = limits.anonymous_sessions if principal is None else limits.sessions_per_principal
    seen_at = floor_ms(new.runtime.clock())  # it may be offered long before
    record = replace(Record.of(new.claims, hashes), seen_at=seen_at)
    try:
        await store.register(record, max_sessions=max_sessions)
    except StoreFull:
        raise
    except (StoreUnavailable, anyio.get_cancelled_exc_class()):  # nobody knows whether the store has it
        await _take_back(new, record)
        raise


async def _take_back(new: ActiveSession, record: Record) -> None:
    """Leave no record of a session that does not begin. One that a cookie names may begin later, so it is not ended."""
    if new.claims.kind != COOKIE:
        new.runtime.terminator.withdraw(record)
        return
    with anyio.CancelScope(shield=True), suppress(StoreUnavailable):
        await new.runtime.store.purge(record.ref)


async def _run_on_create(new: ActiveSession, params: dict[str, Any], scope: Scope) -> None:
    """Let the application fill a new session; where its client carries no state, that is kept."""
    on_create, ref = new.runtime.on_create, new.claims.ref
    if on_create is None:
        return
    try:
        with hook(ref):
            await finish(on_create(new.session, params, scope))
        if new.claims.kind != SESSION:
            await new.save()
    except Refusal:
        raise
    except Exception as error:
        _log.exception("on_create of session %s raised %s", ref, type(error).__name__, extra=log_extra(ref))
        raise refusal("on_create_failed", ref=ref) from error


# --- cookies ---


async def first_cookie(ctx: RequestContext, message: Message) -> Header | None:
    """Return the cookie that the answer to `server/discover` sets, or None where its client keeps what it has."""
    cookie, shares = ctx.headers.cookie, ctx.runtime.transport.shares_cookies
    if cookie == SHARED_JAR and not shares:
        return None
    if cookie is None:
        return await new_cookie(ctx, message)
    try:
        await open_session(ctx, SessionMetadata(cookie), COOKIE)
    except SessionNotFound:
        return await new_cookie(ctx, message)
    except StoreUnavailable:
        pass  # to take it for dead could give one client the session of another
    if shares:
        return None
    _log.warning(
        "two MCP clients share one cookie jar, so neither has a session: give each an HTTP client of its own, wrap "
        'them with with_sessions, or set TransportSessions(cookie="shared") where they are one conversation'
    )
    return ctx.cookie_of(SHARED_JAR)


async def new_cookie(ctx: RequestContext, message: Message) -> Header | None:
    """Return a cookie that offers a session, or None where the caller gets none.

    The session begins with its first use: nothing is kept, counted or reported until then.
    """
    runtime = ctx.runtime
    try:
        await runtime.store.open()
        offered = _make(runtime, ctx.principal, ctx.scope, COOKIE, client_of(message))
    except Refusal as reason:
        ctx.record_refused(reason, message.label)
        return None
    with suppress(StoreUnavailable):
        await runtime.store.register_at_epoch(offered.claims)
    return ctx.cookie_of(runtime.tokens.mint(offered.ring, offered.claims))
