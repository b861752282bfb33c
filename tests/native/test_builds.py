"""The native reader is built and loaded only where it can run."""

from __future__ import annotations

import runpy
from pathlib import Path
from typing import Any

import pytest

setuptools = pytest.importorskip("setuptools", reason="nothing builds here")
SETUP = Path(__file__).resolve().parents[2] / "setup.py"


@pytest.mark.parametrize(("disabled", "is_built"), [(1, False), (0, True), (None, True)])
def test_a_free_threaded_build_leaves_it_out(
    disabled: int | None, is_built: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It has no limited API."""
    given: dict[str, Any] = {}
    monkeypatch.setenv("MCP_SESSIONS_NATIVE", "1")
    monkeypatch.setattr("sysconfig.get_config_var", lambda name: disabled)
    monkeypatch.setattr(setuptools, "setup", given.update)
    runpy.run_path(str(SETUP))
    assert ("ext_modules" in given) is is_built
