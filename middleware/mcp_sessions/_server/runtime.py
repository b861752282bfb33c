"""`Runtime`: what all requests of one middleware share, made once from its checked options.

Telemetry is imported when there is first something to record, so that a server without tracing pays nothing for it, not
even at its start.
"""

from __future__ import annotations

import hashlib
import os
import secrets
from functools import cache, partial
from typing import TYPE_CHECKING, Final
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
from .._protocol.sep1364 import Sep1364
from .._session.claims import COOKIE, Claims, RedactedRepr
from .._session.data import Data, Namespace
from .._tokens.event_ids import EventIds
from .._tokens.jwt import Tokens
from .._tokens.keyfile import key_source
from ..stores._base import ANONYMOUS, SessionStatus, StoreScope
from ..stores._threads import Loop, running_loop, wait_from_thread
from ..telemetry._core import is_traced
from . import routing
from .background import LiveSessionCounter
from .lifecycle import Sweeper, Terminator
from .logs import EventSink, plain_listener
from .option_types import as_seconds
from .options import DAY, Options
from .principal import CreateLimit, PendingInitialized, PrincipalSessions, reader
from .resumption import ResumableCalls, Streams

if TYPE_CHECKING:
    from ..telemetry._feed import Feed
    from ..telemetry._recorder import Telemetry
    from .background import Background

_PROCESS: Final = secrets.token_bytes(16)


class TransportRules(RedactedRepr, msgspec.Struct, frozen=True):
    """How clients that do not name sessions themselves get one."""

    header: bool  # whether clients whose server names no transport session get one of ours
    cookie_name: bytes | None  # of the cookie that clients of the modern era get, or None where they get none
    shares_cookies: bool  # whether all clients that share a cookie jar are one conversation
    principal_idle: int | None  # seconds that a principal's session is kept unused; None where there are none
    leads_to_legacy: bool  # whether clients without cookies are led to the legacy era
    lifetime: float
    bridges: bool  # whether clients of a server that keeps transport sessions see our ids in place of its own
    keys_persistent: bool  # whether the keys outlive this process


class Recording:
    """Where events and spans go: the log, telemetry, and the application's `listen`."""

    def __init__(self, app: ASGIApp, options: Options) -> None:
        telemetry = options.telemetry
        self.feed: Feed | None = None
        if telemetry.inspector is not None:
            from ..telemetry._feed import Feed

            self.feed = Feed(options.clock)
        self.listen: Final = plain_listener(telemetry.listen)
        self.metrics_enabled: Final = telemetry.metrics is not None
        self._always: Final = self.metrics_enabled or self.feed is not None
        self._traces: Final = telemetry.spans != "off"
        self.recorder: Final = cache(partial(_make_recorder, app, options, self.feed))  # imports OpenTelemetry
        self.emit: Final = EventSink(self.listen, self.is_recording, self.recorder)

    def is_recording(self) -> bool:
        """Whether telemetry records anything now."""
        return self._always or (self._traces and is_traced())


def _make_recorder(app: ASGIApp, options: Options, feed: Feed | None) -> Telemetry:
    from ..telemetry._attributes import caller_attributes
    from ..telemetry._recorder import Telemetry

    telemetry = options.telemetry
    return Telemetry(
        partial(routing.reachable, app, options.path),
        spans=telemetry.spans,
        trace=telemetry.trace,
        metrics=telemetry.metrics,
        redact=telemetry.redact,
        feed=feed,
        caller=telemetry.user and partial(caller_attributes, telemetry.user, reader(options.principal)),
    )


