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
from typing import Any, Final, Protocol

import anyio
import msgspec
from starlette.types import Scope

from .._errors import (
    DataGone,
    DataTooLarge,
    PrincipalDataTooLarge,
    Refusal,
    SessionEnded,
    StoreFull,
    StoreUnavailable,
)
from .._protocol.labels import client_of
from .._refusals import refusal
from .._session.claims import Claims, Kind, floor_ms
from .._session.events import SessionCreated
from .._session.functions import finish
from .._tokens import seal
from ..stores._base import LIVE, Record
from ..telemetry._core import hook
from .active import STATE_KEY, ActiveSession, check_capabilities, end_of
from .context import Request, params_of
from .lifecycle import LEASE, SUPERSEDED
from .logs import log_extra, warn_once, warns_of_client
from .resumption import refusal_for_status
from .sessions import RECHECK_AFTER

UNSEEN_PRINCIPAL: Final = (
    "no session for a request with an Authorization header, since this middleware does not see who the caller is. Pass "
    "principal=, a function that returns the caller for an ASGI scope; or use add_sessions if the application adds the "
    "authentication of Starlette, the SDK or FastMCP. If sessions are meant to be anonymous, so that anyone who learns "
    "an id can use it, pass principal=lambda scope: None"
)
_PAUSE: Final = 0.02  # seconds between two looks at a session that another worker begins; twice as long each time
_MAX_PAUSE: Final = 1.0  # seconds
_sleep = anyio.sleep


class Traits(Protocol):
    """What a dialect says of its sessions."""

    carries_state: bool
    has_token: bool
    lifetime: float | None


Publish = Callable[[ActiveSession], Awaitable[None]]
_log: Final = logging.getLogger("mcp_sessions")


async def mint_for(
    request: Request,
    traits: Traits,
    kind: Kind,
    *,
    params: dict[str, Any] | None = None,
    lifetime: float | None = None,
    server_id: str | None = None,
    publish: Publish | None = None,
) -> ActiveSession:
    """Create a session for the caller of a request.

    Args:
        request: The request.
        traits: The dialect by which the client identifies the session.
        kind: What its token may be used as.
        params: What `on_create` gets of `sessions/create`.
        lifetime: Seconds to its expiry, if they are not the dialect's.
        server_id: The wrapped server's own transport session, to be sealed inside.
        publish: Makes the session findable, or raises.

    Raises:
        Refusal: The caller gets no session.
    """
    runtime, capabilities = request.runtime, request.client_capabilities
    if capabilities is not None:
        check_capabilities(capabilities)
    # A store that is opened by the first use only could take a session for one from before it began to remember.
    await runtime.store.open()
    session = new_session(request, traits, kind, lifetime=lifetime)
    if server_id is not None:
        upstream = seal.seal_upstream(session.ring.signing, server_id, session.claims)
        session.claims = msgspec.structs.replace(session.claims, upstream=upstream)
    with nullcontext() if request.telemetry is None else request.telemetry.current():
        async with registered(session, has_token=traits.has_token):
            if capabilities is not None:
                await session.keep_capabilities(capabilities)
            await _run_on_create(session, params or {}, request.scope)
            if publish is not None:
                await _publish(session, publish)
        if request.telemetry is not None:
            request.telemetry.name_session(session.claims.ref)
    return session


async def _publish(session: ActiveSession, publish: Publish) -> None:
    try:
        await publish(session)
    except BaseException:  # `on_end` frees what `on_create` made for a session that nobody can find
        with suppress(StoreUnavailable):
            await session.end(SUPERSEDED)
        raise


def hook_params(request: Request) -> dict[str, Any]:
    """Return the params of a request, as far as a hook reads them."""
    return {} if request.runtime.on_create is None else params_of(request)


async def activate(session: ActiveSession, scope: Scope) -> None:
    """Create a session that was offered: one request does so, and others of the session wait, on any worker.

    Raises what refuses a new session; the next use tries again.
    """
    ref = session.claims.ref
    try:
        async with session.runtime.principals.beginning(ref):
            if (claim := await _claim(session)) is not None:
                await _activate_claimed(session, claim, scope)
    except DataTooLarge:
        raise refusal("data_full", ref=ref) from None
    except DataGone:
        raise SessionEnded(ref=ref) from None


