"""What became of each test, read from pytest's own record of a run.

A test that is skipped in every environment is a claim that nobody checks, so it is found here and fails the run.
"""

from __future__ import annotations

import re
import xml.etree.ElementTree as ET
from dataclasses import dataclass, field
from pathlib import Path

from matrix.environments import Environment
from matrix.steps import Step


@dataclass
class Run:
    """What one run of pytest did."""

    environment: Environment
    step: Step
    passed: set[str] = field(default_factory=set)
    failed: set[str] = field(default_factory=set)
    skipped: dict[str, str] = field(default_factory=dict)


def read_record(environment: Environment, step: Step, record: Path) -> Run:
    """Sort the test cases of pytest's own record by what became of them."""
    run = Run(environment, step)
    cases = ET.parse(record).iter("testcase") if record.exists() else ()
    for case in cases:
        name = "::".join(filter(None, (case.get("classname"), case.get("name"))))
        skipped = case.find("skipped")
        if case.find("failure") is not None or case.find("error") is not None:
            run.failed.add(name)
        elif skipped is not None:
            run.skipped[name] = skip_reason(skipped)
        else:
            run.passed.add(name)
    return run


def skip_reason(skipped: ET.Element) -> str:
    """Why a test was skipped; for a whole file pytest's record holds it in the text only."""
    whole_file = re.search(r"Skipped: (.*)['\"]\)\s*$", skipped.text or "")
    return whole_file.group(1) if whole_file else skipped.get("message") or "no reason given"


def run_nowhere(runs: list[Run]) -> list[str]:
    """The tests, or whole test files, that were skipped in every environment."""
    passed = set().union(*(run.passed | run.failed for run in runs))
    skipped = set().union(*(run.skipped for run in runs))
    return sorted(name for name in skipped if not any(stands_for(other, name) for other in passed))


def stands_for(ran: str, skipped: str) -> bool:
    """Whether what ran is what was skipped elsewhere: the same test, a test of that file, or a case of that table.

    Where no case of a table fits an environment, pytest skips one without a name, NOTSET.
    """
    table, bracket, _ = skipped.partition("[")
    if skipped.endswith("NOTSET]"):
        return ran.startswith(table + bracket)
    return ran == skipped or ran.startswith(f"{skipped}::")
