"""A failed start shows no key and no password: not in errors, their causes, or the frames that reporters walk."""

import os
import time
from collections.abc import Callable, Iterator, Mapping
from types import TracebackType
from typing import Any, Final, cast
from unittest.mock import patch

import anyio
import pytest
from apps import Server
from signers import ED25519, OLD, private_pem
from starlette.applications import Starlette

from mcp_sessions import ConfigurationError, KeyRing, MCPSessionMiddleware, Sessions, Telemetry, add_sessions, from_env
from mcp_sessions.client import with_sessions
from mcp_sessions.handles import Handles
from mcp_sessions.stores import PostgresStore, RedisStore, make

PASSWORD: Final = "pw-9f83hd7"
PEM: Final = private_pem(ED25519)
MATERIAL: Final = PEM.splitlines()[1]
REDIS: Final = f"redis://:{PASSWORD}@127.0.0.1:1/0"
POSTGRES: Final = f"postgresql://ann:{PASSWORD}@127.0.0.1:1/db"
APP: Any = Server()


def opened(**options: Any) -> None:
    async def check() -> None:
        async with Sessions(**options) as sessions:
            await sessions.check()

    anyio.run(check)


def configured(**environ: str) -> Any:
    with patch.dict(os.environ, environ):
        return MCPSessionMiddleware.from_env(APP, keys=OLD)


FAILURES: Final[dict[str, Callable[[], object]]] = {
    "a wrong option": lambda: MCPSessionMiddleware(APP, keys=OLD, store=REDIS, lifetime=-1),
    "options that contradict": lambda: MCPSessionMiddleware(
        APP, keys=[OLD], store=POSTGRES, idle_timeout=99, lifetime=9
    ),
    "an unknown option": lambda: MCPSessionMiddleware(APP, keys=OLD, store=REDIS, other=1),  # type: ignore[call-arg]
    "no application": lambda: MCPSessionMiddleware(None, keys=PEM),  # type: ignore[arg-type]
    "a key twice": lambda: MCPSessionMiddleware(APP, keys=[OLD, OLD.encode()]),
    "a key of no text": lambda: MCPSessionMiddleware(APP, keys=f"{OLD}\ud800"),
    "a broken key": lambda: KeyRing([PEM.replace("PRIVATE KEY-----", "PRIVATE KEI-----")]),
    "a ring of a key twice": lambda: KeyRing([OLD, OLD]),
    "variables": lambda: configured(MCP_SESSIONS_STORE=REDIS, MCP_SESSIONS_LIFETIME="soon"),
    "from_env": lambda: from_env(keys=OLD, store=REDIS, other=1),  # type: ignore[call-arg]
    "add_sessions": lambda: add_sessions(Starlette(), keys=OLD, store=REDIS),
    "handles": lambda: Handles(OLD, lifetimes={"No": 1}),
    "an operator": lambda: Sessions(store=f"redis://:{PASSWORD}@host:port", keys=OLD),
    "an inspector": lambda: Telemetry(inspector="nowhere", inspector_token=f"{PASSWORD} {PASSWORD}"),
    "a Redis URL": lambda: make(f"redis://:{PASSWORD}@host:port", clock=float, timeout=1),
    "a Redis URL with a fragment": lambda: RedisStore(f"redis://:12#{PASSWORD}@host"),
    "a Sentinel URL": lambda: RedisStore(f"redis+sentinel://:{PASSWORD}@host"),
    "a cluster URL": lambda: RedisStore(f"redis+cluster://:{PASSWORD}@host/7"),
    "a Redis option": lambda: RedisStore(REDIS, connections=0),
    "a PostgreSQL URL": lambda: PostgresStore(f"{POSTGRES}?unknown=1"),
    "a PostgreSQL URL with a slash": lambda: PostgresStore(f"postgresql://ann:12/{PASSWORD}@host/db"),
    "a PostgreSQL option": lambda: PostgresStore(POSTGRES, schema="No"),
    "an unknown store": lambda: MCPSessionMiddleware(APP, keys=OLD, store=f"mysql://ann:{PASSWORD}@host"),
    "no Redis": lambda: opened(store=REDIS, keys=OLD),
    "no PostgreSQL": lambda: opened(store=POSTGRES, keys=OLD),
    "a client's URL": lambda: with_sessions(f"ftp://ann:{PASSWORD}@host/mcp"),
}


