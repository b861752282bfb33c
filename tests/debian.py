"""Programs that tests start as real peers, such as a Redis server, and the Debian package of each.

Tests only look for them. `make test` and `make check` run this file, which as root on Debian says which packages are
missing and installs them, unless `SKIP_SERVERS=1` is set. If it does not install them, it says which tests are skipped,
and fails if `CI` is set. They are never started as services, since each test starts its own server.

    python tests/debian.py [PROGRAM ...]        # all of them if none is named
"""

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

# The package of each program.
PACKAGES = {
    "chromedriver": "chromium-driver",
    "chromium": "chromium",
    "docker-compose": "docker-compose",
    "nginx": "nginx",
    "npm": "npm",
    "openssl": "openssl",
    "pgbouncer": "pgbouncer",
    "postgres": "postgresql",
    "prometheus": "prometheus",
    "promtool": "prometheus",
    "redis-server": "redis-server",
    "systemd-analyze": "systemd",
    "valgrind": "valgrind",
}
SYSTEM = "/usr/sbin:/sbin"  # where servers are, and where the path of an ordinary user does not look
VERSIONS = Path("/usr/lib/postgresql")  # which has a folder for each version of that server
POLICY = Path("/usr/sbin/policy-rc.d")  # Debian's packages ask it before they start a service
APT_GET = ("apt-get", "--yes", "--quiet", "--no-install-recommends", "-o", "DPkg::Lock::Timeout=300")


class NotInstalled(Exception):
    """A program is missing; the message names the remedy."""


def install(program: str) -> Path:
    """Return the path of an installed program.

    Args:
        program: The file name, such as `"redis-server"`.

    Raises:
        NotInstalled: It is missing.
    """
    found = _find(program)
    if found is None:
        raise NotInstalled(f"{program} is missing: apt-get install {PACKAGES.get(program, program)}")
    return found


def _find(program: str) -> Path | None:
    servers = ":".join([SYSTEM, *map(str, VERSIONS.glob("*/bin"))])
    found = shutil.which(program) or shutil.which(program, path=servers)
    return None if found is None else Path(found)


def main(programs: list[str]) -> int:
    """Install the packages of missing programs; return the exit code, which in CI is 1 if one is still missing."""
    missing = sorted({PACKAGES[program] for program in programs or PACKAGES if _find(program) is None})
    problem = _install(missing) if missing else None
    if problem is None:
        return 0
    effect = "in CI every test has to run" if os.environ.get("CI") else "the tests that need them are skipped"
    print(f"missing packages: {' '.join(missing)} ({problem}); {effect}")
    return int(bool(os.environ.get("CI")))


def _install(packages: list[str]) -> str | None:
    """Install packages, and say so; return why that is impossible, or None."""
    if os.environ.get("SKIP_SERVERS", "0") not in {"", "0"}:
        return "SKIP_SERVERS is set"
    if os.geteuid() != 0 or shutil.which("apt-get") is None:
        return "only root can install them, and only on Debian"
    print(f"installing as root, for the tests: {' '.join(packages)} (SKIP_SERVERS=1 skips this)", flush=True)
    environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    with _no_services():
        for words in (["update"], ["install", *packages]):
            done = subprocess.run([*APT_GET, *words], env=environment, stdout=subprocess.DEVNULL, check=False)
            if done.returncode != 0:
                return f"apt-get {words[0]} failed"
    return None


@contextmanager
def _no_services() -> Iterator[None]:
    """Keep packages from starting what they bring; an existing policy is left alone."""
    if POLICY.exists():
        yield
        return
    POLICY.write_text("#!/bin/sh\nexit 101\n", "utf-8")  # 101: action forbidden
    POLICY.chmod(0o755)
    try:
        yield
    finally:
        POLICY.unlink()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
