"""How long `import mcp_sessions` takes when its dependencies are there already, and what it brings that is optional.

Processor time in fresh interpreters, with compiled files in place, as every start but the first after an installation
finds them. What of the standard library nothing has imported before counts as ours.
"""

from __future__ import annotations

import json
from statistics import median
from typing import Final

from .children import output
from .report import Report, Table
from .size import Size

DEPENDENCIES: Final = (
    "anyio, asgiref.typing, cryptography.hazmat.primitives.ciphers.aead, jwt, msgspec, opentelemetry.trace, "
    "starlette.requests, starlette.routing"
)
OPTIONAL: Final = ("fastapi", "fastmcp", "httpx", "mcp", "opentelemetry.sdk", "redis", "sqlite3")
_PROGRAM: Final = f"""
import {DEPENDENCIES}
import json, sys, time
before, known = time.process_time(), set(sys.modules)
import mcp_sessions
taken = time.process_time() - before
brought = sys.modules.keys() - known
own = sum(name.startswith("mcp_sessions") for name in brought)
print(json.dumps([taken * 1000, [name for name in {OPTIONAL} if name in sys.modules], own, len(brought) - own]))
"""


async def imports(size: Size) -> Report:
    """Import in fresh interpreters, the first of which leaves the compiled files behind."""
    _, *found = [json.loads(output(_PROGRAM)) for _ in range(1 + size.imports)]
    taken = [milliseconds for milliseconds, *_ in found]
    _, brought, own, others = found[0]
    row = ("mcp_sessions", f"{median(taken):.0f}", f"{min(taken):.0f}", own, others, ", ".join(brought) or "none")
    columns = ("", "ms", "least", "modules", "of others", "optional libraries")
    figures = {"import/ms": median(taken), "import/optional": float(len(brought))}
    return Report([Table("Import, over the dependencies", columns, [tuple(map(str, row))])], figures)
