"""Run the test suite in the environments that the package supports, and say what ran where: `python3 tests/matrix`."""

import sys
from pathlib import Path

if sys.version_info < (3, 10):  # noqa: UP036  # any python3 may start this file
    sys.exit("Python 3.10 or newer is needed; name one with: make PYTHON=python3.12 ...")

TESTS = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(TESTS), str(TESTS / "support")]  # the tests' own modules, as pytest finds them

from matrix.command import main

sys.exit(main())
