"""What a store on Redis says of a server that cannot promise it."""

from __future__ import annotations

import asyncio
import logging
import ssl
import time
from collections.abc import Iterator
from typing import Any, cast

import pytest
import redis_servers
from clients import Clock
from crash.faults import until, watching
from redis_servers import HOST, Server, serving

from mcp_sessions._errors import ConfigurationError, StoreFull, StoreUnavailable
from mcp_sessions._server.lifecycle import Terminator
from mcp_sessions._server.resumption import Streams
from mcp_sessions._session.claims import Claims
from mcp_sessions._session.data import Data, Namespace
from mcp_sessions.stores import make
from mcp_sessions.stores._base import SessionStatus
from mcp_sessions.stores._redis import RedisStore
from mcp_sessions.stores._redis_connection import cause_of
from mcp_sessions.testing._contract import revoke

LATER = 1_900_000_000
ONE = Claims(
    kind="session", issuer="mcp-sessions", audience="mcp-sessions", jti="one", issued_at=LATER, expires_at=LATER + 3600
)
TWO = Claims(
    kind="session", issuer="mcp-sessions", audience="mcp-sessions", jti="two", issued_at=LATER, expires_at=LATER + 3600
)
SHELF = Namespace("ses_one", LATER + 3600, 100)


@pytest.fixture
def anyio_backend() -> str:
    """The driver knows asyncio alone."""
    return "asyncio"


@pytest.fixture
def server() -> Iterator[Server]:
    with serving(appendonly="yes", appendfsync="always") as own:
        yield own


class Losing:
    """A client whose answers to changes get lost for some time."""

    def __init__(self, store: RedisStore) -> None:
        self._client = store._connection._client
        self.remaining = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._client, name)

    async def pipeline(self, commands: Any) -> Any:
        results = await self._client.pipeline(commands)
        if self.remaining:
            self.remaining -= 1
            raise TimeoutError
        return results


async def test_a_delete_without_an_answer_runs_its_on_end_once(server: Server) -> None:
    """The worker goes on asking; who asks again is the second then."""
    own = RedisStore(server.url, timeout=5)
    await own.open()
    own._connection._client = losing = cast("Any", Losing(own))
    store, ran = make(own, clock=time.time, timeout=5), list[str]()

    def data(owner: str, until: int) -> Data:
        return Data(store, Namespace(owner, until, 100), clock=time.time, max_value_bytes=100)

    terminator = Terminator(
        store,
        Streams(store),
        on_end=lambda session, reason: ran.append(reason),
        emit=lambda fact: None,
        data=data,
        clock=time.time,
        pause=0.05,
    )
    losing.remaining = 2
    with pytest.raises(StoreUnavailable):
        await terminator.end(ONE, "deleted")
    await until(lambda: bool(ran))
    await terminator.end(ONE, "deleted again")
    assert ran == ["deleted"]
    await store.close()


async def test_a_full_store_is_not_asked_again(server: Server) -> None:
    """It has taken nothing, and says so."""
    store = make(server.url, clock=time.time, timeout=5)
    await store.open()
    server.command("CONFIG", "SET", "maxmemory", "1mb")
    terminator = Terminator(
        store,
        Streams(store),
        on_end=None,
        emit=lambda fact: None,
        data=lambda *_: None,  # type: ignore[arg-type]
        clock=time.time,
    )
    with pytest.raises(StoreFull):
        await terminator.end(ONE, "deleted")
    await store.close()


async def test_a_worker_remembers_a_bounded_number_of_unknown_outcomes(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The oldest is forgotten first: its `on_end` is then not run by who asks again."""
    monkeypatch.setattr("mcp_sessions.stores._redis._MAX_UNSURE", 1)
    store = RedisStore(server.url, timeout=5)
    await store.open()
    store._connection._client = losing = cast("Any", Losing(store))
    losing.remaining = 2
    for each in (ONE, TWO):
        with pytest.raises(StoreUnavailable):
            await revoke(store, each)
    assert [*store._unsure] == [TWO.ref]
    await store.close()


async def test_sentinels_name_the_server_and_what_they_are_asked_is_in_the_url(
    server: Server, caplog: pytest.LogCaptureFixture
) -> None:
    """A name that they do not know is a fault with a place and a cause."""
    with watching(server) as sentinel:
        where = f"redis+sentinel://u:p@{HOST}:{sentinel.port},{HOST}:1/sessions"
        assert "u:p" not in RedisStore(where).location
        store = RedisStore(f"redis+sentinel://{HOST}:{sentinel.port},{HOST}:1/sessions/0")
        assert await revoke(store, ONE)
        await store.close()
        strange = make(f"redis+sentinel://{HOST}:{sentinel.port}/strange", clock=Clock(), timeout=1)
        for _ in range(2):
            with pytest.raises(StoreUnavailable):
                await strange.status(ONE)
        await strange.close()
    (said,) = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
    assert f"Redis 'strange' of the Sentinels {HOST}:{sentinel.port}, database 0" in said


@pytest.mark.parametrize("rest", ["host:26379", "host:26379/", ":26379/name", "host:26379/name/zero"])
def test_a_sentinel_url_needs_hosts_and_a_name(rest: str) -> None:
    """Or it cannot be read."""
    with pytest.raises(ConfigurationError, match="not a valid Redis URL"):
        RedisStore(f"redis+sentinel://{rest}")


async def test_tls_goes_with_a_cluster() -> None:
    """By the URL's two letters s; who vouches for it is a parameter."""
    with serving(tls=True, cluster=True, tls_cluster="yes") as own:
        url = own.url.replace("rediss://", "rediss+cluster://")
        store = RedisStore(url, timeout=10)
        assert await revoke(store, ONE)
        await store.close()


async def causes(url: str) -> str:
    """Return what the log says of the first request."""
    store = RedisStore(url, timeout=5)
    with pytest.raises(StoreUnavailable) as caught:
        await store.status(ONE)
    await store.close()
    return caught.value.cause


async def test_a_fault_is_logged_with_its_cause() -> None:
    """What is wrong with TLS, the database's number, the host's name; a closed port; a user without rights."""
    with serving(tls=True) as own:
        assert (await causes(own.url.partition("?")[0])).startswith("TLS: ")
    url = redis_servers.shared().url
    assert await causes(f"{url}/99") == "it has no database with this number"
    assert await causes("redis://no-such-host.invalid") == "its host name is unknown"
    assert await causes(f"redis://{HOST}:1") == "Connection refused"
    assert "check the user" in await causes(url.replace("://", "://nobody:no@"))
    assert cause_of(KeyError("a"), "store_error") == "KeyError"
    assert (
        cause_of(ssl.SSLError(1, "wrong"), "store_unreachable") == "TLS: the server does not speak it, or not correctly"
    )


async def test_a_server_that_is_loading_is_busy_and_has_lost_nothing(server: Server) -> None:
    """What it says of itself meanwhile is not believed: a session lives on afterwards, and a deleted one does not."""
    store = RedisStore(server.url, timeout=10)
    await store.open()
    assert await revoke(store, ONE)
    server.command("EVAL", "for i = 1, 5000 do redis.call('SET', 'other' .. i, i) end", 0)
    server.kill9()
    starting = asyncio.create_task(asyncio.to_thread(server.restart, key_load_delay=500))
    reasons = set()
    while not starting.done():
        try:
            await store.status(ONE)
        except StoreUnavailable as error:
            reasons.add(error.reason)
        await asyncio.sleep(0.02)
    await starting
    assert "store_loading" in reasons
    assert await store.statuses([ONE, TWO]) == [SessionStatus.ENDED, SessionStatus.LIVE]
    await store.close()
