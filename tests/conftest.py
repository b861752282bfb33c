"""Shared by all tests: async tests run on asyncio and on trio, and a leaked credential fails the run.

Hypothesis draws the same examples in every run and has no deadline; randomness is for `make fuzz`.
"""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, settings

pytest_plugins = ["leaks"]

settings.register_profile(
    "suite", derandomize=True, deadline=None, max_examples=50, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("suite")

SLOW = {"tools", "examples", "test_javascript_clients.py", "test_packaging.py", "test_types.py"}
"""Folders and files that take longest: they start first, so that no process is left alone with one at the end."""


@pytest.fixture(params=["asyncio", "trio"])
def anyio_backend(request: pytest.FixtureRequest) -> str:
    """Run each async test on both; a test for one backend overrides this fixture and says why."""
    backend: str = request.param
    return backend


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Run the first row of a table on both backends, and the others on trio alone: rows differ in values.

    It is trio since Python 3.11 traces no more of a task of asyncio in which something was cancelled.
    """
    items[:] = [item for item in items if not (isinstance(item, pytest.Function) and _repeats(item))]
    items.sort(key=lambda item: SLOW.isdisjoint(item.path.parts))


def _repeats(item: pytest.Function) -> bool:
    rows = getattr(item, "callspec", None)
    if rows is None or rows.params.get("anyio_backend") != "asyncio":
        return False
    tables = {name.strip() for mark in item.iter_markers("parametrize") for name in _names(mark.args[0])}
    return "anyio_backend" not in tables and any(rows.indices.get(name) for name in tables)


def _names(given: str | tuple[str, ...]) -> list[str]:
    return given.split(",") if isinstance(given, str) else [*given]
