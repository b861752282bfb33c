"""`python -m tests.conformance`."""

import sys
import warnings
from pathlib import Path

TESTS = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(TESTS), str(TESTS / "support")]  # the tests' own modules, as pytest finds them
warnings.filterwarnings("ignore", message=".*deprecated as of 2026-07-28")  # the older requirement set asks for it

from conformance.comparison import main

sys.exit(main())
