"""Mutants of the pure rooms: mutmut changes one expression at a time, and the tests of its file must notice.

`python -m tests.tools.pure_mutants [FILE ...]` mutates a copy, each file with its own tests, and fails where a mutant
survives that `survivors.txt` does not explain. It needs the dependency group `mutants`.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parents[2]
SURVIVORS: Final = Path(__file__).with_name("survivors.txt")
TESTS: Final = {
    "_tokens/jwt.py": ("tokens/test_tokens.py",),
    "_tokens/keyfile.py": ("tokens/test_keyfile.py",),
    "_tokens/keys.py": ("tokens/test_keys.py", "tokens/test_tokens.py", "tokens/test_state.py"),
    "_tokens/seal.py": ("tokens/test_state.py", "tokens/test_upstream.py"),
    "_protocol/cookies.py": ("server/test_cookies.py",),
    "_protocol/decision.py": (
        *("protocol/test_decision.py", "protocol/test_sep1364_dialects.py"),
        *("server/test_field_exchange.py", "server/test_cookies.py", "server/test_bridge.py"),
        "server/test_principal_sessions.py",
    ),
    "_protocol/draft.py": ("protocol/test_draft_metadata.py", "protocol/test_decision.py", "server/test_absence.py"),
    "_protocol/headers.py": ("protocol/test_headers.py",),
    "_protocol/jsonrpc.py": (
        "protocol/test_jsonrpc.py",
        "protocol/test_draft_metadata.py",
        "protocol/test_sep1364_dialects.py",
    ),
    "_protocol/labels.py": ("protocol/test_correlation.py", "protocol/test_client_name.py"),
    "_protocol/policy.py": ("protocol/test_policy.py",),
    "_protocol/rewrite.py": ("protocol/test_rewrite.py",),
    "_protocol/sep1364.py": (
        *("protocol/test_sep1364_dialects.py", "protocol/test_decision.py"),
        *("server/test_field_exchange.py", "server/test_answers.py"),
    ),
    "_protocol/sse.py": ("protocol/test_sse.py",),
    "_protocol/strict_json.py": ("protocol/test_strict_json.py", "protocol/test_jsonrpc.py"),
    "_session/claims.py": ("session/test_claims.py", "tokens/test_tokens.py"),
    "_session/data.py": ("session/test_data.py", "testing/test_testing.py"),
    "_session/session.py": ("session/test_session.py", "session/test_current.py"),
    "_session/state.py": ("session/test_session_state.py",),
}
SETTINGS: Final = """
[tool.mutmut]
source_paths = ["mcp_sessions"]
only_mutate = ["mcp_sessions/{file}"]
also_copy = ["docs"]
pytest_add_cli_args_test_selection = {tests}
pytest_add_cli_args = ["-p", "no:cacheprovider"]
"""


def survivors(file: str, folder: Path) -> tuple[int, list[tuple[str, str]]]:
    """Return how many mutants of a file there are, and the old and the new text of those that no test noticed."""
    for name in ("tests", "docs"):
        shutil.copytree(ROOT / name, folder / name, ignore=shutil.ignore_patterns("__pycache__", "_build"))
    # At the top, since mutmut takes the path of a file for the name of its module.
    shutil.copytree(ROOT / "middleware" / "mcp_sessions", folder / "mcp_sessions")
    tests = [f"tests/{name}" for name in TESTS[file]]
    settings = (ROOT / "pyproject.toml").read_text("utf-8") + SETTINGS.format(file=file, tests=tests)
    (folder / "pyproject.toml").write_text(settings, "utf-8")

    def mutmut(*arguments: str) -> str:
        command = [sys.executable, "-m", "mutmut", *arguments]
        environment = {**os.environ, "PYTHONHASHSEED": "0"}
        done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)
        return done.stdout

    total = re.findall(r"(\d+)/\1 ", mutmut("run", "--max-children", "1"))
    if not total:
        raise SystemExit(f"{file}: mutmut did not run to its end; try its tests alone: {' '.join(tests)}")
    results = [line.partition(":") for line in mutmut("results").splitlines()]
    names = [name.strip() for name, _, result in results if result.strip() in {"survived", "no tests"}]
    return int(total[-1]), [changes(mutmut("show", name)) for name in names]


def changes(shown: str) -> tuple[str, str]:
    """Return the lines that a diff takes away and those that it adds, as one text each."""
    lines = [line for line in shown.splitlines() if not line.startswith(("---", "+++"))]
    old, new = ([line[1:].strip() for line in lines if line.startswith(mark)] for mark in "-+")
    return " ".join(old), " ".join(new)


def is_same(old: str, new: str) -> bool:
    """Whether a change is one of how a codec or a digest is spelled, which changes nothing."""
    return old == re.sub(r"\"(UTF-8|UTF-8-SIG|ASCII|LATIN-1|SHA256)\"|'ASCII'", lambda found: found[0].lower(), new)


def explained(file: str) -> set[str]:
    """Return the new texts of a file that `survivors.txt` explains: each line is `file | new text | reason`."""
    rows = (line.split(" | ") for line in SURVIVORS.read_text("utf-8").splitlines() if line and line[0] != "#")
    return {row[1].strip() for row in rows if row[0] == file}


def main(files: list[str]) -> int:
    """Mutate the files, and return 1 where a survivor is not explained."""
    failed = False
    for file in files or TESTS:
        with tempfile.TemporaryDirectory() as folder:
            total, survived = survivors(file, Path(folder))
        reasons = explained(file)
        unexplained = [(old, new) for old, new in survived if new not in reasons and not is_same(old, new)]
        print(f"{file}: {total} mutants, {total - len(survived)} noticed, {len(survived)} survive", flush=True)
        for old, new in unexplained:
            print(f"  - {old}\n  + {new}")
        failed = failed or bool(unexplained)
    return int(failed)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
