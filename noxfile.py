"""The environments in which the tests run; `.venv/bin/nox --list` names them, and the Makefile calls them.

One SDK and one FastMCP fit into one environment, so the tests need two: `.venv`, which nox itself is in (mcp 2.x with
FastMCP 4), and `legacy` (mcp 1.x with FastMCP 3), which nox creates. So are the environments of other Python versions.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import nox

ROOT = Path(__file__).resolve().parent
COVERAGE = ROOT / ".nox" / "coverage"
PROJECT = nox.project.load_toml(ROOT / "pyproject.toml")
VERSIONS = nox.project.python_versions(PROJECT)  # "3.10" and so on, from the classifiers
WORKERS = 2 + min(2, os.cpu_count() or 1)  # many tests mostly wait, for servers, kills and clocks
LEGACY = ("-e", ".[fastapi,postgres,redis]", "mcp>=1.27,<2", "fastmcp>=3,<4")

# These take longest: they kill servers, start programs or measure. `make test` leaves them to `make check`, which
# leaves the tests marked `nightly` to the night. Each store passes the whole contract in `make test`, too.
SLOW = (
    "tests/benchmarks",
    "tests/docs/examples",
    "tests/docs/test_pages.py",
    "tests/integration/test_bearer_auth.py",
    "tests/integration/test_clients.py",
    "tests/integration/test_django.py",
    "tests/integration/test_javascript_clients.py",
    "tests/integration/test_with_sessions.py",
    "tests/server/test_workers.py",
    "tests/stores/test_every_store.py",
    "tests/stores/test_postgres.py",
    "tests/stores/test_redis.py",
    "tests/stores/test_redis_durability.py",
    "tests/stores/test_sqlite.py",
    "tests/telemetry/test_inspector_page.py",
    "tests/telemetry/test_tracing_page.py",
    "tests/test_packaging.py",
    "tests/test_types.py",
    "tests/tools",
)
# What meets a framework. The rest is the same code on the same libraries, so `legacy` leaves it to `main`.
FRAMEWORKS = (
    "tests/client",
    "tests/docs/test_pages.py",
    "tests/integration",
    "tests/session/test_current.py",
    "tests/telemetry/test_frameworks.py",
    "tests/telemetry/test_outermost_span.py",
)
JAVASCRIPT = ("tests/integration/test_javascript_clients.py",)

nox.options.default_venv_backend = "uv|venv"
nox.options.download_python = "never"
nox.options.error_on_missing_interpreters = False  # the summary lists the versions that were skipped
nox.options.reuse_venv = "yes"
nox.options.sessions = ["legacy", "main"]


@nox.session(python=False)
def quick(session: nox.Session) -> None:
    """The tests with the newest SDK and FastMCP, except what takes minutes."""
    run_pytest(session, sys.executable, without=SLOW)


def quick_on_version(session: nox.Session) -> None:
    """The quick tests on another Python than that of `.venv`."""
    upgrade_pip(session)
    session.install("-e", ".[client,fastapi,fastmcp,postgres,redis]", "--group", "dev")
    run_pytest(session, "python", without=SLOW)


def find_python(version: str) -> str | None:
    """Return the path of an installed interpreter, on `PATH` or pyenv's; None if there is none."""
    pyenv = Path(os.environ.get("PYENV_ROOT") or Path.home() / ".pyenv")
    for folder in (*os.get_exec_path(), *map(str, sorted(pyenv.glob(f"versions/{version}.*/bin")))):
        found = shutil.which(f"python{version}", path=folder)
        if found is not None and can_create_environments(found):
            return found
    return None


def can_create_environments(python: str) -> bool:
    """Try it: pyenv's stand-in fails if its version is not selected, and Debian's interpreter may lack the module."""
    command = [python, "-c", "import ensurepip"]
    return subprocess.run(command, check=False, capture_output=True).returncode == 0  # noqa: S603


