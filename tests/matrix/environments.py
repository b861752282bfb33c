"""The virtual environments: what stands in each, and with which Python it is made.

One SDK and one FastMCP fit into one environment, so there are two: `main` (mcp 2.x with FastMCP 4) and `legacy` (mcp
1.x with FastMCP 3). `lowest` is the legacy one with every dependency of the package at its lower bound. Nothing is made
here, only looked for.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
MINORS = range(10, 15)
SPECS: dict[str, tuple[str, ...]] = {
    "main": ("-e", ".[dev]"),
    "legacy": ("-e", ".[fastapi,redis,test]", "mcp>=1.27,<2", "fastmcp>=3,<4"),
}
EVERYDAY = ("main", "legacy")  # together they run every test


@dataclass(frozen=True)
class Environment:
    """One virtual environment: a spec, made with one Python."""

    spec: str
    base: Path
    version: str
    folder: Path

    @property
    def name(self) -> str:
        """What the table calls it."""
        return self.folder.name.removeprefix(".venv").lstrip("-") or "main"

    @property
    def python(self) -> Path:
        """Its interpreter."""
        return self.folder / "bin" / "python"

    @property
    def requirements(self) -> tuple[str, ...]:
        """What pip is asked to install."""
        return SPECS[self.spec] if self.spec in SPECS else (*SPECS["legacy"], *lower_bounds())

    @property
    def fingerprint(self) -> str:
        """Changes when what is to be installed changes."""
        facts = (self.version, str(self.base), self.requirements, (ROOT / "pyproject.toml").read_text("utf-8"))
        return hashlib.sha256(repr(facts).encode()).hexdigest()


def lower_bounds() -> list[str]:
    """The package's own dependencies, each at exactly the oldest version that it says it works with."""
    _, _, rest = (ROOT / "pyproject.toml").read_text("utf-8").partition("\ndependencies = [")
    return [f"{name}=={oldest}" for name, oldest in re.findall(r'"([\w-]+)>=([\d.]+)"', rest.partition("]")[0])]


def version_of(python: Path | str) -> str | None:
    """The version of an interpreter, or None where it does not start (a shim may point nowhere)."""
    command = [str(python), "-c", "import ensurepip, platform, venv; print(platform.python_version())"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    except OSError:
        return None
    return done.stdout.strip() if done.returncode == 0 else None


def find_python(minor: int) -> tuple[Path, str] | None:
    """An interpreter of Python 3.`minor` on the path or among pyenv's, with its version."""
    pyenv = Path(os.environ.get("PYENV_ROOT") or Path.home() / ".pyenv") / "versions"
    on_path = shutil.which(f"python3.{minor}")
    candidates = [Path(on_path)] if on_path else []
    candidates += sorted(pyenv.glob(f"3.{minor}.*/bin/python"), reverse=True)
    for candidate in candidates:
        version = version_of(candidate)
        if version is not None and version.startswith(f"3.{minor}."):
            return candidate, version
    return None


def other_pythons(specs: Iterable[str]) -> list[Environment]:
    """One environment per spec for every supported Python other than the one that runs this."""
    found = []
    for minor in MINORS:
        if minor == sys.version_info.minor:
            continue
        python = find_python(minor)
        if python is None:
            print(f"python3.{minor}: not found on this machine, so not tested", flush=True)
            continue
        for spec in specs:
            suffix = "" if spec == "main" else f"-{spec}"
            found.append(Environment(spec, *python, ROOT / f".venv-py3{minor}{suffix}"))
    return found


def own_environment(spec: str) -> Environment:
    """The environment of a spec, with the Python that runs this."""
    base = Path(getattr(sys, "_base_executable", sys.executable))
    version = ".".join(map(str, sys.version_info[:3]))
    return Environment(spec, base, version, ROOT / (".venv" if spec == "main" else f".venv-{spec}"))
