"""Virtual environments are made here, by uv where that is possible and by pip where it is not.

uv resolves and unpacks in seconds of processor time what takes pip a minute. It is installed with pip into an
environment of its own, so nothing has to be there first, and it is told what the user has told pip. Where it cannot be
had, or does not succeed, one line says so and pip does the work; `INSTALLER=pip` in the environment asks for pip at
once. What is installed is the same either way.
"""

from __future__ import annotations

import importlib.util
import json
import os
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from matrix.environments import Environment, own_environment
from matrix.pipsettings import OnlyPip, uv_variables
from matrix.steps import now, take
from matrix.telling import say

UV = "uv>=0.8,<1"
PIP = ("-m", "pip", "--disable-pip-version-check", "--no-input")


class StepFailed(Exception):
    """A command of the set-up failed; the message ends with what it printed last."""


@dataclass(frozen=True)
class Uv:
    """uv, and the variables that tell it what pip was told."""

    program: Path
    variables: dict[str, str]


def quietly(*command: str | Path, variables: dict[str, str] | None = None) -> str:
    """Run a step of the set-up; its output is for the caller, or for the error."""
    step = take("set-up", command, {**os.environ, **(variables or {})})
    if step.code != 0:
        raise StepFailed(f"failed ({step.code}): {' '.join(map(str, command))}\n{step.output[-4000:]}")
    return step.output


def find_uv() -> Uv | None:
    """uv, installed if need be, or None where pip has to do."""
    if os.environ.get("INSTALLER", "uv") == "pip":
        return None
    tools = own_environment("uv")
    program = tools.python.with_name("uv")
    try:
        if not program.exists():
            quietly(tools.base, "-m", "venv", "--clear", tools.folder)
            quietly(tools.python, *PIP, "install", "--quiet", UV)
        return Uv(program, uv_variables(quietly(tools.python, *PIP, "config", "list")))
    except (StepFailed, OnlyPip) as why:
        say(f"pip installs, which takes longer than uv: {str(why).splitlines()[-1]}")
        return None


def fill_with_pip(environment: Environment, *, anew: bool) -> None:
    if anew:
        quietly(environment.base, "-m", "venv", "--clear", environment.folder)
    quietly(environment.python, *PIP, "install", "--quiet", *environment.requirements)


def fill_with_uv(uv: Uv, environment: Environment, *, anew: bool) -> None:
    """The same, with a pip in the environment, too, as `venv` puts one there."""
    if anew:
        quietly(environment.base, "-m", "venv", "--clear", "--without-pip", environment.folder)
    install = (uv.program, "pip", "install", "--quiet", "--python", environment.python)
    quietly(*install, "pip", *environment.requirements, variables=uv.variables)


def fill(uv: Uv | None, environment: Environment, *, anew: bool) -> None:
    """Install what belongs into an environment, which is made anew or brought up to date."""
    if uv is None:
        return fill_with_pip(environment, anew=anew)
    try:
        fill_with_uv(uv, environment, anew=anew)
    except StepFailed as why:
        say(f"{environment.name}: uv did not succeed, so pip installs ({str(why).splitlines()[-1]})")
        fill_with_pip(environment, anew=True)


def set_up(uv: Uv | None, environment: Environment) -> None:
    """Create or update one virtual environment, and put a stamp into it that says what it holds."""
    started = now()
    say(f"{environment.name}: setting up {environment.folder.name} (Python {environment.version})")
    fill(uv, environment, anew=held_in(environment).get("python") != environment.version)
    stamp_of(environment).write_text(json.dumps(wanted_in(environment)), "utf-8")
    say(f"{environment.name}: ready after {now() - started:.0f} s")


def stamp_of(environment: Environment) -> Path:
    return environment.folder / "matrix-stamp.json"


def wanted_in(environment: Environment) -> dict[str, str]:
    return {"python": environment.version, "fingerprint": environment.fingerprint}


def held_in(environment: Environment) -> dict[str, str]:
    stamp = stamp_of(environment)
    held: dict[str, str] = json.loads(stamp.read_text("utf-8")) if stamp.exists() else {}
    return held


def set_up_all(environments: list[Environment]) -> None:
    """Create or update each environment whose stamp does not say that it is as it should be."""
    if importlib.util.find_spec("ensurepip") is None:
        version = f"{sys.version_info.major}.{sys.version_info.minor}"
        sys.exit(f"Python's venv module is incomplete. On Debian or Ubuntu: apt install python{version}-venv")
    stale = [environment for environment in environments if held_in(environment) != wanted_in(environment)]
    if not stale:
        return
    try:
        with ThreadPoolExecutor(max_workers=2) as pool:
            list(pool.map(partial(set_up, find_uv()), stale))
    except StepFailed as why:
        sys.exit(str(why))
