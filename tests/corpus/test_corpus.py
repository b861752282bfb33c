"""The middleware does with every request of the corpus what was recorded."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from .families import FAMILIES
from .options import SETS
from .record import AT_LEAST, RECORDED, compare, read, replay, write

ROOT = Path(__file__).parents[2]
SOME = ("renewed", "streams", "bridge", "routed")


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


def test_a_difference_is_shown(tmp_path: Path) -> None:
    """The first request that differs is named, with what was expected and what came."""
    played = replay("routed")
    write("routed", played, tmp_path)
    assert compare("routed", played, tmp_path) is None
    assert (
        compare("routed", played[:-1], tmp_path) == f"routed: {len(played)} requests recorded, {len(played) - 1} played"
    )
    changed = [played[0], {**played[1], "log": ["ERROR"]}, *played[2:]]
    shown = compare("routed", changed, tmp_path)
    assert shown is not None
    assert shown.startswith(f"routed: {played[1]['at']}\n  log\n    expected")


def test_the_recording_is_the_same_in_another_process(tmp_path: Path) -> None:
    """Another process, with another order of sets, records the same bytes."""
    command = [sys.executable, "-m", "tests.corpus", "--write", "--folder", str(tmp_path), *SOME]
    environment = {**os.environ, "PYTHONHASHSEED": "1"}
    subprocess.run(command, cwd=ROOT, env=environment, check=True, capture_output=True)
    compared = [sys.executable, "-m", "tests.corpus", "--folder", str(tmp_path), SOME[0]]
    subprocess.run(compared, cwd=ROOT, env=environment, check=True, capture_output=True)
    for family in SOME:
        assert (tmp_path / f"{family}.jsonl").read_bytes() == (RECORDED / f"{family}.jsonl").read_bytes()
