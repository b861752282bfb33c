"""`ActiveSession`: one session during one request, with its state, its data and its metadata for the client."""

from __future__ import annotations

import logging
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Final

import msgspec
from starlette.types import Scope

from .._errors import (
    DataGone,
    DataTooLarge,
    PrincipalDataTooLarge,
    SessionEnded,
    SessionNotFound,
    StateTooLarge,
    StoreUnavailable,
)
from .._protocol import metadata
from .._refusals import refusal
from .._session.claims import Claims, Principal, RedactedRepr
from .._session.data import Data, Namespace
from .._session.session import Session
from .._session.state import RequestState, UnreadableState
from .._tokens import seal
from .._tokens.jwt import VerifiedToken
from .._tokens.keys import KeyRing
from ..stores._threads import Loop, running_loop
from .logs import log_extra, warn_once

if TYPE_CHECKING:
    from .runtime import Runtime

# Where the state of a transport session and its client's capabilities are stored; `session.data` has no such names.
STATE_KEY: Final = ""
CAPABILITIES_KEY: Final = "\0client_capabilities"
MAX_CAPABILITIES_BYTES: Final = 16 * 1024  # that any caller who may create sessions can have kept for each
BEGUN_ELSEWHERE: Final = (
    'refusing a session that another process began, whose state is lost: store="memory:" holds the state of clients '
    "without session support in one process. Name a store that lasts and that all workers share, as in "
    'store="sqlite:sessions.db" on one machine or store="redis://..." on many'
)

_log: Final = logging.getLogger("mcp_sessions")


