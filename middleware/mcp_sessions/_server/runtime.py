"""What all requests of one middleware share, made once from its checked options.

Also where facts go: to the log, to telemetry, to the application's `listen`. Telemetry is imported when there is first
something to record, so that a server without tracing pays nothing for it, not even at its start.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import cache, partial
from typing import TYPE_CHECKING, Any, Final

import msgspec
from starlette.types import ASGIApp

from .. import stores
from .._protocol import decision
from .._protocol.decision import Lists, Subject
from .._protocol.draft import Role, SessionMetadata, role
from .._protocol.policy import Policy
from .._session.claims import SESSION, Claims
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
from .forms import as_seconds
from .labels import Conversation
from .lifecycle import Sweeper, Terminator
from .options import Limits, OnCreate, Options
from .principal import ReadPrincipal
from .streams import Streams

if TYPE_CHECKING:
    from .._protocol.sep1364 import Sep1364
    from ..telemetry.recorder import Telemetry
    from .sep1364 import Unconfirmed

Keep = Callable[[str, int], Data]
"""Gives what the server keeps for a session: of which `ref`, and until when (Unix seconds)."""


class Runtime(msgspec.Struct, frozen=True):
    """What every request of one middleware shares."""

    ring: Callable[[float], KeyRing]
    path: str | None
    audience: str
    tokens: Tokens
    lifetime: float
    idle_timeout: float | None
    policy: Policy
    lists: Lists | None
    store: Store
    closes_store: bool
    lets_unknown_in: bool
    streams: Streams
    endings: Terminator
    tracked: bool
    """Whether sessions are recorded."""
    sweeper: Sweeper | None
    """Where they are: what ends those that end by themselves."""
    on_create: OnCreate | None
    shelf: Callable[[str, int], Namespace]
    """A session's place in the store: of which `ref`, and until when (Unix seconds)."""
    keep: Keep
    principal: ReadPrincipal
    asks: bool
    transport: bool
    """Whether a transport session is named to clients whose server names none."""
    transport_lifetime: float
    bridges: bool
    """Whether clients of a server that keeps transport sessions see our ids in place of its own."""
    legacy_only: bool
    not_found_code: int
    required_code: int
    max_body_bytes: int
    max_state_bytes: int
    max_event_bytes: int
    max_batch: int
    max_nesting: int
    body_timeout: float
    create_limit: CreateLimit | None
    conversation: Conversation | None
    """What is done with the names that clients give to conversations, or None for nothing."""
    is_attentive: bool
    """Whether even a message that speaks of no session has to be looked at."""
    subjects: Mapping[str, Subject]
    """What each method that is read here is about."""
    attended: frozenset[str]
    """Where nothing needs a session, a message that names none passes as it is unless its method is one of these."""
    opted: Sep1364 | None
    """The dialects beside the draft and the transport header, or None."""
    unconfirmed: Unconfirmed | None
    """The server's own transport sessions that their clients may leave unconfirmed, where a dialect says so."""
    capability: bytes
    """What `capabilities.sessions` says, as JSON."""
    settings: bytes
    """What `capabilities.experimental.sessions` says of this deployment, as JSON."""
    tells: Callable[[], bool]
    """Whether telemetry is to be told of anything, now."""
    telemetry: Callable[[], Telemetry]
    """What is told then, and made at the first time: who does not trace imports no OpenTelemetry."""
    listen: Listener | None
    emit: Callable[[Fact], None]
    """Tells a fact to the log, and to whoever listens."""
    clock: Callable[[], float]

    @property
    def idle_in_state(self) -> bool:
        """Whether a session's last use travels in its state; where sessions are tracked, the store knows it."""
        return self.idle_timeout is not None and not self.tracked

    def status(self, claims: Claims) -> Awaitable[Standing]:
        """How an authentic session stands, to be awaited."""
        if self.tracked:  # where a lineage has ended, so has every record of it
            return self.store.touch(claims, idle_timeout=None if self.idle_timeout is None else int(self.idle_timeout))
        return self.store.status(claims) if claims.root is None else base.status(self.store, claims)

    def role(self, header: str, named: SessionMetadata | None) -> Role:
        """What a session header of ours is to a request; where none is named, it can be a mirror only.

        Raises:
            HeaderMismatch: It contradicts what `_meta` says.
        """
        kind = self.tokens.kind(self.ring(self.clock()), header) if self.transport or self.bridges else SESSION
        return role(header, named, kind)

    def code(self, refusal: Refusal) -> int:
        """The JSON-RPC code of a refusal in this deployment."""
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
    wire, limits, clock = options.wire, options.limits, options.clock
    tells, telemetry = _telemetry(app, options)
    emit = partial(_emit, options.telemetry.listen, tells, telemetry)
    store = stores.make(options.store, clock=clock, timeout=as_seconds(limits.store_timeout))
    keep = partial(_data, store, limits, clock)
    streams = Streams(store)
    endings = Terminator(store, streams, on_end=options.on_end, emit=emit, keep=keep, clock=clock)
    return Runtime(
        **_rules(options),
        **_dialects(options),
        **_limits(limits),
        ring=key_source(options.keys),
        path=options.path,
        audience=options.audience,
        tokens=Tokens(
            issuer=wire.issuer,
            audience=options.audience,
            cache_entries=limits.token_cache,
            max_bytes=limits.token_bytes,
        ),
        lifetime=as_seconds(options.lifetime),
        idle_timeout=None if options.idle_timeout is None else as_seconds(options.idle_timeout),
        store=store,
        closes_store=isinstance(options.store, str),
        lets_unknown_in=options.on_store_error == "allow",
        streams=streams,
        endings=endings,
        tracked=options.tracked is not None,
        sweeper=_sweeper(store, endings, options),
        on_create=options.on_create,
        shelf=partial(_namespace, limits),
        keep=keep,
        principal=principal.reader(options.principal),
        asks=options.admission == "ask",
        # No client begins anew when its transport session is gone, so none is named that dies with the process.
        transport=options.transport.header and not is_ephemeral(options.keys),
        transport_lifetime=as_seconds(options.transport.lifetime),
        bridges=options.transport.bridge,
        tells=tells,
        telemetry=telemetry,
        listen=options.telemetry.listen,
        emit=emit,
        clock=clock,
    )