class Runtime:
    """What all requests of one middleware share."""

    def __init__(self, app: ASGIApp, options: Options) -> None:
        limits, idle = options.limits, options.idle_timeout
        if idle is None and options.tracked is not None:
            idle = options.tracked.silence
        self.limits: Final = limits
        self.clock: Final = options.clock
        self.lifetime: Final = as_seconds(options.lifetime)
        self.body_timeout: Final = as_seconds(limits.body_timeout)
        self.idle_timeout: Final = None if idle is None else int(as_seconds(idle))
        self.tracked: Final = options.tracked is not None
        self.preflight: Final = options.admission == "ask"  # whether the wrapped server admits callers that we answer
        self.principal: Final = reader(options.principal)
        self.on_create: Final = options.on_create
        self.create_limit: Final = None if limits.creates_per_minute is None else CreateLimit(limits.creates_per_minute)
        self.serves_legacy: bool | None = None  # whether clients get a session in the legacy era; None until asked
        self.led_to_legacy: Final = set[str]()  # runtimes of clients, as they are logged
        self.principals: Final = PrincipalSessions()
        self.unconfirmed: Final = PendingInitialized()
        self.correlate: Final = correlation_sources(options.telemetry.correlate)  # where conversations are named

        self.ring: Final = key_source(options.keys)  # returns the keys in force at a moment, Unix seconds
        self.audience: Final = options.audience
        self.tokens: Final = Tokens(
            issuer=options.wire.issuer,
            audience=options.audience,
            cache_entries=limits.token_cache,
            max_bytes=limits.token_bytes,
        )
        self.event_ids: Final = EventIds(issuer=options.wire.issuer, audience=options.audience)
        self.telemetry: Final = Recording(app, options)
        self._make_rules(options)
        self._open_store(options)

    def _make_rules(self, options: Options) -> None:
        """Make what decides about messages, and what clients learn of it."""
        transport, persistent = options.transport, not self.ring(self.clock()).ephemeral
        # Clients do not begin anew when their transport session is gone, so none is named that dies with the process.
        self.transport = TransportRules(
            header=transport.header and persistent,
            cookie_name=cookie_name(options.audience) if transport.cookie and persistent else None,
            shares_cookies=transport.cookie == "shared",
            principal_idle=(self.idle_timeout or DAY) if transport.principal and persistent else None,
            leads_to_legacy=options.wire.era == "auto",
            lifetime=as_seconds(transport.lifetime),
            bridges=transport.bridge,
            keys_persistent=persistent,
        )
        offered = decision.offered(options.wire.extensions, tracked=self.tracked)
        self.rules = Rules(
            subjects=decision.subjects(offered),
            policy=Policy(options.require),
            lists=options.wire.lists,
            legacy_only=options.wire.era == "legacy",
            fail_open=options.on_store_error == "allow",
            bridges=self.transport.bridges,
            reads_transport=self.transport.header or self.transport.bridges,
            kind_of=lambda token: self.tokens.kind(self.ring(self.clock()), token),
            sep1364=Sep1364.of(options.dialects),
        )
        self.settings = decision.settings(self.rules.policy.summary, offered)

    def _open_store(self, options: Options) -> None:
        """Make the store, and what ends and counts the sessions in it."""
        store = stores.make(options.store, clock=self.clock, timeout=as_seconds(options.limits.store_timeout))
        self.store = store
        memory = store if isinstance(options.store, str) else options.store
        name = hashlib.blake2s(b"%b%d" % (_PROCESS, id(memory)), digest_size=8).hexdigest()
        self._memory = name if store.scope is StoreScope.PROCESS else None
        self._locks = WeakValueDictionary[tuple[str, str], anyio.Lock]()  # of updates of data under way
        self.streams = Streams(store, self.clock)
        self.calls = ResumableCalls()
        on_end, emit = options.on_end, self.telemetry.emit
        self.terminator = Terminator(store, self.streams, on_end, emit=emit, data=self.data, clock=self.clock)
        self.background_services: list[Background] = []
        if options.tracked is not None:
            interval = as_seconds(options.tracked.sweep_interval)
            sweeper = Sweeper(store, self.terminator, self.audience, self.idle_timeout, interval)
            self.background_services.append(sweeper)
            if (metrics := options.telemetry.metrics) is not None:
                metrics.follow()
                report = partial(metrics.alive, self, self.audience)
                self.background_services.append(LiveSessionCounter(store, self.audience, report))
        if self.telemetry.feed is not None:
            from .operator import Watched

            self.background_services.append(Watched(options, self.telemetry.feed, self.terminator))

    async def status(self, claims: Claims) -> SessionStatus:
        """Ask the store how a session stands; where sessions are recorded, note that it is used."""
        if self.tracked:
            status = await self.store.touch(claims, idle_timeout=self.idle_timeout)
            if claims.kind != COOKIE or status is not SessionStatus.UNKNOWN:
                return status
        return await self.store.status(claims)  # a cookie's is recorded when it begins

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

    def namespace(self, ref: str, expires_at: int, subject: str | None = None) -> Namespace:
        """Return a session's place in the store."""
        limits = self.limits
        most = limits.anonymous_data_bytes if subject is None else limits.data_bytes_per_principal
        return Namespace(ref, expires_at, limits.data_bytes, subject or ANONYMOUS, most, self.audience)

    def data(self, ref: str, expires_at: int, subject: str | None = None, loop: Loop | None = None) -> Data:
        """Return a session's data; threads wait for the given event loop, or else for the one that runs here."""
        place, limit = self.namespace(ref, expires_at, subject), self.limits.value_bytes
        wait = partial(wait_from_thread, loop or running_loop())
        return Data(self.store, place, clock=self.clock, max_value_bytes=limit, lock=self._lock, blocking=wait)

    def _lock(self, place: tuple[str, str]) -> anyio.Lock:
        return self._locks.setdefault(place, anyio.Lock())
