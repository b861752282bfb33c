"""`python -m tests.compatibility`."""

import sys
from pathlib import Path

TESTS = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(TESTS), str(TESTS / "support")]  # the tests' own modules, as pytest finds them

from compatibility.matrix import main

main()
