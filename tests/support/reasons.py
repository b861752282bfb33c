"""Expecting a refusal by its reason, which distinguishes those of one class."""

import pytest

from mcp_sessions._errors import Refusal


def refused(reason: str) -> pytest.RaisesExc[Refusal]:
    """Expect the refusal with this reason, as a context manager."""
    return pytest.raises(Refusal, check=lambda refusal: refusal.reason == reason)
