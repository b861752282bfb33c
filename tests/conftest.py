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

    It is trio since Python 3.11 traces no more of a task of asyncio in which something was cancelled. What does not run
    on trio runs on asyncio.
    """
    on_trio = {_row(item) for item in items if _backend(item) == "trio"}
    items[:] = [
        item for item in items if not (_backend(item) == "asyncio" and _row(item) in on_trio and _is_later(item))
    ]


def _backend(item: pytest.Item) -> object:
    rows = getattr(item, "callspec", None)
    return None if rows is None else rows.params.get("anyio_backend")


def _row(item: pytest.Item) -> tuple[str, tuple[tuple[str, int], ...]]:
    """Return a test and its values, whatever its backend."""
    rows: dict[str, int] = item.callspec.indices  # type: ignore[attr-defined]  # which those with a backend have
    others = sorted((name, index) for name, index in rows.items() if name != "anyio_backend")
    return item.nodeid.partition("[")[0], tuple(others)


def _is_later(item: pytest.Item) -> bool:
    """Whether it is not the first row of a table, other than one of backends."""
    tables = {name.strip() for mark in item.iter_markers("parametrize") for name in _names(mark.args[0])}
    return "anyio_backend" not in tables and any(index for name, index in _row(item)[1] if name in tables)


def _names(given: str | tuple[str, ...]) -> list[str]:
    return given.split(",") if isinstance(given, str) else [*given]
