"""The middleware does with every request of the corpus what was recorded."""

from __future__ import annotations

import pytest

from .families import FAMILIES
from .options import SETS
from .record import compare, read, replay


@pytest.mark.parametrize("family", FAMILIES)
def test_a_family_is_as_recorded(family: str) -> None:
    """Each request is answered, forwarded, logged and traced as recorded."""
    difference = compare(family, replay(family))
    assert difference is None, difference


def test_every_deployment_is_in_the_corpus() -> None:
    assert {line["at"].split("/")[0] for family in FAMILIES for line in read(family)} == set(SETS)
