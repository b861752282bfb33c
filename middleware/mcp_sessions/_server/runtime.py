"""The middleware's options, checked once.

A wrong option fails here, at construction, with the remedy in the message; nothing downstream
checks an option again.

Who is told of what a middleware does: the options about telemetry, checked, and made into it when there is need.

Telemetry itself is imported at the first time that anybody is to be told, so that who does not trace pays
nothing for it, not even at the start.

Facts as log lines, on the logger `mcp_sessions`.

A line names a session by its `ref` and a refusal by its reason. What a client wrote is cut and
quoted, so that no request can write a line of its own.

How many sessions a caller may create.

Callers are told apart by what their tokens will say of them, a keyed hash; anonymous ones share one
budget. Windows are whole minutes of the clock, so that around the turn of one at most twice the limit
gets through. The count is this process's alone: with four workers the deployment's limit is four times
as high. Time is passed in, and memory is bounded: where a minute has seen more callers than are told
apart, further ones share one budget.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import cache, partial
from typing import TYPE_CHECKING, Any, Final, get_args

import msgspec

from .. import stores
from .._protocol import decision
from .._protocol.decision import Lists, Rules, Subject
from .._protocol.policy import Policy
from .._session.claims import Claims
from .._session.data import Data, Namespace
from .._session.events import Fact, Listener, RequestRefused, SessionCreated, SessionDeleted
from .._tokens.jwt import Tokens
from .._tokens.keyfile import is_ephemeral, key_source
from .._tokens.keys import KeyRing
from ..errors import ConfigurationError, CreateLimited, Refusal, SessionNotFound, SessionRequired
from ..stores import base
from ..stores.base import Standing, Store
from ..telemetry.detect import Redact, Spans, Trace, is_traced
from . import options, placement, principal
from .labels import Conversation
from .lifecycle import Endings, Streams, Sweeper
from .options import (
    EVERY_EXTENSION,
    TYPICAL_TOKEN_BYTES,
    Admission,
    Era,
    OnCreate,
    OnStoreError,
    Transport,
)
from .principal import ReadPrincipal

if TYPE_CHECKING:
    from .._protocol.sep1364 import Sep1364
    from ..telemetry.metrics import SessionMetrics
    from ..telemetry.recorder import Telemetry
    from .sep1364 import PendingInitialized

Keep = Callable[[str, int], Data]
"""Gives what the server keeps for a session: of which `ref`, and until when (Unix seconds)."""


class Runtime(msgspec.Struct, frozen=True):
    """What every request of one middleware shares."""

    ring: Callable[[float], KeyRing]
    path: str | None
    audience: str
    tokens: Tokens
    rules: Rules
    """What decides on messages."""
    lifetime: float
    idle_timeout: float | None
    policy: Policy
    lists: Lists | None
    store: Store
    closes_store: bool
    lets_unknown_in: bool
    streams: Streams
    endings: Endings
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
    subjects: Mapping[str, Subject]
    """What each method that is read here is about."""
    opted: Sep1364 | None
    """The dialects beside the draft and the transport header, or None."""
    unconfirmed: PendingInitialized | None
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

    def code(self, refusal: Refusal) -> int:
        """The JSON-RPC code of a refusal in this deployment."""
        if isinstance(refusal, SessionNotFound):
            return self.not_found_code
        return self.required_code if isinstance(refusal, SessionRequired) else refusal.code


def check(**given: Any) -> Runtime:
    """Check every option; see `MCPSessionMiddleware` for what each is and means.

    Raises:
        ConfigurationError: One is wrong; the message says which and what to write instead.
    """
    told = Told.of(given)
    parts = {
        **_identity(given),
        **_rules(given),
        **_dialects(given),
        **_lifecycle(given, told),
        **_limits(given),
    }
    return Runtime(**parts, rules=_decision_rules(**parts), tells=told.tells, telemetry=told.telemetry)


def _decision_rules(
    *,
    ring: Callable[[float], KeyRing],
    clock: Callable[[], float],
    tokens: Tokens,
    transport: bool,
    bridges: bool,
    **parts: Any,
) -> Rules:
    return Rules.of(
        subjects=parts["subjects"],
        inspects_all=parts["conversation"] is not None,  # whose name is looked for in every message
        policy=parts["policy"],
        lists=parts["lists"],
        legacy_only=parts["legacy_only"],
        fail_open=parts["lets_unknown_in"],
        reads_transport=transport or bridges,
        bridges=bridges,
        kind_of=lambda token: tokens.kind(ring(clock()), token),
        sep1364=parts["opted"],
    )


def _identity(given: dict[str, Any]) -> dict[str, Any]:
    audience = options.name("audience", given["audience"])
    # No client begins anew when its transport session is gone, so none is named that dies with the process.
    lasts = not is_ephemeral(given["keys"])
    return {
        "transport": lasts and options.word("transport", given["transport"], get_args(Transport)) == "auto",
        "bridges": options.yes_or_no("bridge", given["bridge"]),
        "transport_lifetime": options.seconds("transport_lifetime", given["transport_lifetime"], least=1),
        "ring": key_source(given["keys"]),
        "audience": audience,
        "tokens": Tokens(
            issuer=options.name("issuer", given["issuer"]),
            audience=audience,
            cache_entries=options.whole("token_cache", given["token_cache"], least=0),
            max_bytes=options.whole("max_token_bytes", given["max_token_bytes"], least=TYPICAL_TOKEN_BYTES),
        ),
        "principal": principal.reader(given["principal"]),
        "clock": given["clock"],
    }


def _rules(given: dict[str, Any]) -> dict[str, Any]:
    policy, lists = Policy(given["require"]), given["lists"]
    legacy_only = options.word("era", given["era"], get_args(Era)) == "legacy"
    conversation = Conversation.of(given["correlate"], given["propagate"])
    return {
        "path": options.path(given["path"]),
        "policy": policy,
        **_extensions(given, policy.summary),
        "lists": None if lists is None else options.word("lists", lists, get_args(Lists)),
        "asks": options.word("admission", given["admission"], get_args(Admission)) == "ask",
        "legacy_only": legacy_only,
        "conversation": conversation,
        "not_found_code": options.whole("not_found_code", given["not_found_code"]),
        "required_code": options.whole("required_code", given["required_code"]),
    }


def _extensions(given: dict[str, Any], required: str) -> dict[str, Any]:
    names = options.words("extensions", given["extensions"], EVERY_EXTENSION)
    offered = decision.offered(names, tracked=options.yes_or_no("tracked", given["tracked"]))
    subjects = decision.subjects(offered)
    return {
        "subjects": subjects,
        "settings": decision.settings(required, offered),
    }


def _dialects(given: dict[str, Any]) -> dict[str, Any]:
    if not given["dialects"] and isinstance(given["dialects"], Sequence):
        return {"opted": None, "unconfirmed": None, "capability": b"{}"}
    from .._protocol.sep1364 import Sep1364
    from .sep1364 import PendingInitialized

    opted = Sep1364.of(given["dialects"])
    capability = b"{}" if opted.creates is None else opted.creates.capability
    confirms = opted.initializes is not None and not opted.is_sessionless
    return {"opted": opted, "unconfirmed": PendingInitialized() if confirms else None, "capability": capability}


def _lifecycle(given: dict[str, Any], told: Told) -> dict[str, Any]:
    clock, listen = given["clock"], options.function("listen", given["listen"])
    emit = partial(_emit, listen, told)
    idle = given["idle_timeout"]
    idle = None if idle is None else options.seconds("idle_timeout", idle, least=1)
    store = stores.make(given["store"], clock=clock, timeout=options.seconds("store_timeout", given["store_timeout"]))
    max_data_bytes = options.whole("max_data_bytes", given["max_data_bytes"], least=1)
    max_value_bytes = options.whole("max_value_bytes", given["max_value_bytes"], least=1)

    def shelf(owner: str, until: int) -> Namespace:
        return Namespace(owner, until, max_data_bytes)

    def keep(owner: str, until: int) -> Data:
        return Data(store, shelf(owner, until), clock=clock, max_value_bytes=max_value_bytes)

    streams = Streams(store)
    endings = Endings(
        store, streams, on_end=options.function("on_end", given["on_end"]), emit=emit, keep=keep, clock=clock
    )
    tracked = options.yes_or_no("tracked", given["tracked"])
    every = options.seconds("sweep_interval", given["sweep_interval"])
    sweeper = Sweeper(
        store, endings, audience=given["audience"], idle_timeout=None if idle is None else int(idle), interval=every
    )
    return {
        "lifetime": options.seconds("lifetime", given["lifetime"], least=1),
        "idle_timeout": idle,
        "store": store,
        "closes_store": isinstance(given["store"], str),
        "lets_unknown_in": options.word("on_store_error", given["on_store_error"], get_args(OnStoreError)) == "allow",
        "tracked": tracked,
        "sweeper": sweeper if tracked else None,
        "streams": streams,
        "endings": endings,
        "on_create": options.function("on_create", given["on_create"]),
        "shelf": shelf,
        "keep": keep,
        "listen": listen,
        "emit": emit,
    }


def _limits(given: dict[str, Any]) -> dict[str, Any]:
    per_minute = given["create_limit"]
    numbers = ("max_body_bytes", "max_state_bytes", "max_event_bytes", "max_batch", "max_nesting")
    return {
        **{name: options.whole(name, given[name], least=1) for name in numbers},
        "body_timeout": options.seconds("body_timeout", given["body_timeout"]),
        "create_limit": None if per_minute is None else CreateLimit(options.whole("create_limit", per_minute, least=1)),
    }


def _emit(listen: Listener | None, told: Told, fact: Fact) -> None:
    log_fact(fact)
    if told.tells():
        told.telemetry().hear(fact)
    if listen is not None:
        listen(fact)


class Told(msgspec.Struct, frozen=True):
    """Who is told of what a middleware does.

    Args:
        tells: Whether anybody is, now.
        telemetry: What tells them, made at the first time: who does not trace imports no OpenTelemetry.
    """

    tells: Callable[[], bool]
    telemetry: Callable[[], Telemetry]

    @classmethod
    def of(cls, given: dict[str, Any]) -> Told:
        """The checked form of the options about telemetry.

        Raises:
            ConfigurationError: One is wrong; the message says what to write instead.
        """
        spans = options.word("spans", given["spans"], get_args(Spans))
        trace = options.word("trace", given["trace"], get_args(Trace))
        metrics: SessionMetrics | None = given["metrics"]
        if not (metrics is None or callable(getattr(metrics, "operation", None))):  # its class is not imported here
            raise ConfigurationError(f"metrics= takes a SessionMetrics(), not {type(metrics).__name__}")
        redact: Redact | None = options.function("redact", given["redact"])
        tail = given["tail"]
        if not (tail is None or (isinstance(tail, str) and tail)):
            raise ConfigurationError(f"tail={tail!r} must be the path of a socket, as in tail='/run/mcp/tail.sock'")
        app, endpoint, tracked = given["app"], options.path(given["path"]), given["tracked"]

        @cache
        def telemetry() -> Telemetry:
            from ..telemetry.recorder import Telemetry

            return Telemetry(
                partial(placement.parts, app, endpoint),
                spans=spans,
                trace=trace,
                metrics=metrics,
                redact=redact,
                tail=tail,
                tracked=tracked,
            )

        if metrics is not None or tail is not None:
            return cls(lambda: True, telemetry)
        return cls(bool if spans == "off" else is_traced, telemetry)


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
