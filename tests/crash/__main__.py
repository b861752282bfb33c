"""`python -m tests.crash`."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # the tests' own modules, as pytest finds them

from crash.trials import main

sys.exit(main())
