"""Fixtures of the tests of telemetry."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import ReadableSpan
from recorded import process_wide

from mcp_sessions.telemetry._context import process_aliases


@pytest.fixture
def spans() -> Iterator[list[ReadableSpan]]:
    """The spans that end during one test, from everything in this process."""
    with process_wide().recording() as kept:
        yield kept


@pytest.fixture(autouse=True)
def own_provider(monkeypatch: pytest.MonkeyPatch) -> None:
    """Forget what a test makes the process's provider."""
    monkeypatch.setattr(trace, "get_tracer_provider", trace.get_tracer_provider)


@pytest.fixture(autouse=True)
def own_aliases() -> Iterator[None]:
    """Forget the aliases of a test's own processors."""
    process_wide()
    before = dict(process_aliases)
    process_aliases.clear()
    yield
    process_aliases.clear()
    process_aliases.update(before)
