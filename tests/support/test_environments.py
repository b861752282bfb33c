"""The suite knows what is installed, and says why a test does not run."""

from __future__ import annotations

import pytest
from environments import INSTALLED, lacking, needs, require


def test_a_requirement_that_is_met_lacks_nothing() -> None:
    """What is installed at a fitting version runs."""
    assert lacking("pytest>=8") is None
    assert lacking(f"PyTest=={INSTALLED['pytest']}") is None
    assert not needs("pytest>=8").args[0]
    require("pytest>=8")


@pytest.mark.parametrize(("requirement", "held"), [("pytest<1", INSTALLED["pytest"]), ("no-such-thing>=1", "(none)")])
def test_a_requirement_that_is_not_met_is_named_in_the_skip(requirement: str, held: str) -> None:
    """The reason of a skip says what was asked for and what is there."""
    reason = lacking(requirement)
    assert reason is not None
    assert reason.startswith(f"needs {requirement}; ")
    assert reason.endswith(f"{held} is installed")
    assert needs(requirement).args[0]
    with pytest.raises(pytest.skip.Exception, match="needs"):
        require(requirement)


def test_exactly_one_generation_of_the_sdk_is_installed() -> None:
    """Every environment holds one SDK and the FastMCP that goes with it."""
    generation = (INSTALLED["mcp"].split(".")[0], INSTALLED["fastmcp"].split(".")[0])
    assert generation in {("1", "3"), ("2", "4")}
