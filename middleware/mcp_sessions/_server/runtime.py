"""`Runtime`: what all requests of one middleware share, made once from its checked options."""

from __future__ import annotations

import asyncio
import hashlib
import logging
import os
import secrets
from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, Final
from weakref import WeakValueDictionary

import anyio
from starlette.types import ASGIApp

from .. import stores
from .._protocol.labels import correlation_sources
from .._session.claims import Claims, Kind
from .._session.data import Data, DataStore, Namespace
from .._session.state import check_size
from .._tokens.event_ids import EventIds
from .._tokens.jwt import Tokens
from .._tokens.keyfile import key_source
from ..stores._base import ANONYMOUS, StoreScope
from ..stores._threads import Loop, running_loop, wait_from_thread
from ..stores._timeout import TimeoutStore
from ..stores._together import LookUps, Recent
from .background import LiveSessionCounter
from .lifecycle import Sweeper, Terminator
from .option_types import as_seconds
from .options import Affinity, CoreOptions, tracking
from .principal import CreateLimit, PrincipalSessions, reader
from .recording import Recording, observers_of
from .resumption import ResumableCalls, Streams

if TYPE_CHECKING:
    from .._affinity.affinity import WorkerAffinity
    from .background import Background

# Where the store has what the client of a session states that it can do; `session.data` has no such name.
CAPABILITIES_KEY: Final = "\0client_capabilities"
NO_ASYNCIO: Final = (
    "sessions of a stateful server are served by the worker that created them alone, since workers reach each other on "
    "asyncio only: use one worker or asyncio, or route by session"
)
_log: Final = logging.getLogger("mcp_sessions")
_PROCESS: Final = secrets.token_bytes(16)


