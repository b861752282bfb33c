"""The options of the middleware: keywords, and objects for what is rarely set. Each is declared once.

Its annotation says how an option is checked, how it is written in a variable, and what the settings page shows. The
options about dialects stand with their list, in `_dialects`. `environment` reads options from variables.
"""

import time
from collections.abc import Awaitable, Callable, Collection, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal, TypedDict

from starlette.types import Scope

from .._errors import ConfigurationError
from .._protocol.methods import EXTENSIONS
from .._protocol.policy import Require
from .._session.claims import MAX_TOKEN_BYTES
from .._session.events import Listener
from .._session.keywords import known_keywords
from .._session.session import EndedSession, Session
from .._session.state import MAX_BYTES as STATE_BYTES
from .._tokens.keyfile import Keys
from ..stores._base import Store
from ..telemetry._core import Redact, Spans, Trace, User
from . import option_types
from .option_types import (
    Default,
    Duration,
    Lifetime,
    LifetimeOrNone,
    Name,
    OptionObject,
    OptionType,
    Whole,
    WholeOrNone,
)
from .principal import PrincipalOf

if TYPE_CHECKING:
    from ..telemetry._inspector import Inspector
    from ..telemetry._metrics import SessionMetrics

HOUR: Final = 3600
DAY: Final = 24 * HOUR
KIBIBYTE: Final = 1 << 10
MEBIBYTE: Final = 1 << 20
TYPICAL_TOKEN_BYTES: Final = 512  # a lower limit would refuse what is minted here

Admission = Literal["ask", "own"]
OnStoreError = Literal["refuse", "allow"]
Lists = Literal["stable", "session", "untouched"]
Era = Literal["both", "auto", "legacy"]

OnCreate = Callable[[Session, dict[str, Any], Scope], Awaitable[None] | None]
"""Called with a new session, the `params` of `sessions/create` without `_meta`, and the ASGI scope. It may fill the
session's state and data, or raise `CreateRefused` with a message for the client."""

OnEnd = Callable[[EndedSession, str], Awaitable[None] | None]
"""Called with a session that has ended and the reason: `"deleted"`, `"expired"`, `"idle"`, `"ended_all"` with its
principal's others, or `end`'s."""


@known_keywords
@dataclass(frozen=True, kw_only=True, slots=True, repr=False)
class Tracking(OptionObject):
    """How sessions are recorded in the store (`tracked=`)."""

    _option = "tracked"

    sweep_interval: Duration = 5  # seconds
    """Seconds between sweeps for expired and idle sessions."""
    silence: LifetimeOrNone = DAY  # seconds
    """Seconds without a request after which a recorded session ends if `idle_timeout` is not set, since clients may
    never delete theirs. None means that only its lifetime counts."""


@known_keywords
@dataclass(frozen=True, kw_only=True, slots=True, repr=False)
class Affinity(OptionObject):
    """How workers reach each other, for sessions that a stateful server keeps in one process (`affinity=`)."""

    _option = "affinity"

    address: Annotated[str | None, option_types.or_none(option_types.ADDRESS)] = None
    """The IP address at which workers on other machines reach this one, such as the pod's. None means that all workers
    are on one machine."""


@known_keywords
@dataclass(frozen=True, kw_only=True, slots=True, repr=False)
class Wire(OptionObject):
    """The protocol with clients (`wire=`)."""

    _option = "wire"

    era: Annotated[Era, option_types.word(Era)] = "both"
    """`"both"` serves both eras; `"legacy"` makes clients that support both fall back to the handshake and get a
    session by header; `"auto"` does so for clients that are not known to keep cookies, as those on Python's httpx are.
    """
    lists: Annotated[Lists | None, option_types.or_none(option_types.word(Lists))] = None
    """Whether lists may vary by session: `"stable"` (they do not), `"session"` or `"untouched"`. None means `"stable"`
    in the modern era, and `"session"` in the legacy era."""
    extensions: Annotated[Collection[str], option_types.names(EXTENSIONS)] = EXTENSIONS
    """Methods to offer beyond the draft: `"fork"` and, if sessions are tracked, `"list"`. Others are forwarded to the
    wrapped server."""
    issuer: Name = "mcp-sessions"
    """The issuer (`iss`) of session ids."""


