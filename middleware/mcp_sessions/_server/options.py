"""The options of the middleware: keywords, and five objects for what is rarely set.

A field's annotation says how it is checked, how it is written in a variable, and what the settings page shows. An
option object is frozen, and checked when it is made. `environment` reads options from variables.
"""

from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal

from starlette.types import Scope

from .._errors import ConfigurationError
from .._protocol.methods import EXTENSIONS
from .._protocol.policy import Require
from .._session.claims import MAX_TOKEN_BYTES
from .._session.events import Listener
from .._session.keywords import known_keywords
from .._session.session import EndedSession, Session
from .._tokens.keyfile import Keys
from ..stores._base import Store
from ..telemetry._core import Redact, Spans, Trace, User
from . import option_types
from .option_types import Duration, Flag, Lifetime, LifetimeOrNone, Name, OptionType, Whole, WholeOrNone
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
Cookies = bool | Literal["shared"]

OnCreate = Callable[[Session, dict[str, Any], Scope], Awaitable[None] | None]
"""Called with a new session, the `params` of `sessions/create` without `_meta`, and the ASGI scope. It may fill the
session's state and data, or raise `CreateRefused` with a message for the client."""

OnEnd = Callable[[EndedSession, str], Awaitable[None] | None]
"""Called with a session that has ended and the reason: `"deleted"`, `"expired"`, `"idle"`, `"ended_all"` with its
principal's others, or `end`'s."""


class _Checked:
    """An object of options, which are checked when it is made."""

    __slots__ = ()

    def __post_init__(self) -> None:
        prefix = next((f"{group}." for group, kind in GROUPS.items() if isinstance(self, kind)), "")
        for one in fields(self):  # type: ignore[arg-type]  # each option object is a dataclass
            checked = option_types.option_type(type(self), one.name).check(prefix + one.name, getattr(self, one.name))
            object.__setattr__(self, one.name, checked)


@known_keywords
@dataclass(frozen=True, kw_only=True, slots=True)
class TransportSessions(_Checked):
    """Sessions for clients that do not name sessions themselves (`transport=`)."""

    header: Flag = True
    """Whether legacy clients of a stateless server get a session by `Mcp-Session-Id`; not with random keys."""
    cookie: Annotated[Cookies, option_types.COOKIES] = True
    """Whether modern clients that keep cookies get a session by cookie: `True` gives one to each HTTP client, but none
    if two MCP clients share an HTTP client; `"shared"` treats them as one conversation; not with random keys."""
    principal: Flag = False
    """Whether an authenticated caller whose client names no session gets the one of its principal, which all its
    conversations share. It ends after `idle_timeout`, or a day, without a request; not with random keys."""
    lifetime: Lifetime = 30 * DAY  # seconds
    """Seconds from creation to end of a session of these kinds, or a `timedelta`. Keep it long: clients that send it
    in the header do not reconnect when it has ended."""
    bridge: Flag = False
    """Whether clients of a stateful server get our session ids, with the server's own ids sealed inside. See "The
    bridge" in the wire format."""


@known_keywords
@dataclass(frozen=True, kw_only=True, slots=True)
class Tracking(_Checked):
    """How sessions are recorded in the store (`tracked=`)."""

    sweep_interval: Duration = 5  # seconds
    """Seconds between sweeps for expired and idle sessions."""
    silence: LifetimeOrNone = DAY  # seconds
    """Seconds without a request after which a recorded session ends if `idle_timeout` is not set, since clients may
    never delete theirs. None means that only its lifetime counts."""


