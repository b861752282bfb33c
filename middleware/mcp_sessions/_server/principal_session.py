"""The session of a principal, for authenticated callers whose client names none (`TransportSessions.principal`).

The client holds nothing. The store has, under a name that follows from the keyed hash of the principal and from the
audience, which session is the present one. What a worker has read there holds for as long as that session lives, since
only one that has ended is followed by another: a request then costs what it costs by header or cookie. A new session
takes its place by compare-and-swap, so of two workers that begin one at once, one ends its own and uses the other's.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from typing import Final

import msgspec

from .._errors import StoreUnavailable
from .._protocol.jsonrpc import Message
from .._session.claims import PRINCIPAL, Claims, Principal, RedactedRepr, ref_of
from .._session.data import Namespace
from ..stores._base import LIVE, idle_at, is_touch_due
from .active import ActiveSession
from .answers import admits
from .context import RequestContext
from .minting import mint_for
from .runtime import Runtime
from .sessions import RECHECK_AFTER, checked_status

_KEY: Final = "session"
_MAX_BYTES: Final = 4096
_ATTEMPTS: Final = 3
_log: Final = logging.getLogger("mcp_sessions")


class _Current(RedactedRepr, msgspec.Struct, frozen=True):
    """The present session of a principal, as the store has it."""

    claims: Claims
    seen_at: float  # Unix seconds; it may lag, and counts where sessions are not tracked


_encode: Final = msgspec.json.Encoder().encode
_decode: Final = msgspec.json.Decoder(_Current).decode


async def open_own_session(
    ctx: RequestContext, message: Message, principal: Principal, *, fail_open: bool
) -> ActiveSession | None:
    """Return the session of a principal, a new one where none lives.

    None where the wrapped server does not admit the caller, who then gets its answer; or with `fail_open`, where the
    store does not answer. Raises what refuses a new session, or `StoreUnavailable`.
    """
    runtime = ctx.runtime
    now = runtime.clock()
    ring, idle = runtime.ring(now), runtime.transport.principal_idle
    try:
        claims = await _found_or_begun(ctx, message, sorted(ring.subjects(principal)), fail_open=fail_open)
        if claims is None:
            return None
        ends_at = min(claims.expires_at, int(now + (idle or 0)))
        session = ActiveSession("", claims, ring, runtime, principal, None, ends_at, now + RECHECK_AFTER)
        await session.load_state(fail_open=fail_open)
    except StoreUnavailable as error:
        if not fail_open:
            raise
        _log.warning("a request goes without its principal's session: store unavailable (%s)", error.reason)
        return None
    return session


async def _found_or_begun(
    ctx: RequestContext, message: Message, subjects: Sequence[str], *, fail_open: bool
) -> Claims | None:
    runtime = ctx.runtime
    find = partial(_find, runtime, subjects, fail_open=fail_open)
    claims = await find()
    if claims is not None:
        return claims
    async with runtime.principals.beginning(subjects[0]):
        claims = await find()  # another request may have begun one meanwhile
        if claims is not None or not await admits(ctx, message):
            return claims
        try:
            return (await mint_for(ctx, message, PRINCIPAL, publish=partial(_publish, runtime))).claims
        except StoreUnavailable:
            if (claims := await find()) is None:
                raise
            return claims


async def _find(runtime: Runtime, subjects: Sequence[str], *, fail_open: bool) -> Claims | None:
    """Return the live session of a principal, whose name differs by the key that hashed it; None where none lives."""
    for subject in subjects:
        remembered = runtime.principals.get(subject)
        if remembered is not None and await _uses(runtime, subject, remembered, fail_open=fail_open):
            return _decode(remembered).claims
        stored = await runtime.store.read(_place(runtime, subject), _KEY)
        if stored not in {None, remembered} and await _uses(runtime, subject, stored, fail_open=fail_open):
            return _decode(stored).claims
    return None


async def _uses(runtime: Runtime, subject: str, kept: bytes, *, fail_open: bool) -> bool:
    """Whether what is kept is a live session; its use is noted."""
    current, now = _decode(kept), runtime.clock()
    claims, idle = current.claims, _idle(runtime)
    is_ours = claims.boot == runtime.boot() and now < min(claims.expires_at, idle_at(current.seen_at, idle))
    if not is_ours or await checked_status(claims, runtime, fail_open=fail_open) is not LIVE:
        runtime.principals.put(subject, None)
        return False
    if idle is not None and is_touch_due(current.seen_at, now, idle):
        with suppress(StoreUnavailable):  # it is noted next time
            touched = _encode(_Current(claims, now))
            place = _place(runtime, subject, claims.expires_at)
            if not await runtime.store.compare_and_swap(place, _KEY, kept, touched):
                runtime.principals.put(subject, None)
                return False  # another worker was faster, so this is not what the store has
            kept = touched
    runtime.principals.put(subject, kept)
    return True


async def _publish(runtime: Runtime, new: ActiveSession) -> None:
    """Put a new session in the place of one that has ended, if there was any."""
    subject = new.claims.subject or ""
    place, current = _place(runtime, subject, new.claims.expires_at), _encode(_Current(new.claims, runtime.clock()))
    for _ in range(_ATTEMPTS):  # what has expired may be dropped after it was read
        kept = await runtime.store.read(place, _KEY)
        if kept is not None and await _uses(runtime, subject, kept, fail_open=False):
            break
        if await runtime.store.compare_and_swap(place, _KEY, kept, current):
            runtime.principals.put(subject, current)
            old, idle = None if kept is None else _decode(kept), _idle(runtime)
            if old is not None and idle_at(old.seen_at, idle) <= runtime.clock() < old.claims.expires_at:
                with suppress(StoreUnavailable):  # nothing sweeps it, and its data is to be purged
                    await runtime.terminator.end(old.claims, "idle")
            return
    raise StoreUnavailable(cause="another worker has begun a session of the same principal")


def _idle(runtime: Runtime) -> int | None:
    """Return the seconds after which a session is idle, counted here; None where the store counts them."""
    return None if runtime.tracked else runtime.transport.principal_idle


def _place(runtime: Runtime, subject: str, expires_at: int = 0) -> Namespace:
    """Return where the store has the session of a principal, until it expires."""
    owner = ref_of(f"principal/{subject}/{runtime.audience}")
    return Namespace(owner, expires_at, _MAX_BYTES, audience=runtime.audience)
