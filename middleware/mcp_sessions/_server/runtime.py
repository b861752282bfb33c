"""`Runtime`: what all requests of one middleware share, made once from its checked options.

Telemetry is imported when there is first something to record, so that a server without tracing pays nothing for it, not
even at its start.
"""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AbstractContextManager
from functools import cache, partial
from typing import TYPE_CHECKING, Any, Final

import msgspec
from starlette.types import ASGIApp

from .. import stores
from .._errors import CreateLimited
from .._protocol import decision
from .._protocol.cookies import cookie_name
from .._protocol.decision import Rules
from .._protocol.labels import correlation_sources
from .._protocol.policy import Policy
from .._session.claims import Claims, Kind, RedactedRepr
from .._session.data import Data, Namespace
from .._session.events import Fact, Listener
from .._tokens.jwt import Tokens
from .._tokens.keyfile import key_source
from .._tokens.keys import KeyRing
from ..stores._base import ANONYMOUS, SessionStatus, Store, StoreScope
from ..stores._turns import Turns
from ..telemetry import hook, is_traced
from . import current, placement
from .background import LiveSessionCounter
from .context import PendingInitialized
from .current import ReadPrincipal
from .forms import as_seconds
from .lifecycle import Sweeper, Terminator
from .logs import Facts
from .options import Limits, OnCreate, Options
from .resumption import Events, Streams

if TYPE_CHECKING:
    from .._protocol.sep1364 import Sep1364
    from ..telemetry._feed import Feed
    from ..telemetry._recorder import Telemetry
    from .operator import Watched

_PROCESS: Final = secrets.token_bytes(16)


class Runtime(RedactedRepr, msgspec.Struct, frozen=True):
    """What every request of one middleware shares."""

    rules: Rules
    ring: Callable[[float], KeyRing]  # the keys in force at a moment, Unix seconds
    tokens: Tokens
    principal: ReadPrincipal
    audience: str
    lifetime: float
    idle_timeout: float | None
    preflight: bool  # whether the wrapped server is asked before we answer ourselves
    store: Store
    tracked: bool
    streams: Streams
    events: Events
    terminator: Terminator
    sweeper: Sweeper | None  # only where sessions are tracked
    watched: Watched | None  # only where the options say so
    census: LiveSessionCounter | None  # only where they are counted, too
    on_create: OnCreate | None
    namespace: Callable[..., Namespace]  # a session's place in the store, given its `ref`, end, subject
    status_nowait: Callable[[Claims], SessionStatus | None] | None  # what the store answers without a wait, or None
    data: Callable[..., Data]  # its data, given the same; the end is in Unix seconds
    origin: str | None  # names the store where no other process sees what it holds, else None
    keys_persistent: bool  # whether the keys outlive this process
    transport: bool  # whether clients whose server names no transport session get one of ours
    cookie_name: bytes | None  # of the cookie that clients of the modern era get, or None where they get none
    shares_cookies: bool  # whether all clients that share a cookie jar are one conversation
    transport_lifetime: float
    bridges: bool  # whether clients of a server that keeps transport sessions see our ids in place of its own
    unconfirmed: PendingInitialized | None  # transport sessions that clients need not confirm, by a dialect
    capability: bytes  # `capabilities.sessions`, as JSON
    settings: bytes  # `capabilities.experimental.sessions`, as JSON
    limits: Limits
    body_timeout: float
    create_limit: CreateLimit | None
    correlate: tuple[str, ...]  # where clients put their names for conversations
    is_recording: Callable[[], bool]  # whether telemetry records anything now
    metrics_enabled: bool  # whether there are metrics
    telemetry: Callable[[], Telemetry]  # made at the first call, with OpenTelemetry imported
    hook: Callable[..., AbstractContextManager[object]]  # the block in which a hook of a session runs
    listen: Listener | None
    emit: Callable[[Fact], None]  # passes a fact to the log, to telemetry and to the listener
    clock: Callable[[], float]

    def status(self, claims: Claims) -> Awaitable[SessionStatus]:
        if self.tracked:
            return self.store.touch(claims, idle_timeout=self.whole_idle_timeout)
        return self.store.status(claims)

    @property
    def whole_idle_timeout(self) -> int | None:
        return None if self.idle_timeout is None else int(self.idle_timeout)


