"""What every test file shares: async tests run on asyncio and on trio, and no test may leak a credential."""

from __future__ import annotations

import pytest

pytest_plugins = ["leaks"]


@pytest.fixture(params=["asyncio", "trio"])
def anyio_backend(request: pytest.FixtureRequest) -> str:
    """Each async test runs twice; a test that must not overrides this fixture and says why."""
    backend: str = request.param
    return backend
