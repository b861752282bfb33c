"""The middleware does with every request of the corpus what was recorded."""

from __future__ import annotations

import pytest

from .families import FAMILIES
from .options import SETS
from .record import AT_LEAST, compare, read, replay


@pytest.mark.parametrize("family", FAMILIES)
def test_a_family_is_as_recorded(family: str) -> None:
    """Each request is answered, forwarded, logged and traced as recorded."""
    difference = compare(family, replay(family))
    assert difference is None, difference


def test_the_corpus_is_large() -> None:
    """The corpus holds thousands of requests, some of every deployment."""
    lines = [line["at"] for family in FAMILIES for line in read(family)]
    assert len(lines) >= AT_LEAST
    assert {line.split("/")[0] for line in lines} == set(SETS)