def frames(trace: TracebackType | None) -> Iterator[str]:
    """Every local variable, besides those of this file and of what watches tests."""
    while trace is not None:
        code = trace.tb_frame.f_code
        if "/tests/" not in code.co_filename:
            yield from (f"{code.co_name} {name} {value!r}" for name, value in trace.tb_frame.f_locals.items())
        trace = trace.tb_next


def shown(error: BaseException) -> Iterator[str]:
    """Everything that a reporter of errors could send: texts, attributes, causes and all local variables."""
    yield f"{error!r} {error} {vars(error)!r}"
    yield from frames(error.__traceback__)
    for further in {error.__cause__, error.__context__} - {None}:
        yield from shown(further)  # type: ignore[arg-type]


@pytest.mark.parametrize("fail", FAILURES.values(), ids=FAILURES)
def test_a_failed_start_shows_no_secret(fail: Callable[[], object], caplog: pytest.LogCaptureFixture) -> None:
    with pytest.raises(Exception) as failed:  # noqa: PT011  # of many kinds
        fail()
    texts = [*shown(failed.value), caplog.text]
    for secret in (OLD, PASSWORD, MATERIAL):
        assert [text for text in texts if secret in text] == []


def test_options_show_neither_keys_nor_store() -> None:
    """Error reporters show a mapping's values whatever its `repr` says, so options are none."""
    options = MCPSessionMiddleware(APP, keys=OLD, store=REDIS)._runtime.options
    assert options["keys"] == OLD
    assert not isinstance(cast(object, options), Mapping)
    assert repr(options) == "<CheckedOptions>"


# --- what a store's location shows ---------------------------------------------------------------

CUT: Final = (
    *("postgresql://app:{}/db", "postgresql://app:{}%40db.internal/x", "postgresql://u:{}:h/d", "postgresql://u:{}"),
    *("postgresql://app%3A{}%40db/x", "postgresql://u:x@{}@h/d", "postgresql://h/d?host=u:{}@h", "postgresql://h/u:{}"),
    *("postgresql://h/d?port={}", "postgresql://u:a,{}@b@h,h/d", "postgresql://u:a@@{}/d", "postgresql://h/d%20{}"),
    *("redis://app%3A{}%40127.0.0.1:1/0", "redis://app:{}%40127.0.0.1:1/0", "redis://?host=:{}@h", "redis://u:{}"),
    *("unix:///run/redis%3A{}%40s.sock", "redis+sentinel://u%3A{}%40h:1/name/0", "redis+cluster://u%3A{}%40h:1"),
    *("redis+sentinel://h:1/:{}%40name/0", "rediss://h%20{}/0", "redis://h/0?db={}", "redis://h/0?port={}"),
)
"""URLs whose passwords are cut off in another place than meant."""


@pytest.mark.parametrize("url", CUT)
def test_a_location_shows_no_part_of_a_password(url: str) -> None:
    with pytest.raises(ConfigurationError, match="URL") as caught:
        make(url.format(PASSWORD), clock=time.time, timeout=1)
    assert "pw-9" not in str(caught.value)


PLACES: Final = {
    "postgresql://u:pw@db.internal:5433/shop": "db.internal:5433/shop",
    "postgresql://u@h-1,10.0.0.1:5433/my_shop.eu-1": "h-1,10.0.0.1:,5433/my_shop.eu-1",
    "postgresql://[::1]:5432/d": "::1:5432/d",
    "postgresql://%2Fvar%2Frun%2Fpostgresql/d": "/var/run/postgresql:/d",
    "postgresql:///": ":/",
    "redis://:pw@redis_1.shop.svc.:6380/3": "redis_1.shop.svc.:6380, database 3",
    "redis://[fe80::1]/": "fe80::1:6379, database 0",
    "unix:///run/redis/redis-1.sock?db=2": "/run/redis/redis-1.sock, database 2",
    "redis+sentinel://:pw@s-1:26379,s-2/my-name/1": "'my-name' of the Sentinels s-1:26379, s-2:26379, database 1",
    "redis+cluster://:pw@10.0.0.1:7000": "cluster of 10.0.0.1:7000",
}


@pytest.mark.parametrize(("url", "shown"), PLACES.items())
def test_a_location_shows_host_port_and_database(url: str, shown: str) -> None:
    make(url, clock=time.time, timeout=1)
    store: Any = (PostgresStore if url.startswith("postgres") else RedisStore)(url)
    assert store.location.endswith(shown)
    assert "pw@" not in store.location
