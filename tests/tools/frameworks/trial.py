"""The table of clients: each program of the page runs against the README's server, on four workers with one store.

A marker names a program's client, the packages that it needs and the argument that is not the default:
`<!-- client: LangChain | langchain-mcp-adapters | default -->`. npx fetches what is not Python.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import secrets
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from socket import create_server
from tempfile import TemporaryDirectory
from typing import Final
from urllib.error import HTTPError, URLError
from urllib.request import urlopen

import generated

HERE: Final = Path(__file__).parent
ROOT: Final = generated.DOCS.parent
PROGRAMS: Final = generated.DOCS / "clients.md"
COMMAND: Final = "python -m tests.tools.frameworks"
ADDRESS: Final = "http://127.0.0.1:8000/mcp"
BLOCK: Final = re.compile(r"<!-- client: (.*?) \| (.*?) \| (.*?) -->\n```python\n(.*?)```", re.DOTALL)
WORKERS: Final = 4
KEPT: Final = ["bread", "bread, milk", "bread, milk, tea"]
"""What each of two clients prints that has a session of its own."""
FORGOTTEN: Final = ["bread", "milk", "tea"]
"""What a client prints that has another session for each call."""
DEADLINE: Final = 120  # seconds for one program


@dataclass(frozen=True)
class Program:
    """A client's program on the page."""

    client: str
    needs: str  # requirements, of which the first one's version is shown
    setting: str
    code: str

    @property
    def distribution(self) -> str:
        return re.split(r"[\[<>=,\s]", self.needs)[0]


def programs(page: Path) -> list[Program]:
    """Return the programs of the page, those in default settings first."""
    found = [Program(*parts) for parts in BLOCK.findall(page.read_text("utf-8"))]
    return sorted(found, key=lambda program: program.setting != "default")


def environment(needs: str, cache: Path, uv: str) -> Path:
    """Make an environment with these requirements and this package, and return its Python."""
    folder = cache / re.sub(r"\W+", "-", needs)
    subprocess.run([uv, "venv", "--quiet", "--allow-existing", "--python", sys.executable, str(folder)], check=True)
    python = folder / "bin" / "python"
    install = [uv, "pip", "install", "--quiet", "--upgrade", "--python", str(python)]
    subprocess.run([*install, "-e", str(ROOT), *needs.split()], check=True)
    return python


@contextmanager
def served(folder: Path) -> Iterator[str]:
    """Serve the README's server on four workers within the block, and yield its URL."""
    [code] = re.findall(r"```python\n(from mcp.*?)```", (ROOT / "README.md").read_text("utf-8"), re.DOTALL)[:1]
    notes = f"\nfrom pathlib import Path\nfrom ways import noted\n\napp = noted(app, Path({str(folder / 'ways')!r}))\n"
    (folder / "server.py").write_text(code + notes, "utf-8")
    with create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    paths = os.pathsep.join([str(folder), str(HERE), os.environ.get("PYTHONPATH", "")])
    command = [sys.executable, "-m", "uvicorn", "server:app", "--workers", str(WORKERS), "--port", str(port)]
    surroundings = {**os.environ, "PYTHONPATH": paths, "MCP_SESSIONS_KEYS": secrets.token_urlsafe(32)}
    with subprocess.Popen([*command, "--log-level", "warning"], cwd=folder, env=surroundings) as server:
        try:
            _await(f"http://127.0.0.1:{port}/")
            yield f"http://127.0.0.1:{port}/mcp"
        finally:
            server.terminate()


def _await(url: str) -> None:
    """Wait until a server answers, whatever it says."""
    for _ in range(5 * DEADLINE):
        try:
            urlopen(url)
        except HTTPError:
            return
        except URLError:
            time.sleep(0.2)
    raise TimeoutError(url)


def tried(program: Program, python: Path, url: str, folder: Path) -> tuple[str, ...]:
    """Run a program as two clients at once, and return its row of the table."""
    (folder / "ways").write_text("", "utf-8")
    (folder / "program.py").write_text(program.code.replace(ADDRESS, url), "utf-8")
    command = [str(python), "-W", "ignore", str(HERE / "pair.py"), str(folder / "program.py"), program.distribution]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, timeout=DEADLINE, cwd=folder, check=True)
    seen = json.loads(done.stdout.splitlines()[-1])
    notes = [line.split(" ", 1) for line in (folder / "ways").read_text("utf-8").splitlines()]
    eras, ways = ({note[part] for note in notes} for part in (0, 1))
    got = gets(seen["printed"], ", ".join(sorted(ways)))
    return f"{program.client} {seen['version']}", program.setting, ", ".join(sorted(eras)), got


def gets(printed: Sequence[list[str]], way: str) -> str:
    """Return what two clients got that printed this."""
    if all(lines == KEPT for lines in printed):
        return f"a session, by {way}"
    if all(lines == FORGOTTEN for lines in printed):
        return f"**one for each call**, by {way}"
    return "**none**"


def table(found: Sequence[Program], cache: Path, uv: str) -> str:
    """Try all programs, and return the table."""
    rows = []
    pythons = {needs: environment(needs, cache, uv) for needs in dict.fromkeys(program.needs for program in found)}
    with TemporaryDirectory() as folder, served(Path(folder)) as url:
        for program in found:
            rows.append(tried(program, pythons[program.needs], url, Path(folder)))
            print(*rows[-1], sep=" | ", flush=True)
    return generated.table(("client", "settings", "protocol", "what it gets"), rows)


def main() -> None:
    """Try the programs, and write the table into the page."""
    parser = argparse.ArgumentParser(prog="python -m tests.tools.frameworks", description=__doc__)
    parser.add_argument("--client", default="", help="only those whose name begins so")
    parser.add_argument("--cache", type=Path, default=ROOT / ".nox" / "clients", help="where environments are made")
    parser.add_argument("--uv", default=shutil.which("uv", path=Path(sys.executable).parent) or "uv")
    parser.add_argument("--page", type=Path, default=PROGRAMS, help="where the table is written")
    options = parser.parse_args()
    found = [program for program in programs(PROGRAMS) if program.client.startswith(options.client)]
    generated.replace(options.page, COMMAND, table(found, options.cache, options.uv))
