"""Shared by all tests: async tests run on asyncio and on trio, and a leaked credential fails the run.

Hypothesis draws the same examples in every run and has no deadline; randomness is for `make fuzz`.
"""

import os
import re

import pytest
from clients import Clock
from environments import lacking
from hypothesis import HealthCheck, settings

pytest_plugins = ["leaks"]
collect_ignore_glob = ["docs/examples/test_*.py"] if lacking("mcp>=2") else []  # which the examples are written for

if "PYTEST_XDIST_WORKER" in os.environ:  # programs that tests start are not measured, which would take twice as long
    os.environ.pop("COVERAGE_PROCESS_CONFIG", None)

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
    places = [(item, *_place(item)) for item in items]
    on_trio = {(table, row) for _, backend, table, row in places if backend == "trio"}
    tables: set[object] = set()
    for item, backend, table, row in places:
        if backend == "asyncio":
            if table in tables and (table, row) in on_trio:
                items.remove(item)
            tables.add(table)


def _place(item: pytest.Item) -> tuple[object, object, object]:
    """Return the backend of a test, which test it is with what it gets from fixtures, and its row of its own tables."""
    values = dict(getattr(getattr(item, "callspec", None), "params", {}))
    backend = values.pop("anyio_backend", None)
    named = [mark.args[0] for mark in item.iter_markers("parametrize")]
    tabled = {name for names in named for name in (re.findall(r"\w+", names) if isinstance(names, str) else names)}
    row = frozenset((name, id(value)) for name, value in values.items())
    return backend, (item.nodeid.partition("[")[0], frozenset(pair for pair in row if pair[0] not in tabled)), row
