"""What all requests of one middleware share, made once from its checked options.

Also where facts go: to the log, to telemetry, to the application's `listen`. Telemetry is imported when there is first
something to record, so that a server without tracing pays nothing for it, not even at its start.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Sequence
from functools import cache, partial
from typing import TYPE_CHECKING, Any, Final

import msgspec
from starlette.types import ASGIApp

from .. import stores
from .._protocol import decision
from .._protocol.decision import Rules
from .._protocol.policy import Policy
from .._session.claims import Claims, Kind
from .._session.data import Data, Namespace
from .._session.events import Fact, Listener, RequestRefused, SessionCreated, SessionDeleted
from .._tokens.jwt import Tokens
from .._tokens.keyfile import is_ephemeral, key_source
from .._tokens.keys import KeyRing
from ..errors import CreateLimited, Refusal, SessionNotFound, SessionRequired
from ..stores import base
from ..stores.base import Standing, Store
from ..telemetry.detect import is_traced
from . import placement, principal
from .context import PendingInitialized
from .forms import as_seconds
from .labels import Conversation
from .lifecycle import Sweeper, Terminator
from .options import Limits, OnCreate, Options
from .principal import ReadPrincipal
from .streams import Streams

if TYPE_CHECKING:
    from .._protocol.sep1364 import Sep1364
    from ..telemetry.recorder import Telemetry

KindOf = Callable[[str], Kind | None]
DataOf = Callable[[str, int], Data]
"""Gives what the server keeps for a session: of which `ref`, and until when (Unix seconds)."""


class Runtime(msgspec.Struct, frozen=True):
    """What every request of one middleware shares."""

    rules: Rules
    """What decides on messages."""
    ring: Callable[[float], KeyRing]
    """Gives the keys in force, at a moment in Unix seconds."""
    tokens: Tokens
    principal: ReadPrincipal
    path: str | None
    audience: str
    lifetime: float
    idle_timeout: float | None
    asks: bool
    """Whether the wrapped server is asked before we answer ourselves."""
    store: Store
    closes_store: bool
    tracked: bool
    """Whether sessions are recorded."""
    streams: Streams
    terminator: Terminator
    sweeper: Sweeper | None
    """What ends the sessions that end by themselves, where they are tracked."""
    on_create: OnCreate | None
    namespace: Callable[[str, int], Namespace]
    """Gives a session's place in the store: of which `ref`, and until when (Unix seconds)."""
    data: DataOf
    create_limit: CreateLimit | None
    transport: bool
    """Whether clients whose server names no transport session get one of ours."""
    transport_lifetime: float
    bridges: bool
    """Whether clients of a server that keeps transport sessions see our ids in place of its own."""
    unconfirmed: PendingInitialized | None
    """The server's own transport sessions that their clients may leave unconfirmed, where a dialect allows it."""
    capability: bytes
    """`capabilities.sessions`, as JSON."""
    settings: bytes
    """`capabilities.experimental.sessions` of this deployment, as JSON."""
    not_found_code: int
    required_code: int
    max_body_bytes: int
    max_state_bytes: int
    max_event_bytes: int
    max_batch: int
    max_nesting: int
    body_timeout: float
    conversation: Conversation | None
    """What is done with the names that clients give to conversations, or None for nothing."""
    tells: Callable[[], bool]
    """Whether telemetry records anything now."""
    telemetry: Callable[[], Telemetry]
    """Gives what records, which is made at the first call: a server without tracing imports no OpenTelemetry."""
    listen: Listener | None
    emit: Callable[[Fact], None]
    """Hands a fact to the log, to telemetry and to the application's listener."""
    clock: Callable[[], float]

    @property
    def idle_in_state(self) -> bool:
        """Whether a session's last use travels in its state; where sessions are tracked, the store knows it."""
        return self.idle_timeout is not None and not self.tracked

    def status(self, claims: Claims) -> Awaitable[Standing]:
        """Ask the store for the status of a verified session."""
        if self.tracked:  # where a lineage has ended, so has every record of it
            return self.store.touch(claims, idle_timeout=None if self.idle_timeout is None else int(self.idle_timeout))
        return self.store.status(claims) if claims.root is None else base.status(self.store, claims)

    def code(self, refusal: Refusal) -> int:
        """Return the JSON-RPC code of a refusal in this deployment."""
        if isinstance(refusal, SessionNotFound):
            return self.not_found_code
        return self.required_code if isinstance(refusal, SessionRequired) else refusal.code


