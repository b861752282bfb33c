"""The dialects: the ways in which clients identify a session, one file each; here in order of precedence.

The options about them stand here as well, and with them `Options`, all options of the middleware.
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Final, Literal, cast

from .._errors import ConfigurationError
from .._protocol.jsonrpc import TARGETS
from .._protocol.labels import HOST_CHAIN, correlation_sources
from .._protocol.methods import CALL
from .._protocol.policy import DISCOVERY_METHODS, Policy
from .._server import option_types
from .._server.option_types import (
    Default,
    Flag,
    Lifetime,
    OptionObject,
    OptionType,
    as_seconds,
    read_sources,
    validator,
)
from .._server.options import DAY, CoreOptions
from .._server.runtime import Runtime
from .._session.keywords import known_keywords
from .argument import Argument, Beginning
from .base import Dialect, Dialects
from .cookie import Cookie
from .draft import Draft, offered_extensions
from .leading import Leading
from .per_conversation import PerConversation
from .remembered import PerUser
from .transport import Bridge, Transport

_PATH: Final = re.compile(r"/[!#-+\--:<-~]*", re.ASCII)  # RFC 6265, section 4.1.1, without what needs quotes
COOKIE_PATH: Final = OptionType(
    "a path",
    validator(
        "a path as clients write it, as in {option}='/tools/mcp'",
        lambda value: isinstance(value, str) and _PATH.fullmatch(value) is not None,
    ),
)
ARGUMENT: Final = OptionType(
    "a name",
    validator(
        "a name of at most 40 letters, digits and underscores, as in {option}='session'",
        lambda value: isinstance(value, str) and re.fullmatch(r"[A-Za-z][A-Za-z0-9_]{0,39}", value) is not None,
    ),
)
CONVERSATIONS: Final = OptionType(
    "`true`, `false`, or sources, separated by commas",
    lambda option, value: () if value == () else correlation_sources(value, option, HOST_CHAIN),  # () if checked before
    read_sources,
)


@known_keywords
@dataclass(frozen=True, kw_only=True, slots=True, repr=False)
class TransportSessions(OptionObject):
    """Sessions for clients that do not send session ids themselves (`transport=`)."""

    _option = "transport"

    header: Flag = True
    """Whether legacy clients of a stateless server get a session by `Mcp-Session-Id`; not with random keys."""
    cookie: Annotated[bool | Literal["shared"], option_types.flag_or("shared")] = True
    """Whether modern clients that keep cookies get a session by cookie: `True` gives one to each HTTP client, but none
    if two MCP clients share an HTTP client; `"shared"` treats them as one conversation; not with random keys."""
    cookie_path: Annotated[str | None, option_types.or_none(COOKIE_PATH)] = None
    """The path of the cookie: that of the endpoint as clients write it, if a proxy strips a part of it and does not say
    so, such as the stage of an API gateway. None takes it from the request."""
    per_user: Annotated[bool | Literal["fallback"], option_types.flag_or("fallback")] = False
    """Whether an authenticated user has one session, which all its conversations and connections share unless they
    identify another one: `True` goes before the header and the cookie, `"fallback"` is for clients that send neither.
    The session ends after `idle_timeout`, or a day, without a request; not with random keys."""
    per_conversation: Annotated[bool | Sequence[str], CONVERSATIONS] = False
    """Whether an authenticated user has one session for each conversation that its host names, as ChatGPT, VS Code and
    Codex do in `_meta`: `True` reads what such hosts send, a list names sources as in `correlate=`. It ends like that
    of a user."""
    argument: Annotated[str | None, option_types.or_none(ARGUMENT)] = None
    """The name of one more argument of each tool, in which the model carries a session, as in `argument="session"`: for
    clients that send nothing, and anonymous callers. The session ends after `idle_timeout`, or a day, without use."""
    lifetime: Lifetime = 30 * DAY  # seconds
    """Seconds from creation to end of a session of these kinds, or a `timedelta`. Keep it long: clients that send it
    in the header do not reconnect when it has ended."""
    bridge: Flag = False
    """Whether clients of a stateful server get our session ids, with the server's own ids sealed inside. See "The
    bridge" in the wire format."""


