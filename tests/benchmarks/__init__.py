"""What the middleware costs, measured side by side with what others cost: `make bench`."""

import sys
from pathlib import Path

TESTS = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(TESTS), str(TESTS / "support")]  # the tests' own modules, as pytest finds them
