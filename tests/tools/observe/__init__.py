"""Sessions in real observability tools: two replicas of four kinds of server, and what the tools themselves show.

    python -m tests.tools.observe [--only phoenix mlflow logfire] [--no-pictures] [--no-wait]

It runs nightly and not in the gate, since it installs each tool from PyPI into a virtual environment of its own.
"""

import sys
from pathlib import Path

TESTS = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(TESTS / folder) for folder in ("", "support", "tools")]  # as pytest finds the tests' modules
