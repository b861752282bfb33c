"""What the middleware costs, measured side by side with what others cost: `make bench`."""

import sys
from pathlib import Path

TESTS = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(TESTS / folder) for folder in ("", "support")]  # as pytest finds the tests' modules
