"""`Runtime`: what all requests of one middleware share, made once from its checked options.

Telemetry is imported when there is first something to record, so that a server without tracing pays nothing for it, not
even at its start.
"""

from __future__ import annotations

import hashlib
import os
import secrets
from collections.abc import Callable, Sequence
from functools import cache, partial
from typing import TYPE_CHECKING, Any, Final
from weakref import WeakValueDictionary

import anyio
import msgspec
from starlette.types import ASGIApp

from .. import stores
from .._protocol import decision
from .._protocol.cookies import cookie_name
from .._protocol.decision import Rules
from .._protocol.labels import correlation_sources
from .._protocol.policy import Policy
from .._session.claims import Claims, Kind, RedactedRepr
from .._session.data import Data, Namespace
from .._tokens.jwt import Tokens
from .._tokens.keyfile import key_source
from .._tokens.keys import KeyRing
from ..stores._base import ANONYMOUS, SessionStatus, Store, StoreScope
from ..stores._threads import wait_from_thread
from ..telemetry import is_traced
from . import principal, routing
from .background import LiveSessionCounter
from .callers import CreateLimit, LegacyEra, PendingInitialized, PrincipalSessions
from .forms import as_seconds
from .lifecycle import Sweeper, Terminator
from .logs import EventSink
from .options import DAY, Limits, OnCreate, Options
from .principal import ReadPrincipal
from .resumption import Events, Streams

if TYPE_CHECKING:
    from .._protocol.sep1364 import Sep1364
    from ..telemetry._feed import Feed
    from ..telemetry._recorder import Telemetry
    from .operator import Watched

_PROCESS: Final = secrets.token_bytes(16)


class TransportRules(RedactedRepr, msgspec.Struct, frozen=True):
    """How clients that do not name sessions themselves get one."""

    header: bool  # whether clients whose server names no transport session get one of ours
    cookie_name: bytes | None  # of the cookie that clients of the modern era get, or None where they get none
    shares_cookies: bool  # whether all clients that share a cookie jar are one conversation
    principal_idle: float | None  # seconds that a principal's session is kept unused; None where there are none
    leads_to_legacy: bool  # whether clients without cookies are led to the legacy era
    lifetime: float
    bridges: bool  # whether clients of a server that keeps transport sessions see our ids in place of its own
    keys_persistent: bool  # whether the keys outlive this process

    @classmethod
    def of(cls, options: Options, *, keys_persistent: bool) -> TransportRules:
        transport = options.transport
        # Clients do not begin anew when their transport session is gone, so none is named that dies with the process.
        return cls(
            header=transport.header and keys_persistent,
            cookie_name=cookie_name(options.audience) if transport.cookie and keys_persistent else None,
            shares_cookies=transport.cookie == "shared",
            principal_idle=_principal_idle(options) if transport.principal and keys_persistent else None,
            leads_to_legacy=options.wire.era == "auto",
            lifetime=as_seconds(transport.lifetime),
            bridges=transport.bridge,
            keys_persistent=keys_persistent,
        )


class Recording:
    """Where events and spans go: the log, telemetry, and the application's `listen`."""

    def __init__(self, app: ASGIApp, options: Options) -> None:
        telemetry = options.telemetry
        self.feed: Final = _feed(options)
        self.listen: Final = telemetry.listen
        self.metrics_enabled: Final = telemetry.metrics is not None
        self._always: Final = self.metrics_enabled or self.feed is not None
        self._traces: Final = telemetry.spans != "off"
        self.recorder: Final = cache(partial(_make_recorder, app, options, self.feed))  # imports OpenTelemetry
        self.emit: Final = EventSink(telemetry.listen, self.is_recording, self.recorder)

    def is_recording(self) -> bool:
        """Whether telemetry records anything now."""
        return self._always or (self._traces and is_traced())


def _make_recorder(app: ASGIApp, options: Options, feed: Feed | None) -> Telemetry:
    from ..telemetry._attributes import CallerAttributes
    from ..telemetry._recorder import Telemetry

    telemetry = options.telemetry
    return Telemetry(
        partial(routing.reachable, app, options.path),
        spans=telemetry.spans,
        trace=telemetry.trace,
        metrics=telemetry.metrics,
        redact=telemetry.redact,
        feed=feed,
        tracked=options.tracked is not None,
        caller=telemetry.user and CallerAttributes(telemetry.user, principal.reader(options.principal)),
    )