def make_runtime(app: ASGIApp, options: Options) -> Runtime:
    """Make what the requests of a middleware share.

    Args:
        app: The wrapped application.
        options: The middleware's options, checked.

    Raises:
        ConfigurationError: An option names what cannot be had; the message says what to write instead.
    """
    limits, transport, clock = options.limits, options.transport, options.clock
    ring = key_source(options.keys)
    tokens = Tokens(
        issuer=options.wire.issuer,
        audience=options.audience,
        cache_entries=limits.token_cache,
        max_bytes=limits.token_bytes,
    )
    # No client begins anew when its transport session is gone, so none is named that dies with the process.
    names_transport = transport.header and not is_ephemeral(options.keys)
    conversation = Conversation.of(options.telemetry.correlate, options.telemetry.propagate)
    return Runtime(
        **_wire(
            options,
            inspects_all=conversation is not None,  # whose name is looked for in every message
            reads_transport=names_transport or transport.bridge,
            kind_of=lambda token: tokens.kind(ring(clock()), token),
        ),
        **_lifecycle(app, options),
        **_limits(limits),
        ring=ring,
        tokens=tokens,
        principal=principal.reader(options.principal),
        path=options.path,
        audience=options.audience,
        lifetime=as_seconds(options.lifetime),
        idle_timeout=None if options.idle_timeout is None else as_seconds(options.idle_timeout),
        asks=options.admission == "ask",
        on_create=options.on_create,
        transport=names_transport,
        transport_lifetime=as_seconds(transport.lifetime),
        bridges=transport.bridge,
        conversation=conversation,
        clock=clock,
    )


def _wire(options: Options, *, kind_of: KindOf, **rules: bool) -> dict[str, Any]:
    """Return what decides on messages, and what clients learn of it."""
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
        "not_found_code": wire.not_found_code,
        "required_code": wire.required_code,
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
    """Return the store, what ends sessions, and where facts go."""
    limits, clock = options.limits, options.clock
    tells, telemetry = _telemetry(app, options)
    emit = partial(_emit, options.telemetry.listen, tells, telemetry)
    store = stores.make(options.store, clock=clock, timeout=as_seconds(limits.store_timeout))
    data = partial(_data, store, limits, clock)
    streams = Streams(store)
    terminator = Terminator(store, streams, on_end=options.on_end, emit=emit, data=data, clock=clock)
    return {
        "store": store,
        "closes_store": isinstance(options.store, str),
        "tracked": options.tracked is not None,
        "streams": streams,
        "terminator": terminator,
        "sweeper": _sweeper(store, terminator, options),
        "namespace": partial(_namespace, limits),
        "data": data,
        "tells": tells,
        "telemetry": telemetry,
        "listen": options.telemetry.listen,
        "emit": emit,
    }


def _limits(limits: Limits) -> dict[str, Any]:
    per_minute = limits.creates_per_minute
    return {
        "max_body_bytes": limits.body_bytes,
        "max_state_bytes": limits.state_bytes,
        "max_event_bytes": limits.event_bytes,
        "max_batch": limits.batch,
        "max_nesting": limits.nesting,
        "body_timeout": limits.body_timeout,
        "create_limit": None if per_minute is None else CreateLimit(per_minute),
    }


def _namespace(limits: Limits, owner: str, until: int) -> Namespace:
    return Namespace(owner, until, limits.data_bytes)


