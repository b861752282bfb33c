"""`python -m tests.tools.benchmarks`."""

import sys

from .command import main

sys.exit(main())
