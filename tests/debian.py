"""Programs that tests start as real peers, such as a Redis server, from Debian's packages where they are missing.

What is there is used as it is. What is missing is installed by root, one process at a time, and never started as a
service: a test starts its own, in its own folder. Who is not root is told what to install; nothing is ever skipped
for want of a program.
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

LOCK = Path(tempfile.gettempdir()) / "mcp-sessions-tests-apt.lock"
POLICY = Path("/usr/sbin/policy-rc.d")  # what Debian's packages ask before they start a service
SYSTEM = "/usr/sbin:/sbin"  # where servers are, and where the path of an ordinary user does not look


class NotInstalled(Exception):
    """A program is missing and could not be installed here; the message says what to do."""


def install(package: str, program: str) -> Path:
    """Where a program is, after its package has been installed if need be.

    Args:
        package: The Debian package, such as `"redis-server"`.
        program: The file that it brings, such as `"redis-server"`.

    Raises:
        NotInstalled: It is missing, and this is not root, or apt-get failed.
    """
    found = _find(program)
    if found is not None:
        return found
    if os.geteuid() != 0:
        raise NotInstalled(f"{program} is missing and only root can install it: apt-get install {package}")
    with _one_at_a_time():
        return _find(program) or _installed(package, program)


def _find(program: str) -> Path | None:
    found = shutil.which(program) or shutil.which(program, path=SYSTEM)
    return None if found is None else Path(found)


@contextmanager
def _one_at_a_time() -> Iterator[None]:
    with LOCK.open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _installed(package: str, program: str) -> Path:
    with _no_services():
        done = _apt_get("install", package)
        if done.returncode != 0:  # the lists of packages are missing, or older than the archive
            _apt_get("update")
            done = _apt_get("install", package)
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


def _apt_get(action: str, *packages: str) -> subprocess.CompletedProcess[str]:
    options = ["--yes", "--quiet", "--no-install-recommends", "-o", "DPkg::Lock::Timeout=300"]
    environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    return subprocess.run(
        ["apt-get", action, *options, *packages],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=600,
        check=False,
    )
