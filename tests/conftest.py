"""Shared by all tests: async tests run on asyncio and on trio, and a leaked credential fails the run.

Hypothesis draws the same examples in every run and has no deadline; randomness is for `make fuzz`.
"""

from __future__ import annotations

from collections.abc import Collection

import pytest
from clients import Clock
from hypothesis import HealthCheck, settings

pytest_plugins = ["leaks"]

settings.register_profile(
    "suite", derandomize=True, deadline=None, max_examples=50, suppress_health_check=[HealthCheck.too_slow]
)
settings.register_profile("fuzz", settings.get_profile("suite"), derandomize=False, max_examples=5_000)
settings.load_profile("suite")


@pytest.fixture(params=["asyncio", "trio"])
def anyio_backend(request: pytest.FixtureRequest) -> str:
    """Run each async test on both; a test for one backend overrides this fixture and says why."""
    backend: str = request.param
    return backend


@pytest.fixture
def clock() -> Clock:
    """A clock that the test moves."""
    return Clock()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Run the first row of a table on both backends, and the others on trio alone: rows differ in values.

    It is trio since Python 3.11 traces no more of a task of asyncio in which something was cancelled. What does not run
    on trio runs on asyncio.
    """
    on_trio = {_row(item) for item in items if _backend(item) == "trio"}
    tables: set[object] = set()
    for item in [item for item in items if _backend(item) == "asyncio"]:
        table = _row(item, but=_tabled(item))
        if table in tables and _row(item) in on_trio:
            items.remove(item)
        tables.add(table)


def _backend(item: pytest.Item) -> object:
    return _values(item).get("anyio_backend")


def _values(item: pytest.Item) -> dict[str, object]:
    rows = getattr(item, "callspec", None)
    return {} if rows is None else rows.params


def _row(item: pytest.Item, but: Collection[str] = ()) -> tuple[str, frozenset[tuple[str, int]]]:
    """Return a test and which values it gets, whatever its backend."""
    values = {(name, id(value)) for name, value in _values(item).items() if name not in {"anyio_backend", *but}}
    return item.nodeid.partition("[")[0], frozenset(values)


def _tabled(item: pytest.Item) -> set[str]:
    """Return the names whose values are in tables of the test's own."""
    tabled: set[str] = set()
    for mark in item.iter_markers("parametrize"):
        names = mark.args[0]
        tabled.update(names.replace(" ", "").split(",") if isinstance(names, str) else names)
    return tabled
