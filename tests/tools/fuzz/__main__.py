"""`python -m tests.tools.fuzz`. (The processes that are started do not import this file.)"""

import sys

from .campaign import main

sys.exit(main())