class ActiveSession(RedactedRepr, msgspec.Struct, eq=False):
    """One session during one request; what the application sees of it is made of this."""

    token: str  # the session id as the client holds it
    claims: Claims  # verified
    ring: KeyRing  # the keys that are valid now
    runtime: Runtime
    principal: Principal | None  # the caller
    payload: bytes | None  # the state that came with it or was kept for it, a JSON object
    ends_at: int  # the earlier of absolute and idle expiry, Unix seconds
    recheck_at: float  # from when on the store has to be asked again, since the session may have ended, Unix seconds
    verified: VerifiedToken | None = None  # None for a new session
    carries_state: bool = False  # its client carries the state; the store has it otherwise
    is_offered: bool = False  # it was offered to a client, and is created at its first use
    ended_by_own_request: bool = False  # so that the request goes on when its session ends
    state_error: str | None = None  # why its state could not be read from the store
    loaded_state: RequestState | None = None  # its state, once it was looked at
    closed: bool = False  # the response has left, so that nothing changes any more
    answered: bool = False  # the application has sent the end of its response, or no response is expected
    loop: Loop | None = None  # for which threads of the application wait

    @property
    def session(self) -> Session:
        """The session as the application sees it. Not kept here, since it refers back to this."""
        self.loop = running_loop()
        return Session(self)

    @property
    def state(self) -> RequestState:
        """The state that its client carried, or that the store has for it; the latter may be out of reach."""
        if self.loaded_state is None:
            check = partial(check_state, limit=self.runtime.limits.state_bytes)  # and nothing that leads back here
            if self.state_error is not None:
                self.loaded_state = UnreadableState(self.state_error)
            else:
                self.loaded_state = RequestState(self.payload, check=check)
            if self.closed:
                self.loaded_state.close()
        return self.loaded_state

    def close(self) -> None:
        """Refuse further changes of the state: the response has left, or never will."""
        self.closed = True
        if self.loaded_state is not None:
            self.loaded_state.close()

    def data(self) -> Data:
        return self.runtime.data(self.claims.ref, self.claims.expires_at, self.claims.subject, self.loop)

    def is_handling(self, scope: Scope) -> bool:
        """Whether a request that its handlers make counts as a part of theirs.

        Contexts leak: servers may start another user's request in the context of the one before it on a connection, and
        tasks outlive the request that they come from. So this ends with the response, and at another caller.
        """
        if self.closed or self.answered:
            return False
        caller = None
        with suppress(Exception):  # where `principal=` reads what a server puts on the scope, a handler's has none
            caller = self.runtime.principal(scope)
        return caller is None or caller == self.principal

    async def capabilities(self) -> bytes | None:
        return await self.runtime.store.read(self.namespace, CAPABILITIES_KEY)

    async def end(self, reason: str) -> None:
        self.ended_by_own_request = True  # before the store knows: this request's stream may be looked at meanwhile
        try:
            await self.runtime.terminator.end(self.claims, reason)
        except StoreUnavailable:
            self.ended_by_own_request = False
            raise

    async def load_state(self, *, fail_open: bool) -> None:
        """Read the state of a session whose client carries none; with `fail_open` the request goes on without it."""
        runtime = self.runtime
        if self.claims.boot != runtime.boot():
            warn_once(BEGUN_ELSEWHERE, BEGUN_ELSEWHERE)
            raise SessionNotFound("begun_in_another_process", ref=self.claims.ref)
        try:
            self.take(await runtime.store.read(self.namespace, STATE_KEY))
        except StoreUnavailable as error:
            if not fail_open:
                error.ref = self.claims.ref
                raise
            self.state_error = error.reason
            _log.warning(
                "session %s continues without its state: store unavailable (%s)",
                self.claims.ref,
                self.state_error,
                extra=log_extra(self.claims.ref),
            )

    @property
    def has_begun(self) -> bool:
        """Whether an offered session was used before; only then the store has a state for it, if an empty one."""
        return not self.is_offered or self.payload is not None or self.state_error is not None

    def take(self, stored: bytes | None) -> None:
        """Take over what the store has as the state, after the trace of an offered session, which its token lacks."""
        self.payload = stored
        if self.is_offered and stored is not None:
            trace, brace, rest = stored.partition(b"{")
            self.payload = brace + rest or None  # else another request is about to begin the session
            if self.payload is not None and trace:
                self.claims = msgspec.structs.replace(self.claims, trace=trace.decode("ascii"))

    async def keep(self, state: bytes) -> None:
        """Keep a state, a JSON object, in the store, where `take` finds it."""
        trace = self.claims.trace if self.is_offered else None
        await self.runtime.store.write(self.namespace, STATE_KEY, (trace or "").encode("ascii") + state)
        self.payload = state

    async def save(self) -> None:
        """Keep a state that changed in the store, for a client that carries none."""
        changed = self.state.finalize()
        if changed is not None and not self.ended_by_own_request:  # an ended session has nothing to keep
            await self.keep(changed)

    async def keep_capabilities(self, value: bytes) -> None:
        """Keep what the client states that it can do, a JSON object, in place of what it stated before."""
        check_capabilities(value, self.claims.ref)
        try:
            await self.runtime.store.write(self.namespace, CAPABILITIES_KEY, value)
        except PrincipalDataTooLarge:
            raise refusal("data_full", ref=self.claims.ref) from None
        except DataTooLarge:
            raise refusal("capabilities_too_large", ref=self.claims.ref) from None
        except DataGone:
            raise SessionEnded(ref=self.claims.ref) from None

    def encode_metadata(self) -> bytes:
        """Return the JSON of its metadata as it stands now; closes the state, since it leaves with the response."""
        self.closed, runtime, claims = True, self.runtime, self.claims
        changed = None if self.loaded_state is None else self.loaded_state.finalize()
        carries_last_seen = runtime.idle_timeout is not None and not runtime.tracked
        if changed is None and not carries_last_seen:
            return metadata.metadata(self.token, self.ends_at)
        now = int(runtime.clock())
        payload = (self.payload or b"{}") if changed is None else changed
        sealed = seal.seal(self.ring.signing, payload, claims, last_seen=now)
        return metadata.metadata(self.token, end_of(claims, runtime, now), sealed)

    @property
    def namespace(self) -> Namespace:
        return self.runtime.namespace(self.claims.ref, self.claims.expires_at, self.claims.subject)


def end_of(claims: Claims, runtime: Runtime, last_seen: int) -> int:
    """Return the earlier of absolute and idle expiry, Unix seconds."""
    idle, end = runtime.idle_timeout, claims.expires_at
    return end if idle is None else min(last_seen + idle, end)


def check_state(payload: bytes, limit: int) -> None:
    size = seal.sealed_size(len(payload))
    if size > limit:
        raise StateTooLarge(size, limit)


def check_capabilities(value: bytes, ref: str | None = None) -> None:
    """Check that the capabilities of a client may be kept for a session, or refuse with `capabilities_too_large`."""
    if not len(value) <= MAX_CAPABILITIES_BYTES:
        raise refusal("capabilities_too_large", ref=ref)
