"""Applications under a real Uvicorn that are expected to end by themselves."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path


def start(folder: Path, source: str, app: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Serve the application `app` of a module that is written to `folder`, and return the ended process.

    Raises:
        subprocess.TimeoutExpired: The server went on serving.
    """
    (folder / "served.py").write_text(source, encoding="utf-8")
    command = [sys.executable, "-m", "uvicorn", f"served:{app}", "--app-dir", str(folder), "--port", "0", *arguments]
    return subprocess.run(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, encoding="utf-8", timeout=300, check=False
    )
