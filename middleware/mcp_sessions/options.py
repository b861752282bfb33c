"""The middleware's options, checked once.

A wrong option fails here, at construction, with the remedy in the message; nothing downstream
checks an option again.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Final, Literal, get_args

from . import principals
from .errors import ConfigurationError, Refusal, SessionNotFound, SessionRequired
from .events import Fact, Listener
from .keyfile import Keys, key_source
from .keys import KeyRing
from .limits import CreateLimit
from .logs import log_fact
from .policy import Policy, Require
from .principals import PrincipalOf, ReadPrincipal
from .protocol import Lists
from .stores.base import Store
from .stores.memory import MemoryStore
from .tokens import Tokens

HOUR: Final = 3600
DAY: Final = 24 * HOUR
CENTURY: Final = 36_525 * DAY  # no session needs more, and calendars end
MEBIBYTE: Final = 1 << 20
TYPICAL_TOKEN_BYTES: Final = 512  # a lower limit would refuse what is minted here

Admission = Literal["ask", "own"]
Seconds = float | timedelta


@dataclass(frozen=True, slots=True)
class Options:
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
    principal: ReadPrincipal
    asks: bool
    not_found_code: int
    required_code: int
    max_body_bytes: int
    max_state_bytes: int
    max_event_bytes: int
    max_batch: int
    max_nesting: int
    body_timeout: float
    create_limit: CreateLimit | None
    settings: bytes
    """What `capabilities.experimental.sessions` says of this deployment, as JSON."""
    listen: Listener | None
    clock: Callable[[], float]

    def emit(self, fact: Fact) -> None:
        """Tell a fact to the log, and to whoever listens."""
        log_fact(fact)
        if self.listen is not None:
            self.listen(fact)

    def code(self, refusal: Refusal) -> int:
        """The JSON-RPC code of a refusal in this deployment."""
        if isinstance(refusal, SessionNotFound):
            return self.not_found_code
        return self.required_code if isinstance(refusal, SessionRequired) else refusal.code


def check(
    *,
    keys: Keys,
    path: str | None,
    audience: str,
    issuer: str,
    lifetime: Seconds,
    idle_timeout: Seconds | None,
    require: Require,
    lists: Lists | None,
    store: str | Store,
    principal: PrincipalOf | None,
    admission: Admission,
    not_found_code: int,
    required_code: int,
    max_body_bytes: int,
    max_state_bytes: int,
    max_event_bytes: int,
    max_batch: int,
    max_nesting: int,
    max_token_bytes: int,
    body_timeout: Seconds,
    create_limit: int | None,
    token_cache: int,
    listen: Listener | None,
    clock: Callable[[], float],
) -> Options:
    """Check every option; see `MCPSessionMiddleware` for what each means.

    Raises:
        ConfigurationError: One is wrong; the message says which and what to write instead.
    """
    policy = Policy(require)
    return Options(
        ring=key_source(keys),
        path=_path(path),
        audience=_name("audience", audience),
        tokens=Tokens(
            issuer=_name("issuer", issuer),
            audience=audience,
            cache_entries=_whole("token_cache", token_cache, least=0),
            max_bytes=_whole("max_token_bytes", max_token_bytes, least=TYPICAL_TOKEN_BYTES),
        ),
        lifetime=_seconds("lifetime", lifetime, least=1),
        idle_timeout=None if idle_timeout is None else _seconds("idle_timeout", idle_timeout, least=1),
        policy=policy,
        lists=None if lists is None else _word("lists", lists, get_args(Lists)),
        store=_store(store),
        principal=principals.reader(principal),
        asks=_word("admission", admission, get_args(Admission)) == "ask",
        not_found_code=_whole("not_found_code", not_found_code),
        required_code=_whole("required_code", required_code),
        max_body_bytes=_whole("max_body_bytes", max_body_bytes, least=1),
        max_state_bytes=_whole("max_state_bytes", max_state_bytes, least=1),
        max_event_bytes=_whole("max_event_bytes", max_event_bytes, least=1),
        max_batch=_whole("max_batch", max_batch, least=1),
        max_nesting=_whole("max_nesting", max_nesting, least=1),
        body_timeout=_seconds("body_timeout", body_timeout),
        create_limit=None if create_limit is None else CreateLimit(_whole("create_limit", create_limit, least=1)),
        settings=b'{"required":"%s"}' % policy.summary.encode(),
        listen=_listener(listen),
        clock=clock,
    )


# What follows takes `object`: the options' types are promises of callers that no type checker has seen.


def _path(path: object) -> str | None:
    if path is None:
        return None
    if isinstance(path, str) and ("{" in path or "}" in path):
        raise ConfigurationError(
            f"path={path!r}: a pattern never matches; use add_sessions(app, path=...) or path=None"
        )
    if isinstance(path, str) and path.startswith("/"):
        return path.rstrip("/")
    raise ConfigurationError(f"path={path!r} must begin with '/', as in path='/mcp'; None means every path")


def _name(option: str, value: object) -> str:
    if isinstance(value, str) and value and value.isascii() and value.isprintable():
        return value
    raise ConfigurationError(f"{option}={value!r} must be printable ASCII, as in {option}='https://api.example/mcp'")


def _seconds(option: str, value: object, *, least: float = 0.001) -> float:
    seconds = value.total_seconds() if isinstance(value, timedelta) else value
    if isinstance(seconds, (int, float)) and not isinstance(seconds, bool) and least <= seconds <= CENTURY:
        return float(seconds)
    raise ConfigurationError(f"{option}={value!r} must be from {least} to {CENTURY} seconds, a number or a timedelta")


def _whole(option: str, value: object, *, least: float = -math.inf) -> int:
    if isinstance(value, int) and not isinstance(value, bool) and value >= least:
        return value
    bound = "" if least == -math.inf else f" of at least {least}"
    raise ConfigurationError(f"{option}={value!r} must be a whole number{bound}")


def _word(option: str, value: Any, allowed: tuple[Any, ...]) -> Any:
    if value in allowed:
        return value
    raise ConfigurationError(f"{option}={value!r} must be one of {', '.join(map(repr, allowed))}")


def _listener(listen: Any) -> Listener | None:
    if listen is None or callable(listen):
        checked: Listener | None = listen
        return checked
    raise ConfigurationError("listen= takes a function that is called with each fact of mcp_sessions.events")


def _store(store: Any) -> Store:
    if store == "memory:":
        return MemoryStore()
    if isinstance(store, str):
        raise ConfigurationError(f"store={store!r} is not known; use 'memory:' or an object that is a Store")
    lacks = [name for name in ("revoke", "is_revoked", "close") if not callable(getattr(store, name, None))]
    if lacks:
        raise ConfigurationError(f"store= lacks {', '.join(lacks)}; see mcp_sessions.stores.base.Store")
    checked: Store = store
    return checked