def make_runtime(app: ASGIApp, options: Options) -> Runtime:
    """Return what the requests of a middleware share, for the wrapped application and the checked options."""
    limits, transport, wire, clock = options.limits, options.transport, options.wire, options.clock
    ring = key_source(options.keys)
    tokens = Tokens(
        issuer=wire.issuer, audience=options.audience, cache_entries=limits.token_cache, max_bytes=limits.token_bytes
    )
    # Clients do not begin anew when their transport session is gone, so none is named that dies with the process.
    lasts = not ring(clock()).ephemeral
    names_transport = transport.header and lasts
    correlate = correlation_sources(options.telemetry.correlate)
    return Runtime(
        **_wire(
            options,
            reads_transport=names_transport or transport.bridge,
            kind_of=lambda token: tokens.kind(ring(clock()), token),
        ),
        **_lifecycle(app, options),
        ring=ring,
        tokens=tokens,
        principal=current.reader(options.principal),
        audience=options.audience,
        lifetime=as_seconds(options.lifetime),
        preflight=options.admission == "ask",
        keys_persistent=lasts,
        on_create=options.on_create,
        transport=names_transport,
        cookie_name=cookie_name(options.audience) if transport.cookie and lasts else None,
        shares_cookies=transport.cookie == "shared",
        transport_lifetime=as_seconds(transport.lifetime),
        bridges=transport.bridge,
        limits=limits,
        body_timeout=as_seconds(limits.body_timeout),
        create_limit=None if limits.creates_per_minute is None else CreateLimit(limits.creates_per_minute),
        correlate=correlate,
        clock=clock,
    )


def _wire(options: Options, *, kind_of: Callable[[str], Kind | None], **rules: bool) -> dict[str, Any]:
    policy, wire = Policy(options.require), options.wire
    offered = decision.offered(wire.extensions, tracked=options.tracked is not None)
    sep1364, unconfirmed, capability = _sep1364(options)
    return {
        "rules": Rules.of(
            subjects=decision.subjects(offered),
            policy=policy,
            lists=wire.lists,
            legacy_only=wire.era == "legacy",
            fail_open=options.on_store_error == "allow",
            bridges=options.transport.bridge,
            kind_of=kind_of,
            sep1364=sep1364,
            **rules,
        ),
        "unconfirmed": unconfirmed,
        "capability": capability,
        "settings": decision.settings(policy.summary, offered),
    }


def _sep1364(options: Options) -> tuple[Sep1364 | None, PendingInitialized | None, bytes]:
    if not options.dialects and isinstance(options.dialects, Sequence):
        return None, None, b"{}"
    from .._protocol.sep1364 import Sep1364

    sep1364 = Sep1364.of(options.dialects)
    capability = b"{}" if sep1364.creates is None else sep1364.creates.capability
    confirms = sep1364.initializes is not None and not sep1364.is_sessionless
    return sep1364, PendingInitialized() if confirms else None, capability


def _lifecycle(app: ASGIApp, options: Options) -> dict[str, Any]:
    """Return the fields of the store, of what ends sessions, and of where facts go."""
    given, feed = options.telemetry, None
    if given.inspector is not None:
        from ..telemetry._feed import Feed

        feed = Feed(options.clock)
    is_recording, telemetry = _telemetry(app, options, feed)
    emit = Facts(given.listen, is_recording, telemetry).__call__
    store = stores.make(options.store, clock=options.clock, timeout=as_seconds(options.limits.store_timeout))
    namespace, data = _places(store, options)
    streams = Streams(store)

    terminator = Terminator(store, streams, on_end=options.on_end, emit=emit, data=data, clock=options.clock, hook=hook)
    at_once = "status_nowait" in vars(type(store))  # a subclass may answer otherwise
    return {
        **_services(options, terminator, feed, lambda number: telemetry().alive(options.audience, number)),
        "store": store,
        "origin": _origin(store, options.store),
        "tracked": options.tracked is not None,
        "streams": streams,
        "events": Events(),
        "terminator": terminator,
        "namespace": namespace,
        "data": data,
        "status_nowait": getattr(store, "status_nowait", None) if at_once and options.tracked is None else None,
        "is_recording": is_recording,
        "metrics_enabled": given.metrics is not None,
        "telemetry": telemetry,
        "hook": hook,
        "listen": given.listen,
        "emit": emit,
    }


