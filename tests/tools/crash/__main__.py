"""`python -m tests.tools.crash`."""

import sys
from pathlib import Path

TESTS = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(TESTS / folder) for folder in ("", "support", "tools")]  # as pytest finds the tests' modules

from crash.trials import main

sys.exit(main())