@known_keywords
@dataclass(frozen=True, kw_only=True, slots=True)
class Wire(_Checked):
    """The protocol with clients (`wire=`)."""

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
@dataclass(frozen=True, kw_only=True, slots=True)
class Limits(_Checked):
    """Limits of one process, in bytes, seconds or counts (`limits=`)."""

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
    state_bytes: Whole = 4096
    """Maximum bytes of a session's sealed state."""
    data_bytes: Whole = MEBIBYTE
    """Maximum bytes of `session.data` in one session."""
    value_bytes: Whole = 64 * KIBIBYTE
    """Maximum bytes of one value in `session.data`, as JSON."""
    store_timeout: Duration = 0.25  # seconds
    """Seconds within which the store must answer; after that, the request is refused with HTTP 503. Creating or
    deleting a tracked session takes up to three answers."""
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
@dataclass(frozen=True, kw_only=True, slots=True)
class Telemetry(_Checked):
    """Traces, metrics and reports about sessions (`telemetry=`)."""

    spans: Annotated[Spans, option_types.word(Spans)] = "auto"
    """The span of a message, if the application has set a tracer provider: `"auto"` creates a server span by
    OpenTelemetry's conventions, unless the wrapped server creates its own, which then gets the attributes; `"enrich"`
    adds the attributes to the current span; `"off"` does nothing."""
    trace: Annotated[Trace, option_types.word(Trace)] = "request"
    """`"request"`: messages belong to their callers' traces and link to the start of their session; `"session"`: each
    session is one trace whose messages link to their callers' traces."""
    metrics: Annotated["SessionMetrics | None", OptionType(check=_metrics)] = None
    """A `SessionMetrics`, or None for no metrics."""
    redact: Annotated[Redact | None, option_types.FUNCTION] = None
    """Records the arguments and results of tool calls on our spans, redacted by this function: it is called with
    `"arguments"` or `"result"`, the tool's name and the value, and returns what to record. None records nothing."""
    user: Annotated[User | None, option_types.FUNCTION] = None
    """Records `user.id` on our spans and those of the wrapped server: this function is called with the `Principal` of a
    request and returns the id. `client.address` is then recorded as well."""
    correlate: Annotated[bool | Sequence[str] | None, option_types.CORRELATE] = None
    """Where hosts put their name for a conversation: `True` looks in known places, a sequence such as
    `["meta:openai/session", "header:x-conversation-id"]` in these, in order. The name is on `session.correlation`, or
    else `scope["mcp_correlation"]`; it is a label that selects no data and satisfies no policy."""
    listen: Annotated[Listener | None, option_types.FUNCTION] = None
    """Called when a session is created, used or deleted, or a request refused. It must not block or raise."""
    inspector: Annotated["str | Inspector | None", option_types.INSPECTOR] = None
    """A page of live sessions and calls: an address on which to serve it, or an `Inspector` that the application mounts
    behind its own authentication. None shows nothing."""
    inspector_token: option_types.Secret = field(default=None, repr=False)
    """The password of that page, with any user name; required unless the address is a loopback address."""


GROUPS: Final[Mapping[str, type]] = {
    "tracked": Tracking,
    "transport": TransportSessions,
    "wire": Wire,
    "limits": Limits,
    "telemetry": Telemetry,
}
"""The options that are objects of options themselves."""


def _object_or_word(kind: type, words: Mapping[Any, Any]) -> option_types.Check:
    """Accept an option object, or a word that stands for one."""

    def check(option: str, value: Any) -> Any:
        if isinstance(value, kind):
            return value
        if isinstance(value, (str, bool)) and value in words:
            return words[value]
        allowed = [*map(repr, words), f"{kind.__name__}(...)"]
        raise ConfigurationError(
            f"{option}={value!r} must be {', '.join(allowed[:-1])}{' or ' * bool(words)}{allowed[-1]}"
        )

    return check


@dataclass(frozen=True, kw_only=True, slots=True)
class Options(_Checked):
    """The checked options of `MCPSessionMiddleware`, where each is documented."""

    keys: Annotated[Keys, option_types.KEYS] = field(repr=False)
    path: Annotated[str | None, option_types.PATH]
    audience: Name
    lifetime: Lifetime
    idle_timeout: LifetimeOrNone
    require: Annotated[Require, option_types.REQUIRE]
    principal: Annotated[PrincipalOf | None, option_types.FUNCTION]
    admission: Annotated[Admission, option_types.word(Admission)]
    store: Annotated[str | Store, option_types.STORE] = field(repr=False)  # a URL may hold a password
    on_store_error: Annotated[OnStoreError, option_types.word(OnStoreError)]
    tracked: Annotated[Tracking | None, OptionType(check=_object_or_word(Tracking, {True: Tracking(), False: None}))]
    on_create: Annotated[OnCreate | None, option_types.HOOK]
    on_end: Annotated[OnEnd | None, option_types.HOOK]
    dialects: Annotated[Sequence[Any], option_types.OBJECT]
    transport: Annotated[
        TransportSessions,
        OptionType(
            check=_object_or_word(
                TransportSessions, {"auto": TransportSessions(), "off": TransportSessions(header=False, cookie=False)}
            )
        ),
    ]
    wire: Annotated[Wire, OptionType(check=_object_or_word(Wire, {}))]
    limits: Annotated[Limits, OptionType(check=_object_or_word(Limits, {}))]
    telemetry: Annotated[Telemetry, OptionType(check=_object_or_word(Telemetry, {}))]
    clock: Annotated[Callable[[], float], option_types.CLOCK]

    def __post_init__(self) -> None:
        _Checked.__post_init__(self)
        if self.idle_timeout is not None and self.idle_timeout > self.lifetime:  # type: ignore[operator]  # both seconds
            raise ConfigurationError(
                f"idle_timeout={self.idle_timeout:g} is longer than lifetime={self.lifetime:g}, so it has "
                "no effect; make it shorter, or leave it out"
            )