class Runtime:
    """What all requests of one middleware share."""

    def __init__(self, app: ASGIApp, options: CoreOptions) -> None:
        limits, idle, tracked = options["limits"], options["idle_timeout"], tracking(options)
        if idle is None and tracked is not None:
            idle = tracked.silence
        self.options: Final = options
        self.limits: Final = limits
        self.check_state: Final = partial(check_size, limit=limits.state_bytes)
        self.clock: Final = options["clock"]
        self.lifetime: Final = as_seconds(options["lifetime"])
        self.body_timeout: Final = as_seconds(limits.body_timeout)
        self.idle_timeout: Final = None if idle is None else int(as_seconds(idle))
        self.tracked: Final = tracked is not None
        self.preflight: Final = options["admission"] == "ask"  # the wrapped server admits the callers that we answer
        self.principal: Final = reader(options["principal"])
        self.on_create: Final = options["on_create"]
        self.create_limit: Final = None if limits.creates_per_minute is None else CreateLimit(limits.creates_per_minute)
        self.principals: Final = PrincipalSessions()
        self.correlate: Final = correlation_sources(options["telemetry"].correlate)  # where conversations are named

        self.ring: Final = key_source(options["keys"])  # returns the keys in force at a moment, Unix seconds
        self.keys_persistent: Final = not self.ring(self.clock()).ephemeral  # whether they outlive this process
        self.audience: Final = options["audience"]
        self.tokens: Final = Tokens(
            issuer=options["wire"].issuer,
            audience=options["audience"],
            cache_entries=limits.token_cache,
            max_bytes=limits.token_bytes,
        )
        self.event_ids: Final = EventIds(issuer=options["wire"].issuer, audience=options["audience"])
        self.recording: Final = Recording(app, options)
        self.observers: Final = observers_of(self.recording, options)
        self.is_stateless = False  # whether the wrapped server is known to keep no transport sessions
        self._open_store(options)
        self.affinity: WorkerAffinity | None = None
        self.known_params: Final = dict[str, int]()  # of `initialize`, and until when the store has each, Unix seconds

    def connect_workers(self, entrance: ASGIApp, state: Callable[[], Mapping[str, Any]]) -> None:
        """Let every worker serve the sessions that live in one process, if the workers share the store.

        Args:
            entrance: Where requests leave for other workers, and enter from them.
            state: Returns the `state` of the lifespan.
        """
        affinity = self.options["affinity"]
        if not isinstance(affinity, Affinity) or self.store.scope is StoreScope.PROCESS or os.name != "posix":
            return
        from .._affinity.affinity import WorkerAffinity

        self.affinity = WorkerAffinity(
            tokens=self.tokens,
            ring=lambda: self.ring(self.clock()),
            store=self.store,
            namespace_of=self.namespace_of,
            clock=self.clock,
            max_event_bytes=self.limits.event_bytes,
            address=affinity.address,
        )
        self.affinity.entrance, self.affinity.state = entrance, state
        self.background_services.append(self.affinity)

    async def listen_to_workers(self) -> None:
        """Let other workers reach this one, if that is of use here; a second call changes nothing.

        Raises:
            ConfigurationError: It cannot listen.
        """
        if self.affinity is None:
            return
        try:
            asyncio.get_running_loop()
        except RuntimeError:
            _log.warning(NO_ASYNCIO)
            self.background_services.remove(self.affinity)
            self.affinity = None
        else:
            await self.affinity.listen()

    def _open_store(self, options: CoreOptions) -> None:
        """Make the store, and what ends and counts the sessions in it."""
        limits = self.limits
        store = stores.make(
            options["store"],
            clock=self.clock,
            timeout=as_seconds(limits.store_timeout),
            write_timeout=as_seconds(limits.write_timeout),
        )
        self.store = store
        metrics = options["telemetry"].metrics
        if metrics is not None and isinstance(store, TimeoutStore):  # a store in memory is never slow
            store.on_call = metrics.store_call
        recent: Recent | None = getattr(store, "recent", None)
        idle = self.idle_timeout
        self.look_ups: LookUps = LookUps(store, touch=self.tracked, idle_timeout=idle, recent=recent)  # of requests
        self.rechecks: LookUps = LookUps(
            store
        )  # of sessions that may have ended meanwhile: no use, and nothing remembered
        memory = store if isinstance(options["store"], str) else options["store"]
        name = hashlib.blake2s(b"%b%d" % (_PROCESS, id(memory)), digest_size=8).hexdigest()
        self._memory = name if store.scope is StoreScope.PROCESS else None
        self._locks = WeakValueDictionary[tuple[str, str], anyio.Lock]()  # of updates of data under way
        self.streams: Streams = Streams(store, self.clock)
        self.calls: ResumableCalls = ResumableCalls()
        report = self.observers.ended
        self.terminator: Terminator = Terminator(
            store, self.streams, options["on_end"], report=report, data=self.data, clock=self.clock
        )
        self.background_services: list[Background] = []
        if (tracked := tracking(options)) is not None:
            interval = as_seconds(tracked.sweep_interval)
            sweeper = Sweeper(store, self.terminator, self.audience, self.idle_timeout, interval)
            self.background_services.append(sweeper)
            if metrics is not None:
                metrics.follow()
                alive = partial(metrics.alive, self, self.audience)
                self.background_services.append(LiveSessionCounter(store, self.audience, alive))
        if self.recording.feed is not None:
            from .inspected import Inspected

            self.background_services.append(Inspected(options, self.recording.feed, self.terminator))

    def kind_of(self, token: str) -> Kind | None:
        """Return what a token may be used as, or None if it is not authentic."""
        return self.tokens.kind(self.ring(self.clock()), token)

    @property
    def store_fault(self) -> str | None:
        """Why the store did not answer when it was last asked, or None."""
        return getattr(self.store, "fault", None)

    def store_fault_since(self, moment: float) -> str | None:
        """Return why the store has failed since a moment of `perf_counter`, or None."""
        at, reason = getattr(self.store, "last_fault", (moment, None))
        return reason if at >= moment else None

    def boot(self) -> str | None:
        """Return the name of this process where its memory holds the store, else None.

        It is the same for all middlewares that were given the same store.
        """
        return None if self._memory is None else f"{self._memory}{os.getpid():08x}"

    async def client_capabilities(self, claims: Claims) -> bytes | None:
        """Return what the client of a session states that it can do, a JSON object, or None."""
        return await self.store.read(self.namespace_of(claims), CAPABILITIES_KEY)

    async def end_session(self, claims: Claims, reason: str) -> None:
        """End a session on every worker, or raise `StoreUnavailable`."""
        await self.terminator.end(claims, reason)

    def namespace_of(self, claims: Claims) -> Namespace:
        """Return the place of a session in the store."""
        return self.namespace(claims.ref, claims.expires_at, claims.subject)

    def namespace(self, ref: str, expires_at: int, subject: str | None = None) -> Namespace:
        """Return a session's place in the store."""
        limits = self.limits
        most = limits.anonymous_data_bytes if subject is None else limits.data_bytes_per_principal
        return Namespace(ref, expires_at, limits.data_bytes, subject or ANONYMOUS, most, self.audience)

    def data(self, ref: str, expires_at: int, subject: str | None = None, loop: Loop | None = None) -> Data:
        """Return a session's data; threads wait for the given event loop, or else for the one that runs here."""
        place, limit = self.namespace(ref, expires_at, subject), self.limits.value_bytes
        wait = partial(wait_from_thread, loop or running_loop())
        return Data(self.data_store, place, clock=self.clock, max_value_bytes=limit, lock=self._lock, blocking=wait)

    @property
    def data_store(self) -> DataStore:
        """The part of the store that has what applications keep in sessions."""
        return self.store if self.affinity is None else self.affinity.data_store

    def _lock(self, place: tuple[str, str]) -> anyio.Lock:
        return self._locks.setdefault(place, anyio.Lock())
