"""`python -m tests.compatibility`."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # the tests' own modules, as pytest finds them

from compatibility.matrix import main

main()