@known_keywords
@dataclass(frozen=True, kw_only=True, slots=True, repr=False)
class Limits(OptionObject):
    """Limits of one process, in bytes, seconds or counts (`limits=`)."""

    _option = "limits"

    body_bytes: Whole = 4 * MEBIBYTE
    """Maximum bytes of a request body."""
    body_timeout: Duration = 30  # seconds
    """Maximum seconds for the rest of a request body to arrive."""
    batch: Whole = 100
    """Maximum messages in a JSON-RPC batch (protocol 2025-03-26 only)."""
    nesting: Whole = 1_000
    """Maximum nesting of arrays and objects in a body, within the interpreter's recursion limit."""
    event_bytes: Whole = 64 * MEBIBYTE
    """Maximum bytes to buffer of one event in a response stream."""
    token_bytes: Annotated[int, option_types.whole(TYPICAL_TOKEN_BYTES)] = MAX_TOKEN_BYTES
    """Maximum bytes of a session id."""
    token_cache: Annotated[int, option_types.whole(0)] = 10_000
    """Number of verified tokens to cache; 0 caches none."""
    state_bytes: Whole = STATE_BYTES
    """Maximum bytes of `session.state`, as JSON."""
    data_bytes: Whole = MEBIBYTE
    """Maximum bytes of `session.data` in one session."""
    value_bytes: Whole = 64 * KIBIBYTE
    """Maximum bytes of one value in `session.data`, as JSON."""
    store_timeout: Duration = 0.25  # seconds
    """Seconds within which the store must answer; after that, the request is refused with HTTP 503. Creating or
    deleting a tracked session takes up to three answers."""
    write_timeout: Duration = 5  # seconds
    """Seconds within which a change must be in the file of `sqlite:`, instead of `store_timeout`: a busy disk is no
    outage. Other stores have no such limit."""
    sessions_per_principal: WholeOrNone = 10_000
    """Maximum recorded sessions of one principal at once, if tracked; further ones are refused. None means no limit."""
    anonymous_sessions: WholeOrNone = 1_000_000
    """Maximum recorded sessions without a principal at once, if tracked; None means no limit."""
    data_bytes_per_principal: WholeOrNone = 16 * MEBIBYTE
    """Maximum bytes of the data of all sessions of one principal, plus 200 per value; None means no limit."""
    anonymous_data_bytes: WholeOrNone = 256 * MEBIBYTE
    """Maximum bytes of the data of all sessions without a principal together, plus 200 per value; None means no
    limit."""
    creates_per_minute: WholeOrNone = None
    """Maximum sessions that a principal may create per minute and process; callers without a principal share one
    budget. None means no limit."""


def _metrics(option: str, value: Any) -> Any:
    if value is None or callable(getattr(value, "operation", None)):  # its class is not imported here
        return value
    raise ConfigurationError(f"{option}= takes a SessionMetrics(), not {type(value).__name__}")


@known_keywords
@dataclass(frozen=True, kw_only=True, slots=True, repr=False)
class Telemetry(OptionObject):
    """Traces, metrics and reports about sessions (`telemetry=`)."""

    _option = "telemetry"

    spans: Annotated[Spans, option_types.word(Spans)] = "auto"
    """The span of a message, if the application has set a tracer provider: `"auto"` adds the attributes to the server
    span of an HTTP instrumentation or of the wrapped server, and creates one by OpenTelemetry's conventions if there is
    neither; `"message"` creates one below an HTTP instrumentation, too; `"enrich"` adds the attributes to the current
    span; `"off"` does nothing."""
    trace: Annotated[Trace, option_types.word(Trace)] = "request"
    """`"request"`: messages belong to their callers' traces and link to the start of their session; `"session"`: each
    session is one trace whose messages link to their callers' traces."""
    metrics: Annotated["SessionMetrics | None", OptionType(check=_metrics)] = None
    """A `SessionMetrics`, or None for no metrics."""
    redact: Annotated[Redact | None, option_types.FUNCTION] = None
    """Records the arguments, results and errors of tool calls on spans, redacted by this function: it is called with
    `"arguments"`, `"result"` or `"error"`, the tool's name and the value, and returns what to record. None records
    nothing."""
    openinference: option_types.Flag = False
    """Adds `input.value` and `output.value`, OpenInference's attributes, which Phoenix and MLflow show: what `redact`
    returns, else the method and tool, and the outcome."""
    user: Annotated[User | None, option_types.FUNCTION] = None
    """Records `user.id` on spans: this function is called with the `Principal` of a request and returns the id.
    `client.address` is then recorded as well."""
    correlate: Annotated[bool | Sequence[str] | None, option_types.CORRELATE] = None
    """Where hosts put their name for a conversation: `True` looks in known places, a sequence such as
    `["meta:openai/session", "header:x-conversation-id"]` in these, in order. The name is on `session.correlation`, or
    else `scope["mcp_correlation"]`; it is a label that selects no data and satisfies no policy."""
    listen: Annotated[Listener | None, option_types.FUNCTION] = None
    """Called when a session is created, used or deleted, or a request refused. It must not block or raise."""
    inspector: Annotated["str | Inspector | None", option_types.INSPECTOR] = None
    """A page of live sessions and calls: an address on which to serve it, or an `Inspector` that the application mounts
    behind authentication. None shows nothing."""
    inspector_token: option_types.Secret = field(default=None, repr=False)
    """The password of that page, with any user name. It is required unless the address is a loopback address."""


