"""`python -m tests.benchmarks`."""

import sys

from .command import main

sys.exit(main())
