"""What is installed beside the package, and which tests need what.

The suite runs in several environments (see `noxfile.py`). A test names its requirement with `needs`, a file with
`require`. Requirements are read from metadata instead of tried imports: a broken install must fail, not skip.
"""

import os
from importlib.metadata import distributions
from pathlib import Path
from typing import NoReturn

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

import debian

INSTALLED: dict[str, str] = {canonicalize_name(d.name): d.version for d in distributions()}


def lacking(requirement: str) -> str | None:
    """Return why `requirement`, such as `"mcp>=2"`, is not met here, or None where it is met."""
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
    """Skip the rest of a test file whose imports need `requirement`; call it before them."""
    reason = lacking(requirement)
    if reason is not None:
        pytest.skip(reason, allow_module_level=True)


def go_without(what: str, why: str) -> NoReturn:
    """Skip a test for want of a program with the reason; fail in CI, where a skip would go unnoticed."""
    if os.environ.get("CI"):
        pytest.fail(f"{what} cannot be tested: {why}")
    pytest.skip(f"{what} cannot be tested: {why}")


def program(name: str) -> Path:
    """Return the path of an installed program, or skip the test; in CI it fails."""
    try:
        return debian.install(name)
    except debian.NotInstalled as missing:
        go_without(name, str(missing))
