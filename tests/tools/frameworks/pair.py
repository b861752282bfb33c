"""Run one program twice at the same time in one process, as two clients: `python pair.py program.py distribution`.

Prints one line of JSON: the version of the distribution, and what each of the two printed.
"""

from __future__ import annotations

import json
import sys
import threading
from importlib.metadata import version
from pathlib import Path
from typing import Any


def pair(program: Path) -> list[list[str]]:
    """Return what each of two runs printed, as far as it came; errors go to standard error."""
    code = compile(program.read_text("utf-8"), str(program), "exec", dont_inherit=True)
    printed: list[list[str]] = [[], []]
    runs = [threading.Thread(target=exec, args=(code, _names(lines))) for lines in printed]
    for run in runs:
        run.start()
    for run in runs:
        run.join()
    return printed


def _names(lines: list[str]) -> dict[str, Any]:
    return {"__name__": "__main__", "print": lambda line: lines.append(str(line))}


if __name__ == "__main__":
    found = pair(Path(sys.argv[1]))
    print(json.dumps({"version": version(sys.argv[2]), "printed": found}))
