"""What the middleware costs, measured side by side with what others cost: `make bench`."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "support"))  # the tests' own modules, as pytest finds them
