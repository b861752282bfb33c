"""Fixtures of the tests of telemetry."""

from collections.abc import Iterator, Sequence
from typing import Any
from unittest.mock import patch

import pytest
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import ReadableSpan
from recorded import process_wide

from mcp_sessions.telemetry._context import process_aliases


@pytest.fixture
def spans() -> Iterator[list[ReadableSpan]]:
    """The spans that end during one test, from everything in this process."""
    with process_wide().recording() as kept:
        yield kept


@pytest.fixture(autouse=True)
def own_aliases() -> Iterator[None]:
    """Forget the aliases of a test's own processors."""
    process_wide()
    with patch.dict(process_aliases, clear=True):
        yield


class Meter:
    """A meter provider, and what has been measured."""

    def __init__(self) -> None:
        self._reader = InMemoryMetricReader()
        self.provider = MeterProvider([self._reader], shutdown_on_exit=False)

    def scoped(self) -> Any:
        """The metrics of our own scope, which is the only one."""
        data = self._reader.get_metrics_data()
        assert data is not None
        (scoped,) = data.resource_metrics[0].scope_metrics
        return scoped

    def found(self) -> dict[str, Any]:
        return {metric.name: metric for metric in self.scoped().metrics}

    def points(self, name: str) -> Sequence[Any]:
        found: Sequence[Any] = self.found()[name].data.data_points
        return found

    def counted(self, name: str, by: str) -> dict[str, int]:
        """The values of a counter that are more than 0, by an attribute."""
        return {point.attributes[by]: point.value for point in self.points(name) if point.value}


@pytest.fixture
def meter() -> Iterator[Meter]:
    meter = Meter()
    yield meter
    meter.provider.shutdown()
