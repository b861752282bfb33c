"""What `store=` may be, what becomes of it, and what is said of everything else."""

import math
import re
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from clients import Clock

from mcp_sessions import stores
from mcp_sessions._errors import ConfigurationError
from mcp_sessions.stores._base import Store, StoreScope
from mcp_sessions.stores._memory import MemoryStore
from mcp_sessions.stores._postgres import PostgresStore
from mcp_sessions.stores._redis import RedisStore
from mcp_sessions.stores._sqlite import SQLiteStore
from mcp_sessions.stores._timeout import TimeoutStore

CLOCK = Clock()
PASSWORD = "a-password-of-the-store"


def make(store: object) -> Store:
    return stores.make(store, clock=CLOCK, timeout=1)


async def test_sqlite_is_a_file_of_one_machine(tmp_path: Path) -> None:
    """Within a timeout; the path is taken as it stands."""
    store = make(f"sqlite:{tmp_path}/a b?.db")
    assert isinstance(store, TimeoutStore)
    assert repr(store._store) == f"<SQLiteStore {tmp_path}/a b?.db>"  # no secret
    assert store.scope is StoreScope.MACHINE
    await store.open()
    await store.close()
    assert (tmp_path / "a b?.db").exists()


@pytest.mark.parametrize("anyio_backend", ["asyncio"])
@pytest.mark.parametrize(
    "url",
    [
        f"redis://user:{PASSWORD}@localhost:6379/0",
        f"rediss://:{PASSWORD}@localhost",
        f"unix://:{PASSWORD}@/run/redis.sock",
        f"redis+cluster://user:{PASSWORD}@localhost:6379",
        f"postgres://me:{PASSWORD}@host:99/db",
    ],
)
async def test_a_url_is_of_many_machines(url: str, anyio_backend: str) -> None:
    """In any of its forms, and within a timeout; nothing is connected to yet. Redis's driver knows asyncio alone."""
    store = make(url)
    assert isinstance(store, TimeoutStore)
    assert store.scope is StoreScope.NETWORK
    assert PASSWORD not in repr(store) + repr(store._store)
    await store.close()


class Own:
    """A store that somebody wrote; what it does is not looked at."""

    def __init__(self, **parts: Any) -> None:
        self.__dict__.update({"scope": StoreScope.NETWORK, **parts})

    def __getattr__(self, name: str) -> Any:
        return str


def test_an_object_with_every_method_is_a_store() -> None:
    """It gets a timeout, unless it comes with one, or is in memory: that cannot hang."""
    store, memory = make(Own()), MemoryStore()
    assert isinstance(store, TimeoutStore)
    assert [make(store), make(memory)] == [store, memory]
    assert isinstance(make("memory:"), MemoryStore)


# A database that is not a number would silently be the first.
NO_REDIS = (
    *("redis://:{}@host:port", "redis://:{}@host/abc", "redis+cluster://:{}@host/1"),
    *("redis+sentinel://:{}@host:26379", "redis+sentinel://:{}@:26379/name"),
)
FORMS = "does not name a store; use 'memory:'.*'sqlite:PATH'.*'redis://.*'rediss://'.*cluster://'.*'postgresql://"
OTHERS = ("memory", "mysql://user:{}@host/db", "REDIS://:{}@host", " redis://:{}@host", "redis:/:{}@host")


