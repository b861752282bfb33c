"""A client example as a command: what it tells, without the times and the padding."""

from __future__ import annotations

import re
import subprocess
import sys
from importlib import import_module

from example_servers import EXAMPLES


def told_by(name: str) -> list[str]:
    """The lines of an example's timeline. It must end well, and show no part of a session id."""
    import_module(name)  # which tells nothing
    command = [sys.executable, str(EXAMPLES / f"{name}.py")]
    done = subprocess.run(command, capture_output=True, encoding="utf-8", timeout=120, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert not re.search(r"[0-9a-zA-Z_-]{25}", done.stdout)
    lines = (re.sub(r"^ *[0-9.]+ s +", "", line) for line in done.stdout.splitlines())
    return [re.sub(r" +", " ", line) for line in lines if line]
