"""What `store=` may be, what becomes of it, and what is said of everything else."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import anyio.lowlevel
import pytest
from clients import Clock

from mcp_sessions import stores
from mcp_sessions._errors import ConfigurationError
from mcp_sessions.stores._base import Store, StoreScope
from mcp_sessions.stores._memory import MemoryStore
from mcp_sessions.stores._timeout import TimeoutStore

CLOCK = Clock()
PASSWORD = "a-password-of-the-store"


def make(store: object) -> Store:
    return stores.make(store, clock=CLOCK, timeout=1)


async def test_memory_needs_no_timeout() -> None:
    """It cannot hang, and one would cost more than the look-up; one of the user's own is taken as it is."""
    own = MemoryStore()
    assert isinstance(make("memory:"), MemoryStore)
    assert make(own) is own


async def test_sqlite_is_a_file_of_one_machine(tmp_path: Path) -> None:
    """Within a timeout; the path is taken as it stands."""
    store = make(f"sqlite:{tmp_path}/a b?.db")
    assert isinstance(store, TimeoutStore)
    assert store.scope is StoreScope.MACHINE
    await store.open()
    await store.close()
    assert (tmp_path / "a b?.db").exists()


@pytest.mark.parametrize("path", ["", "//", "///var/lib/sessions.db", ":memory:"])
def test_an_sqlite_path_that_others_read_otherwise_is_refused(path: str) -> None:
    """Three slashes mean a relative path to some and an absolute one to others."""
    with pytest.raises(ConfigurationError, match="takes a plain path, as in 'sqlite:/var/lib/app"):
        make(f"sqlite:{path}")


@pytest.mark.parametrize("anyio_backend", ["asyncio"])
@pytest.mark.parametrize(
    "url",
    [
        f"redis://user:{PASSWORD}@localhost:6379/0",
        f"rediss://:{PASSWORD}@localhost",
        f"unix://:{PASSWORD}@/run/redis.sock",
        f"redis+cluster://user:{PASSWORD}@localhost:6379",
    ],
)
async def test_redis_is_a_url_of_many_machines(url: str, anyio_backend: str) -> None:
    """In any of its forms, and within a timeout; nothing is connected to yet. Its driver knows asyncio alone."""
    store = make(url)
    assert isinstance(store, TimeoutStore)
    assert store.scope is StoreScope.NETWORK
    assert PASSWORD not in repr(store)
    await store.close()


@pytest.mark.parametrize(
    "text",
    [
        "",
        "memory",
        f"mysql://user:{PASSWORD}@host/db",
        f"REDIS://:{PASSWORD}@host",
        f" redis://:{PASSWORD}@host",
        f"redis:/:{PASSWORD}@host",
        "sessions.db",
    ],
)
def test_another_text_is_refused_and_not_repeated(text: str) -> None:
    """The message shows every form that there is; what was given may hold a password."""
    with pytest.raises(ConfigurationError) as caught:
        make(text)
    said = str(caught.value)
    assert all(
        form in said for form in ("'memory:'", "'sqlite:PATH'", "'redis://", "'rediss://'", "'redis+cluster://'")
    )
    assert PASSWORD not in said


def test_memory_has_no_parts() -> None:
    """Another name after the colon is not a second memory."""
    with pytest.raises(ConfigurationError, match="nothing after the colon"):
        make("memory:two")


class Own:
    """A store that somebody wrote; what it does is not looked at."""

    scope: Any = StoreScope.NETWORK

    async def method(self) -> None:
        await anyio.lowlevel.checkpoint()

    def __getattr__(self, name: str) -> Any:
        return self.method


async def test_an_object_with_every_method_is_a_store() -> None:
    """It gets a timeout, unless it comes with one."""
    store = make(Own())
    assert isinstance(store, TimeoutStore)
    assert make(store) is store
    await store.open()


def test_what_an_object_lacks_is_told() -> None:
    """All of it at once; an attribute that cannot be called is no method."""
    lacking = Own()
    lacking.__dict__.update(revoke=None, add=True)
    with pytest.raises(ConfigurationError, match=r"a Own, which lacks add, revoke; see mcp_sessions\.stores\.Store"):
        make(lacking)
    lacking.__dict__.update(scope="everywhere")
    with pytest.raises(ConfigurationError, match="lacks add, revoke, scope;"):
        make(lacking)


@pytest.mark.parametrize("store", [5, object(), 1.5])
def test_an_object_that_is_no_store_is_refused(store: object) -> None:
    """It lacks everything."""
    with pytest.raises(ConfigurationError, match="lacks add, claim_ended, close, compare_and_swap, copy, count"):
        make(store)


@pytest.mark.parametrize(("store", "what"), [(None, "None"), (MemoryStore, "a class"), (Own, "a class")])
def test_none_and_a_class_are_refused_with_the_remedy(store: object, what: str) -> None:
    """A class has the methods too, and nothing to call them on."""
    with pytest.raises(ConfigurationError, match=f"takes a store, not {what}; use 'memory:'"):
        make(store)


def test_drivers_are_imported_only_where_they_are_asked_for() -> None:
    """In a process of its own."""
    program = """
import sys, time
from mcp_sessions.stores import make
make("memory:", clock=time.time, timeout=1)
print(*sorted({"redis", "mcp_sessions.stores._sqlite", "mcp_sessions.stores._redis"} & set(sys.modules)))
"""
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert ended.stdout == "\n"
