"""`python -m tests.tools.compatibility`."""

import sys
from pathlib import Path

TESTS = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(TESTS / folder) for folder in ("", "support", "tools")]  # as pytest finds the tests' modules

from compatibility.matrix import main

sys.exit(main())
