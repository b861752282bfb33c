"""`python -m mcp_sessions`: the command line, see `cli`."""

import sys

from ._cli import main

sys.exit(main())
