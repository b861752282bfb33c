"""`environments`: a test that lacks a requirement is skipped with the reason."""

from __future__ import annotations

import pytest
from environments import INSTALLED, go_without, lacking, needs, require


def test_a_met_requirement_lacks_nothing() -> None:
    """A distribution at a fitting version meets a requirement, whatever its spelling."""
    assert lacking("pytest>=8") is None
    assert lacking(f"PyTest=={INSTALLED['pytest']}") is None
    assert not needs("pytest>=8").args[0]
    require("pytest>=8")


@pytest.mark.parametrize(("requirement", "held"), [("pytest<1", INSTALLED["pytest"]), ("no-such-thing>=1", "(none)")])
def test_an_unmet_requirement_is_named_in_the_skip(requirement: str, held: str) -> None:
    """The reason of a skip names the requirement and the installed version."""
    reason = lacking(requirement)
    assert reason is not None
    assert reason.startswith(f"needs {requirement}; ")
    assert reason.endswith(f"{held} is installed")
    assert needs(requirement).args[0]
    with pytest.raises(pytest.skip.Exception, match="needs"):
        require(requirement)


def test_a_missing_program_skips_a_test_and_fails_it_in_ci(monkeypatch: pytest.MonkeyPatch) -> None:
    """A test without its program is skipped on a developer's machine and fails in CI, with the reason."""
    monkeypatch.delenv("CI", raising=False)
    with pytest.raises(pytest.skip.Exception, match="Redis cannot be tested: it is missing"):
        go_without("Redis", "it is missing")
    monkeypatch.setenv("CI", "true")
    with pytest.raises(pytest.fail.Exception, match="Redis cannot be tested: it is missing"):
        go_without("Redis", "it is missing")


def test_exactly_one_generation_of_the_sdk_is_installed() -> None:
    """Every environment has one SDK and the FastMCP that belongs to it."""
    generation = (INSTALLED["mcp"].split(".")[0], INSTALLED["fastmcp"].split(".")[0])
    assert generation in {("1", "3"), ("2", "4")}
