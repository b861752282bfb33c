"""What every test file shares: async tests run on asyncio and on trio, and no test may leak a credential.

Neither chance nor a slow machine fails a test: what Hypothesis thinks of is the same in every run, in whatever time it
takes. Chance is for `make fuzz`.
"""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, settings

pytest_plugins = ["leaks"]

settings.register_profile("suite", derandomize=True, deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("suite")


@pytest.fixture(params=["asyncio", "trio"])
def anyio_backend(request: pytest.FixtureRequest) -> str:
    """Each async test runs twice; a test that must not overrides this fixture and says why."""
    backend: str = request.param
    return backend