def _places(store: Store, options: Options) -> tuple[Callable[..., Namespace], Callable[..., Data]]:
    """Return what gives a session's place in the store, and its data there, for its `ref`, end and subject."""
    limits, turns = options.limits, Turns()

    def namespace(owner: str, until: int, subject: str | None = None) -> Namespace:
        if subject is None:
            return Namespace(owner, until, limits.data_bytes, ANONYMOUS, limits.anonymous_data_bytes)
        return Namespace(owner, until, limits.data_bytes, subject, limits.data_bytes_per_principal)

    def data(owner: str, until: int, subject: str | None = None) -> Data:
        place = namespace(owner, until, subject=subject)
        return Data(store, place, clock=options.clock, max_value_bytes=limits.value_bytes, turns=turns)

    return namespace, data


def _services(
    options: Options, terminator: Terminator, feed: Feed | None, report: Callable[[int | None], object]
) -> dict[str, Any]:
    tracked, store, audience = options.tracked, terminator.store, options.audience
    silence = None if tracked is None else tracked.silence
    idle = next((as_seconds(one) for one in (options.idle_timeout, silence) if one is not None), None)
    sweeper = census = watched = None
    if tracked is not None:
        whole, interval = None if idle is None else int(idle), as_seconds(tracked.sweep_interval)
        sweeper = Sweeper(store, terminator, audience, whole, interval)
        if options.telemetry.metrics is not None:
            census = LiveSessionCounter(store, audience, report)
    if feed is not None:
        from .operator import Watched

        watched = Watched(options, feed, terminator)
    return {"idle_timeout": idle, "sweeper": sweeper, "census": census, "watched": watched}


def _origin(store: Store, given: str | Store) -> str | None:
    """Return a name for the memory of one store in one process, the same for all middlewares that were given it."""
    if store.scope is not StoreScope.PROCESS:
        return None
    memory = store if isinstance(given, str) else given
    return hashlib.blake2s(b"%b%d" % (_PROCESS, id(memory)), digest_size=8).hexdigest()


def _telemetry(app: ASGIApp, options: Options, feed: Feed | None) -> tuple[Callable[[], bool], Callable[[], Telemetry]]:
    """Return what says whether anything is to be recorded now, and what makes the recorder at its first call."""
    given = options.telemetry

    @cache
    def telemetry() -> Telemetry:
        from ..telemetry._attributes import CallerAttributes
        from ..telemetry._recorder import Telemetry

        return Telemetry(
            partial(placement.reachable, app, options.path),
            spans=given.spans,
            trace=given.trace,
            metrics=given.metrics,
            redact=given.redact,
            feed=feed,
            tracked=options.tracked is not None,
            caller=None if given.user is None else CallerAttributes(given.user, current.reader(options.principal)),
        )

    if given.metrics is not None or feed is not None:
        return lambda: True, telemetry
    return bool if given.spans == "off" else is_traced, telemetry


WINDOW: Final = 60  # seconds
MAX_CALLERS: Final = 10_000  # counted separately within one window
_OTHERS: Final = ""  # the rest together; no subject is empty


class CreateLimit(msgspec.Struct):
    """Limits the sessions that each caller may create per window in one process."""

    per_minute: int
    max_callers: int = MAX_CALLERS
    window: int = -1
    created: dict[str | None, int] = {}

    def spend(self, subject: str | None, *, now: float) -> None:
        """Count a session of a caller, who is None if anonymous, or raise `CreateLimited`; `now` is Unix seconds."""
        window = int(now // WINDOW)
        if window != self.window:
            self.window, self.created = window, {}
        caller = subject if subject in self.created or len(self.created) < self.max_callers else _OTHERS
        spent = self.created.get(caller, 0)
        if not spent < self.per_minute:
            raise CreateLimited(retry_after=WINDOW - int(now % WINDOW))
        self.created[caller] = spent + 1
