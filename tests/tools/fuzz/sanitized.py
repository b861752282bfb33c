"""The same trials with a native reader that is built with the address and undefined-behaviour sanitizers.

python -m tests.tools.fuzz.sanitized [--trials 100000] [--seed 1]

Objects come from `malloc` here, so a read beyond the end of a body is seen. Exit code 1: a sanitizer has complained.
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import random
import subprocess
import sys
import sysconfig
import tempfile
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parents[3]
SOURCE: Final = ROOT / "middleware" / "mcp_sessions" / "_protocol" / "_native" / "reader.c"
MODULE: Final = "mcp_sessions._protocol._native._reader"
FLAGS: Final = (
    "-std=c99 -Wall -Wextra -Wno-unused-parameter -Werror -O1 -g -shared -fPIC -fno-omit-frame-pointer".split()
)
SANITIZERS: Final = ("-fsanitize=address,undefined", "-fno-sanitize-recover=all")
PROGRAM: Final = (
    "import sys; from tests.tools.fuzz import sanitized; sanitized.run(sys.argv[1], *map(int, sys.argv[2:]))"
)


def main(given: Sequence[str] | None = None) -> int:
    """Build the reader, and run the trials with it in another process; return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m tests.tools.fuzz.sanitized")
    parser.add_argument("--trials", type=int, default=100_000)
    parser.add_argument("--seed", type=int, default=random.randrange(2**32), help="of the whole run; printed")
    options = parser.parse_args(given)
    print(f"native, sanitized: seed {options.seed}", flush=True)
    with tempfile.TemporaryDirectory() as folder:
        built, include = Path(folder, "_reader.so"), f"-I{sysconfig.get_path('include')}"
        subprocess.run(["gcc", *FLAGS, *SANITIZERS, include, str(SOURCE), "-o", str(built)], check=True)
        found = subprocess.run(["gcc", "-print-file-name=libasan.so"], stdout=subprocess.PIPE, text=True, check=True)
        variables = {
            **os.environ,
            "LD_PRELOAD": found.stdout.strip(),
            "PYTHONMALLOC": "malloc",
            "ASAN_OPTIONS": "detect_leaks=0",  # the interpreter keeps what it has until it ends
            "PYTHONPATH": os.pathsep.join([str(ROOT / "middleware"), *filter(None, [os.environ.get("PYTHONPATH")])]),
        }
        command = [sys.executable, "-c", PROGRAM, str(built), str(options.trials), str(options.seed)]
        return 0 if subprocess.run(command, cwd=ROOT, env=variables, check=False).returncode == 0 else 1


def run(built: str, number: int, seed: int) -> None:
    """Run the trials with the reader in this file; in a process in which the package was not imported yet."""
    spec = importlib.util.spec_from_file_location(MODULE, built)
    assert spec is not None
    assert spec.loader is not None
    reader = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(reader)
    sys.modules[MODULE] = reader
    from . import native, trials  # with the package, which finds this reader

    assert native._native.read is reader.read  # type: ignore[attr-defined]
    size, counted = min(number, trials.BATCH), Counter[str]()
    for batch in range(number // size):
        counted += trials.run(native.trial, "native", seed, batch, size)
    print(f"native, sanitized: {counted.total():,} trials", *counted.most_common(), sep="\n  ")


if __name__ == "__main__":  # pragma: no cover  # the tests call main
    sys.exit(main())
