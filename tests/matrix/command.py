"""The command line: which environments, which tests, and what for."""

from __future__ import annotations

import argparse
import os
from collections.abc import Sequence

from matrix.environments import EVERYDAY, SPECS, Environment, other_pythons, own_environment
from matrix.gate import check
from matrix.making import set_up_all
from matrix.running import Wanted, combine_coverage, run_everywhere
from matrix.telling import conclude


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="tests/matrix", description="Run the tests in every supported environment.")
    parser.add_argument("--env", action="append", choices=[*SPECS, "lowest"], help="only this one (may be given twice)")
    parser.add_argument("--all", action="store_true", help="every test, with lower bounds and every supported Python")
    parser.add_argument("--brief", action="store_true", help="leave out what takes minutes")
    parser.add_argument("--coverage", action="store_true", help="measure branches; below 100 %% is a failure")
    parser.add_argument("--check", action="store_true", help="the whole gate: the tests with coverage, and all else")
    parser.add_argument("--setup-only", action="store_true", help="make the virtual environments and stop")
    parser.add_argument("pytest_args", nargs="*", metavar="-- PYTEST_ARG", help="handed on to pytest")
    return parser.parse_args()


def chosen(options: argparse.Namespace) -> list[Environment]:
    """The environments that are asked for."""
    specs: Sequence[str] = options.env or EVERYDAY
    environments = [own_environment(spec) for spec in specs]
    return [*environments, own_environment("lowest"), *other_pythons(specs)] if options.all else environments


def main() -> int:
    """Do what the arguments ask for; 0 only if nothing failed."""
    options = arguments()
    # Where it is set, each of the many programs that are started would compile all that it imports, each time.
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    if options.check:
        return check(options.pytest_args)
    environments = chosen(options)
    set_up_all(environments)
    return 0 if options.setup_only else run_tests(environments, options)


def run_tests(environments: list[Environment], options: argparse.Namespace) -> int:
    wanted = Wanted(options.pytest_args, options.coverage, options.all, options.brief)
    runs = run_everywhere(environments, wanted)
    complete = set(EVERYDAY) <= {environment.spec for environment in environments} and not (wanted.brief or wanted.args)
    failed = conclude(runs, complete=complete)
    steps = combine_coverage(environments[0]) if options.coverage and not failed else []
    return failed or max((step.code for step in steps), default=0)
