"""`python -m tests.tools.conformance`."""

import sys
import warnings
from pathlib import Path

TESTS = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(TESTS / folder) for folder in ("", "support", "tools")]  # as pytest finds the tests' modules
warnings.filterwarnings("ignore", message=".*deprecated as of 2026-07-28")  # the older requirement set asks for it

from conformance.comparison import main

sys.exit(main())