class Places:
    """Where each session's data is kept, within the limits of the deployment."""

    def __init__(self, store: Store, options: Options) -> None:
        self._store: Final = store
        self._limits: Final = options.limits
        self._clock: Final = options.clock
        self._locks: Final = WeakValueDictionary[tuple[str, str], anyio.Lock]()  # of updates under way

    def namespace(self, owner: str, expires_at: int, subject: str | None = None) -> Namespace:
        """Return a session's place in the store, given its `ref`, its end in Unix seconds, and its subject."""
        limits = self._limits
        if subject is None:
            return Namespace(owner, expires_at, limits.data_bytes, ANONYMOUS, limits.anonymous_data_bytes)
        return Namespace(owner, expires_at, limits.data_bytes, subject, limits.data_bytes_per_principal)

    def data(self, owner: str, expires_at: int, subject: str | None = None) -> Data:
        """Return a session's data, given the same."""
        place, limit = self.namespace(owner, expires_at, subject=subject), self._limits.value_bytes
        clock = self._clock
        return Data(self._store, place, clock=clock, max_value_bytes=limit, lock=self._lock, blocking=wait_from_thread)

    def _lock(self, place: tuple[str, str]) -> anyio.Lock:
        return self._locks.setdefault(place, anyio.Lock())


class Runtime(RedactedRepr, msgspec.Struct, frozen=True, kw_only=True):
    """What every request of one middleware shares."""

    rules: Rules
    ring: Callable[[float], KeyRing]  # the keys in force at a moment, Unix seconds
    tokens: Tokens
    principal: ReadPrincipal
    lifetime: float
    idle_timeout: float | None
    tracked: bool
    preflight: bool  # whether the wrapped server is asked before we answer ourselves
    limits: Limits
    body_timeout: float
    create_limit: CreateLimit | None
    legacy_era: LegacyEra = msgspec.field(default_factory=LegacyEra)
    principals: PrincipalSessions = msgspec.field(default_factory=PrincipalSessions)
    on_create: OnCreate | None
    transport: TransportRules
    correlate: tuple[str, ...]  # where clients put their names for conversations
    unconfirmed: PendingInitialized | None  # transport sessions that clients need not confirm, by a dialect
    capability: bytes  # `capabilities.sessions`, as JSON
    settings: bytes  # `capabilities.experimental.sessions`, as JSON
    store: Store
    origin: str | None  # names the store where no other process sees what it holds, else None
    status_nowait: Callable[[Claims], SessionStatus | None] | None  # what the store answers without a wait, or None
    places: Places
    streams: Streams
    events: Events = msgspec.field(default_factory=Events)
    terminator: Terminator
    sweeper: Sweeper | None  # only where sessions are tracked
    watched: Watched | None  # only where the options say so
    counter: LiveSessionCounter | None  # only where sessions are tracked and there are metrics
    telemetry: Recording
    clock: Callable[[], float]

    def boot(self) -> str | None:
        """Return the name of this process where its memory is the store, else None."""
        return None if self.origin is None else f"{self.origin}{os.getpid():08x}"

    async def status(self, claims: Claims) -> SessionStatus:
        """Ask the store how a session stands; where sessions are recorded, note that it is used."""
        if self.tracked:
            return await self.store.touch(claims, idle_timeout=self.whole_idle_timeout)
        return await self.store.status(claims)

    @property
    def store_fault(self) -> str | None:
        """Why the store did not answer when it was last asked, or None."""
        return getattr(self.store, "fault", None)

    @property
    def audience(self) -> str:
        return self.tokens.audience

    @property
    def whole_idle_timeout(self) -> int | None:
        return None if self.idle_timeout is None else int(self.idle_timeout)


def make_runtime(app: ASGIApp, options: Options) -> Runtime:
    """Return what the requests of a middleware share, for the wrapped application and the checked options."""
    limits, clock, tracked = options.limits, options.clock, options.tracked is not None
    ring, tokens = key_source(options.keys), _tokens(options)
    transport = TransportRules.of(options, keys_persistent=not ring(clock()).ephemeral)
    offered = decision.offered(options.wire.extensions, tracked=tracked)
    sep1364, unconfirmed, capability = _sep1364(options)
    rules = _rules(options, offered, transport, sep1364, lambda token: tokens.kind(ring(clock()), token))
    recording, idle_timeout = Recording(app, options), _idle_timeout(options)
    store = stores.make(options.store, clock=clock, timeout=as_seconds(limits.store_timeout))
    places, streams = Places(store, options), Streams(store)
    terminator = _terminator(options, store, streams, places, recording)
    return Runtime(
        rules=rules,
        ring=ring,
        tokens=tokens,
        principal=principal.reader(options.principal),
        lifetime=as_seconds(options.lifetime),
        idle_timeout=idle_timeout,
        tracked=tracked,
        preflight=options.admission == "ask",
        limits=limits,
        body_timeout=as_seconds(limits.body_timeout),
        create_limit=None if limits.creates_per_minute is None else CreateLimit(limits.creates_per_minute),
        on_create=options.on_create,
        transport=transport,
        correlate=correlation_sources(options.telemetry.correlate),
        unconfirmed=unconfirmed,
        capability=capability,
        settings=decision.settings(rules.policy.summary, offered),
        store=store,
        origin=_origin(store, options.store),
        status_nowait=_status_nowait(store, options),
        places=places,
        streams=streams,
        terminator=terminator,
        sweeper=_sweeper(options, terminator, idle_timeout),
        watched=_watched(options, terminator, recording.feed),
        counter=_counter(options, store, recording),
        telemetry=recording,
        clock=clock,
    )


