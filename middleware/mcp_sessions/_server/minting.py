"""New sessions: recorded, filled by the application, and only then announced; and forks of a session.

What fails on the way leaves nothing behind. A cookie only offers a session: many a client asks what a server can do and
never comes back, so the session begins with its first use. How a session is named on the wire is decided elsewhere.
"""

from __future__ import annotations

import logging
import secrets
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from typing import Any, Final, Protocol

import anyio
import msgspec
from starlette.types import Scope

from .._errors import (
    DataError,
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
from .._session.session import Session
from .._session.state import State
from .._tokens import seal
from ..stores._base import LIVE, STATE_KEY, Record
from ..telemetry._core import hook
from .context import Request, params_of
from .lifecycle import LEASE
from .logs import log_extra, warn_once, warns_of_client
from .observers import Creating
from .resumption import refusal_for_status
from .runtime import Runtime
from .sessions import (
    check_capabilities,
    end_of,
    make_session,
    set_stored,
    store_capabilities,
    store_state,
    write_state,
)

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
    lifetime: float | None


_log: Final = logging.getLogger("mcp_sessions")


async def mint_for(
    request: Request,
    traits: Traits,
    kind: Kind,
    *,
    params: dict[str, Any] | None = None,
    lifetime: float | None = None,
    upstream: seal.Upstream | None = None,
) -> Session:
    """Create a session for the caller of a request.

    Args:
        request: The request.
        traits: The dialect by which the client identifies the session.
        kind: What its token may be used as.
        params: What `on_create` gets of `sessions/create`.
        lifetime: Seconds to its expiry, if they are not the dialect's.
        upstream: The wrapped server's own transport session, to be sealed inside.

    Raises:
        Refusal: The caller gets no session.
    """
    runtime, capabilities = request.runtime, request.client_capabilities
    if capabilities is not None:
        check_capabilities(capabilities)
    # A store that is opened by the first use only could take a session for one from before it began to remember.
    await runtime.store.open()
    session = new_session(request, traits, kind, lifetime=lifetime)
    if upstream is not None:
        sealed = seal.seal_upstream(session._ring.signing, upstream, session._claims)
        session._claims = msgspec.structs.replace(session._claims, upstream=sealed)
    with request.watch.current():
        async with registered(runtime, session):
            if capabilities is not None:
                await store_capabilities(runtime, session, capabilities)
            await _run_on_create(runtime, session, params or {}, request.scope)
        request.watch.name_session(session.ref)
    return session


def hook_params(request: Request) -> dict[str, Any]:
    """Return the params of a request, as far as a hook reads them."""
    return {} if request.runtime.on_create is None else params_of(request)


async def activate(runtime: Runtime, session: Session, scope: Scope) -> None:
    """Create a session that was offered. If there is an `on_create`, other requests of the session wait for it.

    Raises what refuses a new session; the next use tries again.
    """
    ref = session.ref
    try:
        if runtime.on_create is None and await _activate_at_once(runtime, session):
            return
        async with runtime.principals.beginning(ref):
            if (claim := await _claim(runtime, session)) is not None:
                await _activate_claimed(runtime, session, claim, scope)
    except DataTooLarge:
        raise refusal("data_full", ref=ref) from None
    except DataGone:
        raise SessionEnded(ref=ref) from None


async def _activate_at_once(runtime: Runtime, session: Session) -> bool:
    """Create a session by one swap; the request that loses it goes on in the session of the other.

    Returns:
        False if another process has begun to create it, with an `on_create`.
    """
    creating = _begin_creation(runtime, session)
    place, trace = runtime.namespace_of(session._claims), session._claims.trace or ""
    try:
        if runtime.tracked:
            await _register(runtime, session)  # which changes nothing if another request has done so
        is_created = await runtime.store.compare_and_swap(place, STATE_KEY, None, trace.encode("ascii") + b"{}")
        if not is_created:
            set_stored(runtime, session, await runtime.store.read(place, STATE_KEY))
    except BaseException as error:
        creating.end(error)
        raise
    if is_created:
        session._state = State(b"{}", check=runtime.check_state)
        _report_created(runtime, session)
    elif runtime.create_limit is not None:
        runtime.create_limit.give_back(session._claims.subject)
    creating.end()
    return session._has_begun


async def _activate_claimed(runtime: Runtime, session: Session, claim: bytes, scope: Scope) -> None:
    try:
        async with registered(runtime, session):
            await _run_on_create(runtime, session, {}, scope)
            if not session._has_begun:
                await write_state(runtime, session, b"{}")
    except BaseException:
        place = runtime.namespace_of(session._claims)
        with anyio.CancelScope(shield=True), suppress(StoreUnavailable, DataGone):
            await runtime.store.compare_and_swap(place, STATE_KEY, claim, None)
        raise
    session._state = State(session._state._stored, check=runtime.check_state)  # that of `on_create` is closed


async def _claim(runtime: Runtime, session: Session) -> bytes | None:
    """Mark a session as this request's to begin, and return the mark; None if another request has begun it."""
    store, clock, pause, place = runtime.store, runtime.clock, _PAUSE, runtime.namespace_of(session._claims)
    while True:
        stored = await store.read(place, STATE_KEY)
        set_stored(runtime, session, stored)
        if session._has_begun:
            return None
        if stored is None or not clock() < int(stored) + LEASE:
            claim = b"%d" % clock()
            if await store.compare_and_swap(place, STATE_KEY, stored, claim):
                return claim
        else:
            await _sleep(pause)
            pause = min(2 * pause, _MAX_PAUSE)  # `on_create` may hang there until its lease ends


async def fork(request: Request, traits: Traits, parent: Session) -> Session:
    """Create a session for the caller of a live one, with a copy of its state and data; see `mint_for`.

    It ends alone, but expires no later than its parent: forking must not prolong what a stolen id is worth.
    """
    runtime, origin, params = request.runtime, parent._claims, params_of(request)
    session = new_session(request, traits, origin.kind, expires_at=origin.expires_at)
    async with registered(runtime, session):
        session.state.update(parent.state)
        try:
            await runtime.store.copy(runtime.namespace_of(origin), runtime.namespace_of(session._claims))
        except PrincipalDataTooLarge:
            raise refusal("data_full", ref=origin.ref) from None
        # Now that the fork has its date: what ended the parent meanwhile may not end the fork.
        (found,) = await runtime.rechecks.ask(origin)
        if found.status is not LIVE:
            raise refusal_for_status(found.status, origin)
        await _run_on_create(runtime, session, params, request.scope)
    request.watch.name_session(session.ref)
    return session


@asynccontextmanager
async def registered(runtime: Runtime, session: Session) -> AsyncIterator[None]:
    """Let a new session be filled, and then announce it; if a step fails, everything stored so far is removed.

    Raises:
        Refusal: Its caller has too many.
    """
    creating = _begin_creation(runtime, session)
    claims = session._claims
    if not (session._token or session._is_offered):  # an offered one has its token, a remembered one needs none
        session._token = runtime.tokens.mint(session._ring, claims)
    try:
        await _register(runtime, session)
        try:
            yield
        except BaseException:
            await runtime.terminator.purge(claims.ref)
            raise
    except BaseException as error:
        creating.end(error)
        raise
    _report_created(runtime, session)
    creating.end()


def _report_created(runtime: Runtime, session: Session) -> None:
    claims = session._claims
    runtime.observers.created(SessionCreated(claims.ref, claims.expires_at, None if session._token else claims.kind))


def _begin_creation(runtime: Runtime, session: Session) -> Creating:
    """Count a session for its caller, and report that it is being created.

    Raises:
        Refusal: Its caller has created too many.
    """
    if runtime.create_limit is not None:
        runtime.create_limit.spend(session._claims.subject, now=runtime.clock())
    creating = runtime.observers.creating(session._claims)
    if creating.trace is not None:
        session._claims = msgspec.structs.replace(session._claims, trace=creating.trace)
    return creating


def new_session(
    request: Request, traits: Traits, kind: Kind, *, lifetime: float | None = None, expires_at: int | None = None
) -> Session:
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
    session = make_session(runtime, claims, principal, ring, now=now, ends_at=end_of(claims, runtime, int(now)))
    session._carries_state = traits.carries_state
    return session


def _client_of(request: Request) -> str | None:
    client = None if request.message is None else client_of(request.message)
    if client is None and request.session is not None:  # a session of `initialize` knows it from there
        client = request.session.client
    return client


async def _register(runtime: Runtime, new: Session) -> None:
    """Note a new session in the store. An untracked one begins without its answer, and may then be refused later."""
    store, limits, principal = runtime.store, runtime.limits, new.principal
    if not runtime.tracked:
        with suppress(StoreUnavailable):
            await store.register_at_epoch(new._claims)
        return
    hashes = None if principal is None else new._ring.signing.component_hashes(principal)
    max_sessions = limits.anonymous_sessions if principal is None else limits.sessions_per_principal
    seen_at = floor_ms(runtime.clock())  # it may be offered long before
    record = replace(Record.of(new._claims, hashes), seen_at=seen_at)
    try:
        await store.register(record, max_sessions=max_sessions)
    except StoreFull:
        raise
    except (StoreUnavailable, anyio.get_cancelled_exc_class()):  # it is unknown whether the store has it
        await _take_back(runtime, new, record)
        raise


async def _take_back(runtime: Runtime, new: Session, record: Record) -> None:
    """Leave no record of a session that was not created. An offered one may be created later, so it is not ended."""
    if not new._is_offered:
        runtime.terminator.withdraw(record)
        return
    place, claim = runtime.namespace_of(new._claims), b"%d" % runtime.clock()
    with anyio.CancelScope(shield=True), suppress(StoreUnavailable, DataError):
        # If there is no `on_create`, another request may have created it meanwhile, or does so just now.
        if runtime.on_create is not None or await runtime.store.compare_and_swap(place, STATE_KEY, None, claim):
            await runtime.store.purge(record.ref)


async def _run_on_create(runtime: Runtime, new: Session, params: dict[str, Any], scope: Scope) -> None:
    """Let the application fill a new session, and store its state if its client carries none."""
    on_create, ref = runtime.on_create, new.ref
    if on_create is None:
        return
    try:
        with hook(ref):
            await finish(on_create(new, params, scope))
        if not new._carries_state:
            await store_state(runtime, new)
    except Refusal:
        raise
    except Exception as error:
        _log.exception("on_create of session %s raised %s", ref, type(error).__name__, extra=log_extra(ref))
        raise refusal("on_create_failed", ref=ref) from error