class Options(CoreOptions, total=False):
    """The options of `MCPSessionMiddleware`, `add_sessions` and `from_env`, as keywords with their types."""

    dialects: Annotated[Sequence[Dialect], option_types.OBJECT, Default(())]
    """Further ways for clients to send sessions, besides the draft, the header and the cookie: `SEP1364Create()` and
    `SEP1364Initialize()`, the two alternatives of SEP-1364. See `docs/wire.md`."""
    transport: Annotated[
        Literal["auto", "off"] | TransportSessions,
        option_types.instance_or_alias(
            TransportSessions,
            {"auto": TransportSessions(), "off": TransportSessions(header=False, cookie=False)},
            option_types.word(Literal["auto", "off"]),
        ),
        Default("auto"),
    ]
    """Whether clients without session support get sessions by header or cookie: `"auto"`, `"off"`, or a
    `TransportSessions`."""


def transport_of(runtime: Runtime) -> TransportSessions:
    """Return the options of the sessions by header or cookie, and of those that the store remembers."""
    return cast(TransportSessions, cast(Options, runtime.options)["transport"])


def dialects_of(runtime: Runtime, summary: str) -> Dialects:
    """Return the dialects of a deployment.

    Args:
        runtime: What its requests share.
        summary: Which requests need a session: `"never"`, `"some"` or `"always"`.

    Raises:
        ConfigurationError: `dialects=` is no sequence of dialects.
    """
    options = cast(Options, runtime.options)
    extensions = offered_extensions(options["wire"].extensions, tracked=runtime.tracked)
    settings = {"required": summary, **dict.fromkeys(extensions, True)}
    further = _checked(options["dialects"])
    if not further:
        _check_rules(transport_of(runtime), options["require"])
    return Dialects([*further, Draft(extensions), *_unchanged(runtime)], settings=settings)


def _unchanged(runtime: Runtime) -> Iterator[Dialect]:
    """Yield what serves clients that know nothing of sessions: none of these survives the keys of a process."""
    transport, persistent = transport_of(runtime), runtime.keys_persistent
    lifetime, leads = as_seconds(transport.lifetime), runtime.options["wire"].era == "auto"
    has_header = transport.header and persistent
    idle, sources = runtime.idle_timeout or DAY, cast("tuple[str, ...]", transport.per_conversation)
    argument = None if transport.argument is None else Argument(transport.argument, lifetime=lifetime, idle=idle)
    if argument is not None and persistent:
        yield argument
    if sources and persistent:
        yield PerConversation(sources, lifetime=lifetime, idle=idle)
    per_user = PerUser(lifetime=lifetime, idle=idle, comes_last=transport.per_user == "fallback")
    if transport.per_user is True and persistent:
        yield per_user
    if transport.bridge:
        yield Bridge(names=has_header, lifetime=lifetime)
    else:
        yield Transport(is_on=has_header, lifetime=lifetime)
    if leads:
        yield Leading(names=has_header)
    if transport.cookie and persistent:
        shared, path = transport.cookie == "shared", transport.cookie_path
        yield Cookie(runtime.audience, shared=shared, lifetime=lifetime, leads=leads, path=path)
    if transport.per_user == "fallback" and persistent:
        yield per_user
    if argument is not None and persistent:
        yield Beginning(argument)


def _check_rules(transport: TransportSessions, require: Any) -> None:
    """Check that what needs a session can have one: only calls of tools have arguments."""
    others = transport.header, transport.cookie, transport.bridge, transport.per_user, transport.per_conversation
    if transport.argument is None or any(others) or callable(require):
        return
    requires = Policy(require).requires
    for method in (*DISCOVERY_METHODS, *TARGETS):
        if method != CALL and requires(method, lambda: None, False):
            raise ConfigurationError(
                f"require= demands a session for {method}, which has no arguments, and clients get sessions by "
                f"TransportSessions(argument={transport.argument!r}) alone: name tools only, as in "
                'require={"tools/call"}, or turn on another kind of session'
            )


def _checked(dialects: Any) -> list[Dialect]:
    """Return the option `dialects=`, which names each kind of dialect once."""
    are_dialects = isinstance(dialects, Sequence) and all(isinstance(one, Dialect) for one in dialects)
    if are_dialects and len({type(one) for one in dialects}) == len(dialects):
        return list(dialects)
    raise ConfigurationError(
        f"dialects={dialects!r} must name each dialect once, as in dialects=[SEP1364Create(), SEP1364Initialize()];"
        " the draft and the transport header need no naming"
    )
