"""Programs that tests start as real peers, such as a Redis server, from Debian's packages where they are missing.

A program that is there is used. A missing one is installed by root, by one process at a time, and never started as a
service: each test starts its own, in its own folder. Anyone else gets an error that names the package.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

# The package of each program.
PACKAGES = {
    "chromedriver": "chromium-driver",
    "nginx": "nginx",
    "npm": "npm",
    "postgres": "postgresql",
    "prometheus": "prometheus",
    "promtool": "prometheus",
    "redis-server": "redis-server",
    "systemd-analyze": "systemd",
    "valgrind": "valgrind",
    "wrk": "wrk",
}
SYSTEM = "/usr/sbin:/sbin"  # where servers are, and where the path of an ordinary user does not look
VERSIONS = Path("/usr/lib/postgresql")  # which has a folder for each version of that server
LOCK = Path(tempfile.gettempdir()) / "mcp-sessions-tests-apt.lock"
POLICY = Path("/usr/sbin/policy-rc.d")  # Debian's packages ask it before they start a service
OPTIONS = ("--yes", "--quiet", "--no-install-recommends", "-o", "DPkg::Lock::Timeout=300")


class NotInstalled(Exception):
    """A program is missing and could not be installed here; the message names the remedy."""


def install(program: str) -> Path:
    """Return the path of a program, after its package has been installed if need be.

    Args:
        program: The file name, such as `"redis-server"`; a package that is not in the table has the same name.

    Raises:
        NotInstalled: It is missing, and this is not root, or apt-get failed.
    """
    found = _find(program)
    if found is not None:
        return found
    package = PACKAGES.get(program, program)
    if os.geteuid() != 0:
        raise NotInstalled(f"{program} is missing and only root can install it: apt-get install {package}")
    with LOCK.open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        return _find(program) or _installed(package, program)


def apt_get(action: str, *words: str) -> subprocess.CompletedProcess[str]:
    """Run apt-get without questions; both of its outputs are in `stdout`."""
    environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    return subprocess.run(
        ["apt-get", action, *OPTIONS, *words],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=600,
        check=False,
    )


def _find(program: str) -> Path | None:
    servers = ":".join([SYSTEM, *map(str, VERSIONS.glob("*/bin"))])
    found = shutil.which(program) or shutil.which(program, path=servers)
    return None if found is None else Path(found)


def _installed(package: str, program: str) -> Path:
    with _no_services():
        done = apt_get("install", package)
        if done.returncode != 0:  # the lists of packages are missing, or older than the archive
            apt_get("update")
            done = apt_get("install", package)
    found = _find(program)
    if done.returncode == 0 and found is not None:
        return found
    raise NotInstalled(f"apt-get install {package} did not bring {program}:\n{done.stdout[-2000:]}")


@contextmanager
def _no_services() -> Iterator[None]:
    """Keep packages from starting what they bring; a policy that is there already is left alone."""
    if POLICY.exists():
        yield
        return
    POLICY.write_text("#!/bin/sh\nexit 101\n", "utf-8")  # 101: action forbidden
    POLICY.chmod(0o755)
    try:
        yield
    finally:
        POLICY.unlink()
