"""Fixtures of the integration tests, and a filter for what the frameworks leave unclosed."""

import gc
from collections.abc import Iterator
from pathlib import Path

import pytest

_LEFT_BEHIND = pytest.mark.filterwarnings("ignore:Unclosed <MemoryObject:ResourceWarning")
_HERE = Path(__file__).parent


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The SDK drops some of its memory streams unclosed; the middleware has none."""
    for item in [item for item in items if _HERE in item.path.parents]:
        item.add_marker(_LEFT_BEHIND)


@pytest.fixture(scope="module", autouse=True)
def leave_nothing_for_others() -> Iterator[None]:
    """Collect what a module left while its filter is still in force."""
    yield
    gc.collect()


@pytest.fixture
def anyio_backend() -> str:
    """Asyncio alone: Uvicorn runs on nothing else, and the matrix is large. Files about tasks also run on trio."""
    return "asyncio"
