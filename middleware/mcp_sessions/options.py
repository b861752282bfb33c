"""The middleware's options, checked once.

A wrong option fails here, at construction, with the remedy in the message; nothing downstream
checks an option again.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Literal, get_args

import msgspec

from . import checks, extensions, principals, protocol, stores
from .conversation import Conversation
from .data import Data, Shelf
from .dialects.draft import Named
from .dialects.transport import Role, role
from .endings import Endings
from .errors import Refusal, SessionNotFound, SessionRequired
from .events import Fact, Listener
from .hooks import OnCreate
from .keyfile import is_ephemeral, key_source
from .keys import KeyRing
from .limits import CreateLimit
from .logs import log_fact
from .policy import Policy
from .principals import ReadPrincipal
from .protocol import Lists, Subject
from .stores import lineages
from .stores.base import Standing, Store
from .streams import Streams
from .sweeper import Sweeper
from .tokens import SESSION, Claims, Tokens
from .told import Told

if TYPE_CHECKING:
    from .dialects.opted import Opted
    from .telemetry.wiring import Telemetry
    from .unconfirmed import Unconfirmed

HOUR: Final = 3600
DAY: Final = 24 * HOUR
KIBIBYTE: Final = 1 << 10
MEBIBYTE: Final = 1 << 20
EVERY_EXTENSION: Final = tuple(extensions.EXTENSIONS)
TYPICAL_TOKEN_BYTES: Final = 512  # a lower limit would refuse what is minted here

Admission = Literal["ask", "own"]
OnStoreError = Literal["refuse", "allow"]
Transport = Literal["auto", "off"]
Era = Literal["any", "legacy"]
Keep = Callable[[str, int], Data]
"""Gives what the server keeps for a session: of which `ref`, and until when (Unix seconds)."""


class Options(msgspec.Struct, frozen=True):
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
    endings: Endings
    tracked: bool
    """Whether sessions are recorded."""
    sweeper: Sweeper | None
    """Where they are: what ends those that end by themselves."""
    on_create: OnCreate | None
    shelf: Callable[[str, int], Shelf]
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
    opted: Opted | None
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

    def standing(self, claims: Claims) -> Awaitable[Standing]:
        """How an authentic session stands, to be awaited."""
        if self.tracked:  # where a lineage has ended, so has every record of it
            return self.store.seen(claims, idle_timeout=None if self.idle_timeout is None else int(self.idle_timeout))
        return self.store.standing(claims) if claims.root is None else lineages.standing(self.store, claims)

    def role(self, header: str, named: Named | None) -> Role:
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


def check(**given: Any) -> Options:
    """Check every option; see `MCPSessionMiddleware` for what each is and means.

    Raises:
        ConfigurationError: One is wrong; the message says which and what to write instead.
    """
    told = Told.of(given)
    return Options(
        **_identity(given),
        **_rules(given),
        **_dialects(given),
        **_lifecycle(given, told),
        **_limits(given),
        tells=told.tells,
        telemetry=told.telemetry,
    )


def _identity(given: dict[str, Any]) -> dict[str, Any]:
    audience = checks.name("audience", given["audience"])
    # No client begins anew when its transport session is gone, so none is named that dies with the process.
    lasts = not is_ephemeral(given["keys"])
    return {
        "transport": lasts and checks.word("transport", given["transport"], get_args(Transport)) == "auto",
        "bridges": checks.yes_or_no("bridge", given["bridge"]),
        "transport_lifetime": checks.seconds("transport_lifetime", given["transport_lifetime"], least=1),
        "ring": key_source(given["keys"]),
        "audience": audience,
        "tokens": Tokens(
            issuer=checks.name("issuer", given["issuer"]),
            audience=audience,
            cache_entries=checks.whole("token_cache", given["token_cache"], least=0),
            max_bytes=checks.whole("max_token_bytes", given["max_token_bytes"], least=TYPICAL_TOKEN_BYTES),
        ),
        "principal": principals.reader(given["principal"]),
        "clock": given["clock"],
    }


def _rules(given: dict[str, Any]) -> dict[str, Any]:
    policy, lists = Policy(given["require"]), given["lists"]
    legacy_only = checks.word("era", given["era"], get_args(Era)) == "legacy"
    reads_field = bool(given["dialects"])
    conversation = Conversation.of(given["correlate"], given["propagate"])
    return {
        "path": checks.path(given["path"]),
        "policy": policy,
        **_extensions(given, policy.summary),
        "lists": None if lists is None else checks.word("lists", lists, get_args(Lists)),
        "asks": checks.word("admission", given["admission"], get_args(Admission)) == "ask",
        "legacy_only": legacy_only,
        "conversation": conversation,
        "is_attentive": legacy_only or reads_field or policy.summary != "never" or conversation is not None,
        "not_found_code": checks.whole("not_found_code", given["not_found_code"]),
        "required_code": checks.whole("required_code", given["required_code"]),
    }


def _extensions(given: dict[str, Any], required: str) -> dict[str, Any]:
    names = checks.words("extensions", given["extensions"], EVERY_EXTENSION)
    offered = extensions.offered(names, tracked=checks.yes_or_no("tracked", given["tracked"]))
    subjects = extensions.subjects(offered)
    return {
        "subjects": subjects,
        "attended": protocol.attended(subjects),
        "settings": extensions.settings(required, offered),
    }


def _dialects(given: dict[str, Any]) -> dict[str, Any]:
    if not given["dialects"] and isinstance(given["dialects"], Sequence):
        return {"opted": None, "unconfirmed": None, "capability": b"{}"}
    from .dialects.opted import Opted  # what most deployments do without
    from .unconfirmed import Unconfirmed

    opted = Opted.of(given["dialects"])
    capability = b"{}" if opted.creates is None else opted.creates.capability
    confirms = opted.initializes is not None and not opted.is_sessionless
    return {"opted": opted, "unconfirmed": Unconfirmed() if confirms else None, "capability": capability}


def _lifecycle(given: dict[str, Any], told: Told) -> dict[str, Any]:
    clock, listen = given["clock"], checks.function("listen", given["listen"])
    emit = partial(_emit, listen, told)
    idle = given["idle_timeout"]
    idle = None if idle is None else checks.seconds("idle_timeout", idle, least=1)
    store = stores.make(given["store"], clock=clock, timeout=checks.seconds("store_timeout", given["store_timeout"]))
    max_data_bytes = checks.whole("max_data_bytes", given["max_data_bytes"], least=1)
    max_value_bytes = checks.whole("max_value_bytes", given["max_value_bytes"], least=1)

    def shelf(owner: str, until: int) -> Shelf:
        return Shelf(owner, until, max_data_bytes)

    def keep(owner: str, until: int) -> Data:
        return Data(store, shelf(owner, until), clock=clock, max_value_bytes=max_value_bytes)

    streams = Streams(store)
    endings = Endings(
        store, streams, on_end=checks.function("on_end", given["on_end"]), emit=emit, keep=keep, clock=clock
    )
    tracked = checks.yes_or_no("tracked", given["tracked"])
    every = checks.seconds("sweep_interval", given["sweep_interval"])
    sweeper = Sweeper(
        store, endings, audience=given["audience"], idle_timeout=None if idle is None else int(idle), interval=every
    )
    return {
        "lifetime": checks.seconds("lifetime", given["lifetime"], least=1),
        "idle_timeout": idle,
        "store": store,
        "closes_store": isinstance(given["store"], str),
        "lets_unknown_in": checks.word("on_store_error", given["on_store_error"], get_args(OnStoreError)) == "allow",
        "tracked": tracked,
        "sweeper": sweeper if tracked else None,
        "streams": streams,
        "endings": endings,
        "on_create": checks.function("on_create", given["on_create"]),
        "shelf": shelf,
        "keep": keep,
        "listen": listen,
        "emit": emit,
    }


def _limits(given: dict[str, Any]) -> dict[str, Any]:
    per_minute = given["create_limit"]
    numbers = ("max_body_bytes", "max_state_bytes", "max_event_bytes", "max_batch", "max_nesting")
    return {
        **{name: checks.whole(name, given[name], least=1) for name in numbers},
        "body_timeout": checks.seconds("body_timeout", given["body_timeout"]),
        "create_limit": None if per_minute is None else CreateLimit(checks.whole("create_limit", per_minute, least=1)),
    }


def _emit(listen: Listener | None, told: Told, fact: Fact) -> None:
    log_fact(fact)
    if told.tells():
        told.telemetry().hear(fact)
    if listen is not None:
        listen(fact)