async def _activate_claimed(session: ActiveSession, claim: bytes, scope: Scope) -> None:
    try:
        async with registered(session):
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


async def fork(request: Request, traits: Traits, parent: ActiveSession) -> ActiveSession:
    """Create a session for the caller of a live one, with a copy of its state and data; see `mint_for`.

    It ends alone, but expires no later than its parent: forking must not prolong what a stolen id is worth.
    """
    runtime, origin, params = parent.runtime, parent.claims, params_of(request)
    session = new_session(request, traits, origin.kind, expires_at=origin.expires_at)
    async with registered(session):
        session.state.update(parent.state)
        try:
            await runtime.store.copy(parent.namespace, session.namespace)
        except PrincipalDataTooLarge:
            raise refusal("data_full", ref=origin.ref) from None
        # Now that the fork has its date: what ended the parent meanwhile may not end the fork.
        (status,) = await runtime.store.statuses((origin,))  # which no store answers from its memory
        if status is not LIVE:
            raise refusal_for_status(status, origin)
        await _run_on_create(session, params, request.scope)
    if request.telemetry is not None:
        request.telemetry.name_session(session.claims.ref)
    return session


@asynccontextmanager
async def registered(session: ActiveSession, *, has_token: bool = True) -> AsyncIterator[None]:
    """Let a new session be filled, and then announce it; if a step fails, everything stored so far is removed.

    Raises:
        Refusal: Its caller has too many.
    """
    runtime = session.runtime
    if runtime.create_limit is not None:
        runtime.create_limit.spend(session.claims.subject, now=runtime.clock())
    start = runtime.telemetry.recorder().start(session.claims) if runtime.telemetry.is_recording() else None
    if start is not None:
        session.claims = msgspec.structs.replace(session.claims, trace=start.trace)
    claims = session.claims
    if has_token and not session.token:  # one that was offered has its token
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
    runtime.telemetry.emit(SessionCreated(claims.ref, claims.expires_at, not has_token))
    if start is not None:
        start.end()


def new_session(
    request: Request, traits: Traits, kind: Kind, *, lifetime: float | None = None, expires_at: int | None = None
) -> ActiveSession:
    """Return a new session for the caller of a request, which is not stored yet.

    Raises:
        Refusal: Nothing shows who the caller is.
    """
    runtime = request.runtime
    if request.is_unseen:
        warn_once(UNSEEN_PRINCIPAL, UNSEEN_PRINCIPAL)
        raise refusal("principal_unseen")
    now, principal = runtime.clock(), request.principal
    ring = runtime.ring(now)
    if principal is not None:
        warns_of_client(principal)
    seconds = lifetime or traits.lifetime or runtime.lifetime
    claims = Claims(
        kind=kind,
        issuer=runtime.tokens.issuer,
        audience=runtime.audience,
        jti=secrets.token_urlsafe(16),
        issued_at=floor_ms(now),
        expires_at=int(now) + int(seconds) if expires_at is None else expires_at,
        subject=ring.signing.subject(principal),
        aliases=ring.signing.aliases(principal),
        client=_client_of(request),
        boot=None if traits.carries_state else runtime.boot(),  # its state may be in this process
    )
    ends_at = end_of(claims, runtime, int(now))
    return ActiveSession(
        *("", claims, ring, runtime, principal, None, ends_at, now + RECHECK_AFTER), carries_state=traits.carries_state
    )


def _client_of(request: Request) -> str | None:
    client = None if request.message is None else client_of(request.message)
    if client is None and request.session is not None:  # a session of `initialize` knows it from there
        client = request.session.claims.client
    return client


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
    """Leave no record of a session that does not begin. An offered one may begin later, so it is not ended."""
    if not new.is_offered:
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
        if not new.carries_state:
            await new.save()
    except Refusal:
        raise
    except Exception as error:
        _log.exception("on_create of session %s raised %s", ref, type(error).__name__, extra=log_extra(ref))
        raise refusal("on_create_failed", ref=ref) from error