def _rules(options: Options) -> dict[str, Any]:
    policy, wire = Policy(options.require), options.wire
    conversation = Conversation.of(options.telemetry.correlate, options.telemetry.propagate)
    offered = decision.offered(wire.extensions, tracked=options.tracked is not None)
    subjects = decision.subjects(offered)
    legacy_only = wire.era == "legacy"
    reads_field = bool(options.dialects)
    return {
        "policy": policy,
        "subjects": subjects,
        "attended": decision.attended(subjects),
        "settings": decision.settings(policy.summary, offered),
        "lists": wire.lists,
        "legacy_only": legacy_only,
        "conversation": conversation,
        "is_attentive": legacy_only or reads_field or policy.summary != "never" or conversation is not None,
        "not_found_code": wire.not_found_code,
        "required_code": wire.required_code,
    }


def _dialects(options: Options) -> dict[str, Any]:
    if not options.dialects and isinstance(options.dialects, Sequence):
        return {"opted": None, "unconfirmed": None, "capability": b"{}"}
    from .._protocol.sep1364 import Sep1364
    from .sep1364 import Unconfirmed

    opted = Sep1364.of(options.dialects)
    capability = b"{}" if opted.creates is None else opted.creates.capability
    confirms = opted.initializes is not None and not opted.is_sessionless
    return {"opted": opted, "unconfirmed": Unconfirmed() if confirms else None, "capability": capability}


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


def _sweeper(store: Store, endings: Terminator, options: Options) -> Sweeper | None:
    if options.tracked is None:
        return None
    idle = None if options.idle_timeout is None else int(as_seconds(options.idle_timeout))
    interval = as_seconds(options.tracked.sweep_interval)
    return Sweeper(store, endings, audience=options.audience, idle_timeout=idle, interval=interval)


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
    """Write one fact down at INFO: a refusal, a creation or an end. A use is no news."""
    if isinstance(fact, RequestRefused):
        of = "" if fact.ref is None else f" of session {fact.ref}"
        _log.info("refused %s%s: %s (%d)", _quoted(fact.method), of, fact.reason, fact.code)
    elif isinstance(fact, SessionCreated):
        of = "" if fact.parent is None else f" as a fork of {fact.parent}"
        _log.info("session %s created%s", fact.ref, of)
    elif isinstance(fact, SessionDeleted):
        _log.info("session %s ended: %s", fact.ref, fact.reason)


def _quoted(method: str | None) -> str:
    return "a body that was not read" if method is None else ascii(method[:_MAX_METHOD])


WINDOW: Final = 60  # seconds
MAX_CALLERS: Final = 10_000  # told apart within one window

_OTHERS: Final = ""  # no subject is empty


class CreateLimit:
    """The budgets of one process.

    Args:
        per_minute: Sessions that a caller may create within one window.
        max_callers: How many callers are told apart within one window.
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