class CoreOptions(TypedDict, total=False):
    """The options of `MCPSessionMiddleware` except those about dialects."""

    keys: Annotated[Keys, option_types.KEYS, Default(None)]
    """The secrets that sign and seal sessions: one secret of at least 32 bytes, several (the first signs, all verify),
    `"env:NAME"`, `"file:PATH"`, or a `KeyRing`. None creates a random key for this process."""
    path: Annotated[str | None, option_types.PATH, Default("/mcp")]
    """The path of the MCP endpoint, relative to the mount. None means every path, of which only JSON is inspected. With
    `require`, a path that no route serves is an error at startup. `add_sessions` takes the full path, and finds it by
    default."""
    audience: Annotated[Name, Default("mcp-sessions")]
    """The deployment that the sessions belong to. If servers share keys, give each a different one."""
    lifetime: Annotated[Lifetime, Default(7 * DAY)]
    """Seconds from creation to the absolute end, a `timedelta`, or text such as `"12h"`."""
    idle_timeout: Annotated[LifetimeOrNone, Default(None)]
    """Seconds without a request after which a session ends, a `timedelta`, or text. None means no timeout."""
    require: Annotated[Require, option_types.REQUIRE, Default("never")]
    """Which requests need a session: `"never"`, `"always"`, a set of methods such as `{"tools/call"}`, a mapping that
    names tools or prompts such as `{"tools/call": ["checkout"], "resources/read": True}`, or a function of
    `PolicyRequest` that returns a bool. `"always"` leaves out handshakes, lists, pings and notifications. A misspelt
    name is an error at startup if the server lists what it has."""
    principal: Annotated[PrincipalOf | None, option_types.FUNCTION, Default(None)]
    """A function that returns the authenticated caller for an ASGI scope, or None for an anonymous one. By default, the
    user that the authentication of the SDK, FastMCP or Starlette puts on the scope; a request with an `Authorization`
    header but no user then gets no session."""
    admission: Annotated[Admission, option_types.word(Admission), Default("ask")]
    """`"ask"` lets the wrapped server check the caller before this middleware answers; `"own"` relies on the
    authentication outside of this middleware."""
    store: Annotated[str | Store, option_types.STORE, Default("memory:")]
    """The store of ended sessions, state and data: `"memory:"` (one process), `"sqlite:PATH"` (one machine),
    `"redis://..."` or `"postgresql://..."` (many machines), or a `Store`."""
    on_store_error: Annotated[OnStoreError, option_types.word(OnStoreError), Default("refuse")]
    """Whether to `"refuse"` requests in sessions while the store does not answer, or to `"allow"` them with a warning
    in the log, unless `require` demands a session."""
    tracked: Annotated[
        bool | Tracking,
        option_types.instance_or_alias(Tracking, {True: Tracking(), False: None}, option_types.FLAG),
        Default(False),
    ]
    """Whether to record sessions in the store: sessions without a record are refused, idle time is counted in the
    store, and `on_end` also runs for sessions that expire. True, or a `Tracking`."""
    on_create: Annotated[OnCreate | None, option_types.HOOK, Default(None)]
    """Called with each new session, the params of `sessions/create` and the ASGI scope, before the client gets its
    answer. It may fill `state` and `data`, or raise `CreateRefused`."""
    on_end: Annotated[OnEnd | None, option_types.HOOK, Default(None)]
    """Called with each ended session, as an `EndedSession`, and the reason, possibly while handlers of the session
    still run. Tracked sessions: once per session in the whole deployment, repeated only if the worker that ran it died
    or lost the store. Others: only when a session is ended, not when it expires. Cancelled after 50 seconds."""
    affinity: Annotated[
        Literal["auto", "off"] | Affinity,
        option_types.instance_or_alias(
            Affinity, {"auto": Affinity(), "off": None}, option_types.word(Literal["auto", "off"])
        ),
        Default("auto"),
    ]
    """Whether any worker serves the sessions that a stateful server keeps in one process: `"auto"` (if the workers
    share the store), `"off"`, or an `Affinity`."""
    wire: Annotated[Wire, option_types.instance_or_alias(Wire), Default(Wire())]
    """Protocol options: a `Wire`."""
    limits: Annotated[Limits, option_types.instance_or_alias(Limits), Default(Limits())]
    """Limits of one process: a `Limits`."""
    telemetry: Annotated[Telemetry, option_types.instance_or_alias(Telemetry), Default(Telemetry())]
    """Traces, metrics and events: a `Telemetry`."""
    clock: Annotated[Callable[[], float], option_types.CLOCK, Default(time.time)]
    """Returns Unix seconds; for tests."""


def tracking(options: CoreOptions) -> Tracking | None:
    """Return how sessions are recorded, given options that are checked, or None if they are not."""
    tracked = options["tracked"]
    return tracked if isinstance(tracked, Tracking) else None
