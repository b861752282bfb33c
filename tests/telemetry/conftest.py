"""Fixtures of the tests of telemetry."""

from collections.abc import Iterator
from unittest.mock import patch

import pytest
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
