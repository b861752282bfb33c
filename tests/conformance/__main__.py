"""`python -m tests.conformance`."""

import sys
import warnings
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # the tests' own modules, as pytest finds them
warnings.filterwarnings("ignore", message=".*deprecated as of 2026-07-28")  # the older requirement set asks for it

from conformance.comparison import main

sys.exit(main())