def _tokens(options: Options) -> Tokens:
    limits, issuer = options.limits, options.wire.issuer
    return Tokens(
        issuer=issuer, audience=options.audience, cache_entries=limits.token_cache, max_bytes=limits.token_bytes
    )


def _rules(
    options: Options,
    offered: Any,
    transport: TransportRules,
    sep1364: Sep1364 | None,
    kind_of: Callable[[str], Kind | None],
) -> Rules:
    return Rules.of(
        subjects=decision.subjects(offered),
        policy=Policy(options.require),
        lists=options.wire.lists,
        legacy_only=options.wire.era == "legacy",
        fail_open=options.on_store_error == "allow",
        bridges=transport.bridges,
        reads_transport=transport.header or transport.bridges,
        kind_of=kind_of,
        sep1364=sep1364,
    )


def _sep1364(options: Options) -> tuple[Sep1364 | None, PendingInitialized | None, bytes]:
    if not options.dialects and isinstance(options.dialects, Sequence):
        return None, None, b"{}"
    from .._protocol.sep1364 import Sep1364

    sep1364 = Sep1364.of(options.dialects)
    capability = b"{}" if sep1364.creates is None else sep1364.creates.capability
    confirms = sep1364.initializes is not None and not sep1364.is_sessionless
    return sep1364, PendingInitialized() if confirms else None, capability


def _principal_idle(options: Options) -> float:
    idle = _idle_timeout(options)
    return as_seconds(DAY) if idle is None else idle


def _idle_timeout(options: Options) -> float | None:
    timeouts = (options.idle_timeout, None if options.tracked is None else options.tracked.silence)
    return next((as_seconds(one) for one in timeouts if one is not None), None)


def _status_nowait(store: Store, options: Options) -> Callable[[Claims], SessionStatus | None] | None:
    # A subclass may answer otherwise, and where sessions are tracked each request is recorded.
    answers = "status_nowait" in vars(type(store)) and options.tracked is None
    return getattr(store, "status_nowait", None) if answers else None


def _terminator(options: Options, store: Store, streams: Streams, places: Places, recording: Recording) -> Terminator:
    return Terminator(store, streams, on_end=options.on_end, emit=recording.emit, data=places.data, clock=options.clock)


def _sweeper(options: Options, terminator: Terminator, idle_timeout: float | None) -> Sweeper | None:
    if options.tracked is None:
        return None
    whole, interval = None if idle_timeout is None else int(idle_timeout), as_seconds(options.tracked.sweep_interval)
    return Sweeper(terminator.store, terminator, options.audience, whole, interval)


def _counter(options: Options, store: Store, recording: Recording) -> LiveSessionCounter | None:
    if options.tracked is None or not recording.metrics_enabled:
        return None
    return LiveSessionCounter(
        store, options.audience, lambda number: recording.recorder().alive(options.audience, number)
    )


def _feed(options: Options) -> Feed | None:
    if options.telemetry.inspector is None:
        return None
    from ..telemetry._feed import Feed

    return Feed(options.clock)


def _watched(options: Options, terminator: Terminator, feed: Feed | None) -> Watched | None:
    if feed is None:
        return None
    from .operator import Watched

    return Watched(options, feed, terminator)


def _origin(store: Store, option: str | Store) -> str | None:
    """Return a name for the memory of one store in one process, the same for all middlewares that were given it."""
    if store.scope is not StoreScope.PROCESS:
        return None
    memory = store if isinstance(option, str) else option
    return hashlib.blake2s(b"%b%d" % (_PROCESS, id(memory)), digest_size=8).hexdigest()