for _version in VERSIONS:
    if _version != "{}.{}".format(*sys.version_info):  # whose tests `main` runs
        _python = find_python(_version) or _version  # which nox skips if it is not installed
        nox.session(quick_on_version, python=_python, name=f"quick-{_version}", tags=["versions"])


@nox.session
def legacy(session: nox.Session) -> None:
    """The tests that meet a framework, with the older SDK and FastMCP; branches are measured."""
    install_legacy(session)
    run_pytest(session, "python", only=FRAMEWORKS, without=JAVASCRIPT, measured=True)


@nox.session(python=False)
def main(session: nox.Session) -> None:
    """All tests with the newest SDK and FastMCP; branches are measured."""
    run_pytest(session, sys.executable, measured=True)


@nox.session(python=False, requires=["legacy", "main"])
def coverage(session: nox.Session) -> None:
    """Combine the branch coverage of the two; too little of the package is a failure (see `fail_under`)."""
    folders = [str(COVERAGE / name) for name in ("legacy", "main")]
    for command in (["combine", "--quiet", *folders], ["report"]):
        session.run(sys.executable, "-m", "coverage", *command, env={"COVERAGE_FILE": str(ROOT / ".coverage")})


@nox.session
def lowest(session: nox.Session) -> None:
    """All tests with every dependency of the package at its lower bound."""
    listed = PROJECT["project"]["dependencies"]
    install_legacy(session, *(re.sub(r">=([\d.]+).*", r"==\1", dependency) for dependency in listed))
    run_pytest(session, "python", "-W", "ignore")  # old versions warn of what has changed since


def install_legacy(session: nox.Session, *bounds: str) -> None:
    """Install the older SDK and FastMCP with what the tests need."""
    upgrade_pip(session)
    session.install(*LEGACY, "--group", "test", *bounds)


def upgrade_pip(session: nox.Session) -> None:
    """Upgrade pip: an older one knows no groups, and gives up on resolving the frameworks."""
    session.install("--upgrade", "pip>=25.1")


def run_pytest(
    session: nox.Session,
    python: str,
    *options: str,
    only: tuple[str, ...] = (),
    without: tuple[str, ...] = (),
    measured: bool = False,
) -> None:
    """Run the tests in several processes, or in this one those that ARGS name by path.

    Args:
        session: The session, whose positional arguments go to pytest.
        python: The interpreter of the environment.
        options: Further options of pytest.
        only: The paths to run, all if there are none.
        without: The paths to leave out.
        measured: Whether to measure the branches that run, into a folder of the session's own.
    """
    if missing := [path for path in (*only, *without) if not (ROOT / path).exists()]:
        session.error(f"noxfile.py names what does not exist: {' '.join(missing)}")
    if any((ROOT / argument.partition("::")[0]).exists() for argument in session.posargs):
        selection = ["-n0"]
    else:
        ignored = [f"--ignore={path}" for path in without]
        selection = [f"-n{WORKERS}", "--dist=loadfile", "--no-loadscope-reorder", "-m", "not nightly", *only, *ignored]
    variables: dict[str, str | None] = dict.fromkeys(("PYTHONPATH", "PYTHONHOME", "PYTHONDONTWRITEBYTECODE"))
    variables["PYTHONHASHSEED"] = "0"  # the processes have to agree on the order of what a set holds
    command = ["pytest", "-q", "-p", "no:cacheprovider", *options, *selection, *session.posargs]
    if measured:
        shutil.rmtree(COVERAGE / session.name, ignore_errors=True)
        (COVERAGE / session.name).mkdir(parents=True)
        variables["COVERAGE_FILE"] = str(COVERAGE / session.name / ".coverage")
        command = ["coverage", "run", "-m", *command]
    # Exit code 5: no test ran. Where ARGS choose some, the older generation may have none of them.
    success = [0, 5] if session.posargs and session.name == "legacy" else [0]
    session.run(python, "-m", *command, env=variables, success_codes=success)
