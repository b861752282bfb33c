"""What is installed beside the package, and which tests need what.

The suite runs in several environments (see `tests/noxfile.py`). A test that needs one of them says so with `needs`, a
whole file with `require`; both name the requirement in the skip, and a test that is skipped in all of them shows up as
lines that coverage misses. No requirement is decided by trying an import: a broken install must fail, not skip.
"""

from __future__ import annotations

import os
from importlib.metadata import distributions
from typing import NoReturn

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

INSTALLED: dict[str, str] = {canonicalize_name(d.name): d.version for d in distributions()}


def lacking(requirement: str) -> str | None:
    """Why `requirement`, such as `"mcp>=2"`, is not met here, or None where it is met."""
    wanted = Requirement(requirement)
    version = INSTALLED.get(canonicalize_name(wanted.name))
    if version is not None and wanted.specifier.contains(version, prereleases=True):
        return None
    return f"needs {requirement}; {wanted.name} {version or '(none)'} is installed"


def needs(requirement: str) -> pytest.MarkDecorator:
    """Mark a test, or a file by `pytestmark`, as one that runs only where `requirement` is met."""
    reason = lacking(requirement)
    return pytest.mark.skipif(reason is not None, reason=reason or requirement)


def require(requirement: str) -> None:
    """Skip the rest of a test file whose imports already need `requirement`. To be called before them."""
    reason = lacking(requirement)
    if reason is not None:
        pytest.skip(reason, allow_module_level=True)


def go_without(what: str, why: str) -> NoReturn:
    """Skip a test for want of a program, and say what is not tested; in CI, where nobody reads of a skip, fail."""
    if os.environ.get("CI"):
        pytest.fail(f"{what} cannot be tested: {why}")
    pytest.skip(f"{what} cannot be tested: {why}")
