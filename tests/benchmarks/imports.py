"""How long `import mcp_sessions` takes when its dependencies are there already, and what it brings that is optional."""

from __future__ import annotations

import json
import subprocess
import sys
from statistics import median
from typing import Final

from .anchors import ANCHORS, machine_factor
from .report import Report, Table
from .size import Size
from .timing import race

DEPENDENCIES: Final = (
    "anyio, asgiref.typing, cryptography.hazmat.primitives.ciphers.aead, jwt, msgspec, opentelemetry.trace, "
    "starlette.requests, starlette.routing"
)
OPTIONAL: Final = ("fastapi", "fastmcp", "httpx", "mcp", "opentelemetry.sdk", "redis", "sqlite3")
_PROGRAM: Final = f"""
import {DEPENDENCIES}
import json, sys, time
before = time.process_time()
import mcp_sessions
taken = time.process_time() - before
print(json.dumps([taken * 1000, [name for name in {OPTIONAL} if name in sys.modules]]))
"""


async def imports(size: Size) -> Report:
    """In fresh interpreters."""
    found = [_import() for _ in range(size.imports)]
    taken, brought = [milliseconds for milliseconds, _ in found], found[0][1]
    machine = machine_factor(await race(ANCHORS, rounds=size.rounds, requests=size.requests))
    figures = {"import/ms": median(taken), "import/optional": float(len(brought)), "import/machine": machine}
    row = ("mcp_sessions", f"{median(taken):.0f}", f"{min(taken):.0f}", ", ".join(brought) or "none")
    columns = ("", "ms", "least", "optional libraries imported")
    return Report([Table("Import, over the dependencies", columns, [row])], figures)


def _import() -> tuple[float, list[str]]:
    done = subprocess.run([sys.executable, "-c", _PROGRAM], stdout=subprocess.PIPE, check=True)
    milliseconds, brought = json.loads(done.stdout)
    return milliseconds, brought
