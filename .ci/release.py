"""Commit and tag a release: `.venv/bin/python .ci/release.py 0.2.0`, then push what it names.

The version goes into `pyproject.toml`, and what stands under `Unreleased` in `CHANGELOG.md` becomes its
entry. A version whose entry is there already is only tagged. The pushed tag starts `.github/workflows/release.yml`.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
from datetime import datetime, timezone
from pathlib import Path

CHANGELOG = "CHANGELOG.md"


def git(*arguments: str) -> str:
    """Run git in the current folder, and return its output."""
    return subprocess.run(["git", *arguments], check=True, capture_output=True, text=True).stdout.strip()


def fault(version: str, tag: str) -> str | None:
    """Return why this version cannot be released from here, or None."""
    if not re.fullmatch(r"\d+\.\d+\.\d+((a|b|rc)\d+)?", version):
        return f"{version} is not a version such as 0.2.0 or 0.2.0rc1"
    if git("branch", "--show-current") != "main":
        return "releases are made on the branch main"
    if git("status", "--porcelain"):
        return "there are changes that are not committed"
    if git("tag", "--list", tag):
        return f"the tag {tag} is there already"
    return None


def entered(changelog: str, version: str, day: str) -> str:
    """Return the changelog with an entry for a version, made of what was unreleased.

    Raises:
        SystemExit: Nothing is under `Unreleased`.
    """
    if f"\n## [{version}] - " in changelog:
        return changelog
    before, heading, after = changelog.partition("\n## [Unreleased]\n")
    if not heading or re.match(r"\s*(## |\[|\Z)", after):
        raise SystemExit(f"{CHANGELOG} has nothing under Unreleased")
    released = f"{before}{heading}\n## [{version}] - {day}\n{after}"
    link = re.search(r"^\[Unreleased\]: (.+)/(?:compare/v(.+)\.\.\.HEAD|commits/main)$", released, re.MULTILINE)
    if link is None:
        raise SystemExit(f"{CHANGELOG} has no link for Unreleased")
    home, last = link.groups()
    changes = f"compare/v{last}...v{version}" if last else f"releases/tag/v{version}"  # the first has nothing before it
    links = f"[Unreleased]: {home}/compare/v{version}...HEAD\n[{version}]: {home}/{changes}"
    return released.replace(link[0], links)


def main() -> None:
    """Write the version and the entry, commit where that changed anything, and tag."""
    parser = argparse.ArgumentParser(prog=".ci/release.py", description=__doc__)
    parser.add_argument("version", help="such as 0.2.0")
    version = parser.parse_args().version
    tag = f"v{version}"
    if (why := fault(version, tag)) is not None:
        sys.exit(why)
    changelog = Path(CHANGELOG)
    changelog.write_text(
        entered(changelog.read_text("utf-8"), version, f"{datetime.now(timezone.utc):%Y-%m-%d}"), "utf-8"
    )
    project = Path("pyproject.toml")
    text, replaced = re.subn(r'(?m)^version = ".+"$', f'version = "{version}"', project.read_text("utf-8"))
    if replaced != 1:
        sys.exit("pyproject.toml does not name one version")
    project.write_text(text, "utf-8")
    if git("status", "--porcelain"):
        git("commit", "--all", "--message", f"Release {version}")
    git("tag", "--annotate", tag, "--message", f"mcp-sessions {version}")
    print(f"tagged; publish with: git push origin main {tag}")


if __name__ == "__main__":
    main()
