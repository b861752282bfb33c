"""What every test file shares: async tests run on asyncio and on trio."""

from __future__ import annotations

import pytest


@pytest.fixture(params=["asyncio", "trio"])
def anyio_backend(request: pytest.FixtureRequest) -> str:
    """Each async test runs twice; a test that must not overrides this fixture and says why."""
    backend: str = request.param
    return backend
