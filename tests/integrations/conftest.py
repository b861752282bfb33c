"""How the tests of the integrations run."""

from __future__ import annotations

import pytest


@pytest.fixture
def anyio_backend() -> str:
    """asyncio, for time's sake: where the middleware stands does not depend on the event loop."""
    return "asyncio"