@pytest.mark.parametrize(
    ("store", "remedy"),
    [
        # Three slashes mean a relative path to some and an absolute one to others.
        *((f"sqlite:{path}", "takes a plain path, as in 'sqlite:/var/") for path in ("", "//", "///a.db", ":memory:")),
        *((text.format(PASSWORD), FORMS) for text in OTHERS),
        *((text.format(PASSWORD), "is not a valid Redis URL") for text in NO_REDIS),
        ("memory:two", "nothing after the colon"),
        (f"postgresql://me:{PASSWORD}@host/db?no_such_parameter=1", "not a valid PostgreSQL URL"),
        (Own(revoke=None, add=True), r"a Own, which lacks add, revoke; see mcp_sessions\.stores\.Store"),
        (Own(revoke=None, scope="everywhere"), "lacks revoke, scope;"),
        *((store, "lacks add, claim_ended, close, compare_and_swap, copy, count") for store in (5, object(), 1.5)),
        (None, "takes a store, not None; use 'memory:'"),
        *((cls, "takes a store, not a class; use 'memory:'") for cls in (MemoryStore, Own)),
    ],
)
def test_what_is_not_a_store_is_refused_and_not_repeated(store: object, remedy: str) -> None:
    """The message has the remedy; what was given may hold a password."""
    with pytest.raises(ConfigurationError, match=remedy) as caught:
        make(store)
    assert PASSWORD not in str(caught.value)
    assert caught.value.__suppress_context__ or caught.value.__context__ is None


REDIS_URLS = (
    *("redis://host", "rediss://host", "unix:///socket", "redis+cluster://host", "rediss+cluster://host"),
    *("redis+sentinel://host/name", "rediss+sentinel://host/name"),
)
MISSPELT = [(url, "freshnes", "did you mean 'freshness'") for url in ("redis://host", "postgresql://host/db")]


@pytest.mark.parametrize(
    ("url", "name", "remedy"), [*MISSPELT, *((url, PASSWORD, "a query parameter that neither") for url in REDIS_URLS)]
)
def test_an_unknown_query_parameter_is_refused(url: str, name: str, remedy: str) -> None:
    """It may be of a password, so it is not repeated."""
    with pytest.raises(ConfigurationError, match=remedy) as caught:
        make(f"{url}?{name}=2")
    assert PASSWORD not in str(caught.value)


SQLITE = partial(SQLiteStore, "sessions.db")
REDIS, POSTGRES = partial(RedisStore, "redis://host"), partial(PostgresStore, "postgresql://host/db")
WRONG: list[tuple[Callable[..., Store], str, Any, str]] = [
    *((SQLITE, "leeway", value, f"{value!r} must be a number of seconds, 0 or more") for value in (-1, math.nan)),
    *((SQLITE, "busy_timeout", value, "must be a number of seconds, more than 0") for value in (0, math.inf)),
    (SQLITE, "max_bytes", 1000, "max_bytes=1000 must be 262144 or more"),
    (SQLITE, "forgotten", "ignore", "forgotten='ignore' must be 'refuse' or 'accept'"),
    *((REDIS, "prefix", value, "prefix= must be text without braces") for value in ("", "a{b}:")),
    *((REDIS, "timeout", value, "timeout= must be a number of seconds above 0") for value in (0, math.nan)),
    (POSTGRES, "schema", "a b", "schema= must be lower-case letters"),
    *((kind, "connections", 0, "connections= must be at least 1") for kind in (REDIS, POSTGRES)),
    *((kind, "durability", "no", "must be one of 'warn', 'refuse', 'ignore'") for kind in (REDIS, POSTGRES)),
    *((kind, "forgotten", "no", "must be one of 'refuse', 'accept'") for kind in (REDIS, POSTGRES)),
]


@pytest.mark.parametrize(("kind", "option", "value", "remedy"), WRONG)
def test_a_wrong_option_is_refused_with_the_remedy(
    kind: Callable[..., Store], option: str, value: Any, remedy: str
) -> None:
    """At construction, before anything is made or connected to."""
    with pytest.raises(ConfigurationError, match=f"{option}=.*{re.escape(remedy.removeprefix(f'{option}='))}"):
        kind(**{option: value})


@pytest.mark.parametrize(
    ("kind", "driver", "command"),
    [(REDIS, "redis.asyncio.retry", "redis>=5.2"), (POSTGRES, "psycopg", "psycopg[binary]>=3.2")],
)
def test_a_missing_driver_is_named_with_the_command_that_installs_it(
    kind: Callable[..., Store], driver: str, command: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At construction."""
    monkeypatch.setitem(sys.modules, driver, None)
    with pytest.raises(ConfigurationError, match=re.escape(f'pip install "{command}"')):
        kind()