def _data(store: Store, limits: Limits, clock: Callable[[], float], owner: str, until: int) -> Data:
    return Data(store, _namespace(limits, owner, until), clock=clock, max_value_bytes=limits.value_bytes)


def _sweeper(store: Store, terminator: Terminator, options: Options) -> Sweeper | None:
    if options.tracked is None:
        return None
    idle = None if options.idle_timeout is None else int(as_seconds(options.idle_timeout))
    interval = as_seconds(options.tracked.sweep_interval)
    return Sweeper(store, terminator, audience=options.audience, idle_timeout=idle, interval=interval)


# --- where facts go ------------------------------------------------------------------------------


def _emit(listen: Listener | None, tells: Callable[[], bool], telemetry: Callable[[], Telemetry], fact: Fact) -> None:
    log_fact(fact)
    if tells():
        telemetry().observe(fact)
    if listen is not None:
        listen(fact)


def _telemetry(app: ASGIApp, options: Options) -> tuple[Callable[[], bool], Callable[[], Telemetry]]:
    """Return what says whether anything is to be recorded now, and what makes the recorder when it is first needed."""
    given = options.telemetry

    @cache
    def telemetry() -> Telemetry:
        from ..telemetry.recorder import Telemetry

        return Telemetry(
            partial(placement.parts, app, options.path),
            spans=given.spans,
            trace=given.trace,
            metrics=given.metrics,
            redact=given.redact,
            tail=given.tail,
            tracked=options.tracked is not None,
        )

    if given.metrics is not None or given.tail is not None:
        return lambda: True, telemetry
    return bool if given.spans == "off" else is_traced, telemetry


_log: Final = logging.getLogger("mcp_sessions")
_MAX_METHOD: Final = 64  # characters of a client's method name that are worth a log line


def log_fact(fact: Fact) -> None:
    """Write one fact down at INFO: a refusal, a creation or an end. A use is not logged."""
    if isinstance(fact, RequestRefused):
        of = "" if fact.ref is None else f" of session {fact.ref}"
        method = "a body that was not read" if fact.method is None else ascii(fact.method[:_MAX_METHOD])
        _log.info("refused %s%s: %s (%d)", method, of, fact.reason, fact.code)
    elif isinstance(fact, SessionCreated):
        of = "" if fact.parent is None else f" as a fork of {fact.parent}"
        _log.info("session %s created%s", fact.ref, of)
    elif isinstance(fact, SessionDeleted):
        _log.info("session %s ended: %s", fact.ref, fact.reason)


WINDOW: Final = 60  # seconds
MAX_CALLERS: Final = 10_000  # counted separately within one window

_OTHERS: Final = ""  # no subject is empty


class CreateLimit:
    """The budgets of one process.

    Args:
        per_minute: Sessions that a caller may create within one window.
        max_callers: How many callers are counted separately within one window.
    """

    __slots__ = ("_created", "_max_callers", "_per_minute", "_window")

    def __init__(self, per_minute: int, *, max_callers: int = MAX_CALLERS) -> None:
        self._per_minute = per_minute
        self._max_callers = max_callers
        self._window = -1
        self._created: dict[str | None, int] = {}

    def spend(self, subject: str | None, *, now: float) -> None:
        """Take one session from a caller's budget.

        Args:
            subject: The caller as tokens name it, or None for an anonymous one.
            now: Unix seconds.

        Raises:
            CreateLimited: Nothing is left of it; `retry_after` says for how long.
        """
        window = int(now // WINDOW)
        if window != self._window:
            self._window, self._created = window, {}
        created = self._created
        caller = subject if subject in created or len(created) < self._max_callers else _OTHERS
        spent = created.get(caller, 0)
        if not spent < self._per_minute:
            raise CreateLimited(retry_after=WINDOW - int(now % WINDOW))
        created[caller] = spent + 1
