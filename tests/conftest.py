"""Shared by all tests: async tests run on asyncio and on trio, and a leaked credential fails the run.

Hypothesis draws the same examples in every run and has no deadline; randomness is for `make fuzz`.
"""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, settings

pytest_plugins = ["leaks"]

settings.register_profile("suite", derandomize=True, deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("suite")


@pytest.fixture(params=["asyncio", "trio"])
def anyio_backend(request: pytest.FixtureRequest) -> str:
    """Run each async test on both; a test for one backend overrides this fixture and says why."""
    backend: str = request.param
    return backend
