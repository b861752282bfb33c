"""A plugin for tests that run on every store, and on the event loops that each knows: `STORES` says which.

    pytest_plugins = ["on_every_store"]

A test that asks for `store`, or for `running`, runs on each. One that also asks for `other`, a second store at the same
place, runs on those that are shared.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from clients import Clock

from mcp_sessions.stores.base import Store
from stores import STORES, Kind, Place

DAY = 24 * 3600


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "running" in metafunc.fixturenames:
        on = [
            (name, backend)
            for name, kind in STORES.items()
            for backend in kind.backends
            if kind.shared or "other" not in metafunc.fixturenames
        ]
        metafunc.parametrize("running", on, ids="-".join, indirect=True)


@pytest.fixture
def running(request: pytest.FixtureRequest) -> tuple[str, str]:
    """The name of a store, and an event loop."""
    on: tuple[str, str] = request.param
    return on


@pytest.fixture
def kind(running: tuple[str, str]) -> Kind:
    return STORES[running[0]]


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def place(tmp_path: Path, clock: Clock) -> Place:
    return Place(tmp_path, clock)


@pytest.fixture
async def store(kind: Kind, place: Place, clock: Clock) -> AsyncIterator[Store]:
    """A store that was there for a day: what it holds nothing of, it has forgotten nothing of."""
    made = await kind.make(place)
    clock.now -= DAY
    await made.open()
    clock.now += DAY
    yield made
    await made.close()


@pytest.fixture
async def other(kind: Kind, place: Place, store: Store) -> AsyncIterator[Store]:
    """A second store at the same place."""
    made = await kind.make(place)
    yield made
    await made.close()
