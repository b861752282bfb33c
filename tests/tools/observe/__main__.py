"""`make observe`: see sessions in real tools, asserted and left open to look at.

For each tool, two servers share nothing but their keys, and three clients call them in turns; then the tool is asked
through its own API whether it shows three sessions with the right turns in each, by name, status and contents. The
first thing that is not so makes
the exit status non-zero, and so does a tool that cannot be installed. With Chromium, pictures of Phoenix are taken into
`docs/images`. At the end the tools stay open until Enter is pressed. Of Logfire, which cannot be started here, the
SDK is run.
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from tempfile import TemporaryDirectory

from .programs import PATIENCE, ROOT, free_port, installed, running
from .tools import TOOLS, Tool
from .traffic import TURNS, traffic

IMAGES = ROOT / "docs" / "images"
LOGFIRE = "logfire"


def main() -> int:
    """Run the command, and return the exit status."""
    parser = argparse.ArgumentParser("make observe", description="See sessions in real tools.")
    parser.add_argument("--only", nargs="+", choices=[*TOOLS, LOGFIRE], default=[*TOOLS, LOGFIRE])
    parser.add_argument("--no-pictures", action="store_true")
    parser.add_argument("--no-wait", action="store_true")
    asked = parser.parse_args()
    with ExitStack() as stack:
        if LOGFIRE in asked.only:
            run_logfire()
        opened = [
            observe(tool, stack, pictures=not asked.no_pictures) for name, tool in TOOLS.items() if name in asked.only
        ]
        if opened and not asked.no_wait:
            print(f"Open {' and '.join(opened)}; press Enter to stop.")
            sys.stdin.readline()
    return 0


def observe(tool: Tool, stack: ExitStack, *, pictures: bool) -> str:
    """Start a tool, let clients call, check what it shows, and return its URL."""
    began = time.monotonic()
    python = installed(tool.name, tool.package)
    say(f"{tool.name}: installed after {time.monotonic() - began:.0f} s")
    folder = Path(stack.enter_context(TemporaryDirectory()))
    url = f"http://127.0.0.1:{free_port()}"
    stack.enter_context(running(tool.start(python.parent, url, folder), url + tool.health, folder))
    say(f"{tool.name}: ready after {time.monotonic() - began:.0f} s, at {url}")
    with traffic(url + "/v1/traces", tool.headers) as refs:
        expected = dict.fromkeys(refs, TURNS)
    seen = until(lambda: tool.ask(python, url), expected)
    say(f"{tool.name}: {len(seen)} sessions with {len(TURNS)} named turns each after {time.monotonic() - began:.0f} s")
    if tool.pictures is not None and pictures:
        take(tool.pictures(url, sorted(expected)))
    return url


def run_logfire() -> None:
    """Set up Logfire's SDK as `docs/tracing.md` shows, and check what it sends."""
    began = time.monotonic()
    python = installed(LOGFIRE, "logfire", "httpx", "-e", str(ROOT))
    subprocess.run([str(python), "-m", "observe.logfire_sdk"], stdout=subprocess.DEVNULL, timeout=PATIENCE, check=True)
    say(f"{LOGFIRE}: its SDK names the session, after {time.monotonic() - began:.0f} s")


def until(look: Callable[[], dict[str, list[str]]], expected: dict[str, list[str]]) -> dict[str, list[str]]:
    """Look until a tool shows what is expected: tools process spans at their own pace."""
    deadline = time.monotonic() + PATIENCE
    while (seen := look()) != expected:
        if time.monotonic() > deadline:
            raise SystemExit(f"it shows {seen}, and should show {expected}")
        time.sleep(0.5)
    return seen


def take(pages: dict[str, str]) -> None:
    """Take pictures of pages, where Chromium is installed."""
    program = shutil.which("chromium") or shutil.which("chromium-browser")
    if program is None:
        say("no pictures: chromium is not installed (apt-get install chromium)")
        return
    IMAGES.mkdir(exist_ok=True)
    for name, url in pages.items():
        flags = ["--headless=new", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--window-size=1400,800"]
        late = ["--virtual-time-budget=20000", "--run-all-compositor-stages-before-draw"]
        target = f"--screenshot={IMAGES / name}"
        subprocess.run([program, *flags, *late, target, url], capture_output=True, timeout=PATIENCE, check=True)
        say(f"docs/images/{name}: {(IMAGES / name).stat().st_size:,} bytes")


def say(line: str) -> None:
    """Print at once, even without a terminal."""
    print(line, flush=True)


if __name__ == "__main__":
    sys.exit(main())
