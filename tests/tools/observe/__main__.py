"""`python -m tests.tools.observe`: see sessions in real tools, asserted and left open to look at.

For each tool, two replicas of four kinds of server share nothing but their keys, and a client of each calls both in
turn; then the tool is asked through its own API whether it shows their sessions with the right turns in each, by name,
status and contents, and what the documentation asks it. The first thing that is not so makes the exit status non-zero,
and so does a tool that cannot be installed. With Chromium, pictures are taken into `docs/images`. At the end the tools
stay open until Enter is pressed. Of Logfire, which cannot be started here, the SDK is run.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from tempfile import TemporaryDirectory

from browser import browsing

from .programs import PATIENCE, ROOT, free_port, installed, module, running
from .tools import TOOLS, Tool
from .traffic import traffic

SMALLER = "import sys; from PIL import Image; Image.open(sys.argv[1]).quantize(256, 1).save(sys.argv[1], optimize=True)"
IMAGES = ROOT / "docs" / "images"
LOGFIRE = "logfire"


def main() -> int:
    """Run the command, and return the exit status."""
    parser = argparse.ArgumentParser("python -m tests.tools.observe", description="See sessions in real tools.")
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
    visits = traffic(url + "/v1/traces", tool.headers)
    expected = {visit.ref: sorted(visit.turns) for visit in visits}
    until(lambda: tool.ask(url), expected)
    tool.check(url, visits)
    turns = sum(map(len, expected.values()))
    say(f"{tool.name}: {len(visits)} sessions with {turns} turns after {time.monotonic() - began:.0f} s")
    if pictures:
        take(tool.pictures(url, visits))
    return url


def run_logfire() -> None:
    """Set up Logfire's SDK as `docs/tracing.md` shows, and check what it sends."""
    began = time.monotonic()
    python = installed(LOGFIRE, "logfire", "httpx", "-e", str(ROOT))
    sdk = module(python, "logfire_sdk")
    environment = {**os.environ, **sdk.environment}
    subprocess.run(sdk.line, env=environment, stdout=subprocess.DEVNULL, timeout=PATIENCE, check=True)
    say(f"{LOGFIRE}: its SDK names the session, after {time.monotonic() - began:.0f} s")


def until(look: Callable[[], dict[str, list[str]]], expected: dict[str, list[str]]) -> None:
    """Look until a tool shows what is expected: tools process spans at their own pace."""
    deadline = time.monotonic() + PATIENCE
    while (seen := look()) != expected:
        if time.monotonic() > deadline:
            raise SystemExit(f"it shows {seen}, and should show {expected}")
        time.sleep(0.5)


def take(pages: dict[str, tuple[str, str]]) -> None:
    """Take pictures of pages, each as soon as a script says that it is shown."""
    pillow = installed("pillow", "pillow")
    IMAGES.mkdir(exist_ok=True)
    with browsing() as browser:
        browser.resize(1400, 800)
        for name, (url, shown) in pages.items():
            browser.open(url)
            browser.until(shown)
            time.sleep(2)  # what moves on the page comes to rest
            (IMAGES / name).write_bytes(browser.picture())
            subprocess.run([str(pillow), "-c", SMALLER, str(IMAGES / name)], timeout=PATIENCE, check=True)
            say(f"docs/images/{name}: {(IMAGES / name).stat().st_size:,} bytes")


def say(line: str) -> None:
    """Print at once, even without a terminal."""
    print(line, flush=True)


if __name__ == "__main__":
    sys.exit(main())
