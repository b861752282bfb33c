"""Run the test suite in the environments that the package supports, and say what ran where: `python3 tests/matrix`."""

import sys
from pathlib import Path

if sys.version_info < (3, 10):  # noqa: UP036  # any python3 may start this file
    sys.exit("Python 3.10 or newer is needed; name one with: make PYTHON=python3.12 ...")

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # the tests' own modules, as pytest finds them

from matrix.command import main

sys.exit(main())
