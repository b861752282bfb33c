"""`python -m tests.corpus` compares, and with `--write` records."""

import argparse
import sys
from pathlib import Path

TESTS = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(TESTS), str(TESTS / "support")]  # the tests' own modules, as pytest finds them

from .families import FAMILIES
from .record import compare, count, replay, write


def main() -> int:
    """Replay every family, and return 1 where something differs."""
    parser = argparse.ArgumentParser(prog="python -m tests.corpus")
    parser.add_argument("--write", action="store_true", help="record what the code does now")
    parser.add_argument("families", nargs="*", default=[*FAMILIES], help="which families; all by default")
    given = parser.parse_args()
    played = {family: replay(family) for family in given.families}
    if given.write:
        for family, lines in played.items():
            write(family, lines)
    differences = [found for family, lines in played.items() if (found := compare(family, lines))]
    print(*differences, count(played.values()), sep="\n")
    return 1 if differences else 0


sys.exit(main())
