"""The published wheel and source archive: what they hold, and that the wheel works in an empty environment.

The wheel is installed by this machine's pip, which is slow, so it is done once, and in one environment.
"""

import email
import subprocess
import sys
import tarfile
import venv
import zipfile
from pathlib import Path

import pytest
from environments import INSTALLED, needs
from packaging.requirements import Requirement

ROOT = Path(__file__).resolve().parent.parent
pytestmark = needs("mcp>=2")

PROGRAM = '''
import asyncio
import json
import sys

from asgiref.testing import ApplicationCommunicator
from mcp_sessions import MCPSessionMiddleware

OPTIONAL = {"fastapi", "fastmcp", "httpx", "mcp", "redis"}
JSON = [(b"content-type", b"application/json")]
SESSION = "io.modelcontextprotocol/session"


async def server(scope, receive, send):
    """Answer every request with an empty result, as the smallest MCP server there can be."""
    request = json.loads((await receive())["body"])
    answer = json.dumps({"jsonrpc": "2.0", "id": request["id"], "result": {}}).encode()
    await send({"type": "http.response.start", "status": 200, "headers": JSON})
    await send({"type": "http.response.body", "body": answer})


async def post(app, method, **params):
    message = {"jsonrpc": "2.0", "id": 1, "method": method, "params": params}
    http = ApplicationCommunicator(app, {"type": "http", "method": "POST", "path": "/mcp", "headers": JSON})
    await http.send_input({"type": "http.request", "body": json.dumps(message).encode()})
    await http.receive_output()
    return json.loads((await http.receive_output())["body"])["result"]


async def main():
    app = MCPSessionMiddleware(server, keys="a secret of thirty-two bytes, or more")
    session = {"sessionId": (await post(app, "sessions/create"))["session"]["sessionId"]}
    called = await post(app, "tools/call", name="t", _meta={SESSION: session})
    same = called["_meta"][SESSION]["sessionId"] == session["sessionId"]
    print(json.dumps({"same": same, "optional": sorted(OPTIONAL.intersection(sys.modules))}))


asyncio.run(main())
'''


def run(*command: str | Path, cwd: Path = ROOT) -> str:
    """Run a command and return its output; its failure fails the test."""
    done = subprocess.run([str(part) for part in command], cwd=cwd, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def pip(python: Path, *arguments: str | Path) -> None:
    """Run our own environment's pip for another one, which has none."""
    run(sys.executable, "-m", "pip", "--disable-pip-version-check", "--python", python, *arguments)


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the source archive, and the wheel that was built from it."""
    folder = tmp_path_factory.mktemp("dist")
    run(sys.executable, "-m", "build", "--no-isolation", "--outdir", folder, ROOT)
    return folder


@pytest.fixture(scope="module")
def wheel(built: Path) -> Path:
    """The only wheel, which fits every Python on this platform."""
    (path,) = built.glob("*.whl")
    assert path.name.startswith(f"mcp_sessions-{INSTALLED['mcp-sessions']}-py3-none-any")
    return path


def test_the_wheel_holds_the_package_and_its_licence_alone(wheel: Path) -> None:
    """Every source file and `py.typed` ship; tests, examples and docs do not."""
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
    package, kinds = ROOT / "middleware", {".py", ".html", ".typed"}
    shipped = [path for path in (package / "mcp_sessions").rglob("*") if path.suffix in kinds]
    assert any(name.endswith(".dist-info/licenses/LICENSE") for name in names)
    assert {name for name in names if ".dist-info/" not in name} == {
        path.relative_to(package).as_posix() for path in shipped
    }


def test_the_source_archive_can_be_tested(built: Path) -> None:
    """The source archive has the tests, the docs and the commands beside the source, and nothing of our own CI."""
    (path,) = built.glob("*.tar.gz")
    with tarfile.open(path) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    pages = {"CHANGELOG.md", "CONTRIBUTING.md", "LICENSE", "README.md", ".github/SECURITY.md"}
    gate = {"Makefile", "docs/conf.py", "pyproject.toml", "noxfile.py"}
    assert pages | gate <= names
    assert not any("__pycache__" in name or name.startswith((".venv", ".ci", "docs/_build")) for name in names)


def test_the_metadata_names_what_is_supported(wheel: Path) -> None:
    """The core requires neither an MCP SDK nor a server framework: the wrapped server brings its own."""
    with zipfile.ZipFile(wheel) as archive:
        (name,) = (name for name in archive.namelist() if name.endswith(".dist-info/METADATA"))
        metadata = email.message_from_bytes(archive.read(name))
    assert metadata["Name"] == "mcp-sessions"
    assert metadata["License-Expression"] == "Apache-2.0"
    assert metadata["Requires-Python"] == ">=3.10"
    assert set(metadata.get_all("Provides-Extra", [])) == {"client", "fastapi", "fastmcp", "postgres", "redis"}
    required = [Requirement(text) for text in metadata.get_all("Requires-Dist", [])]
    core = {requirement.name for requirement in required if requirement.marker is None}
    assert core == {"anyio", "asgiref", "cryptography", "msgspec", "opentelemetry-api", "pyjwt", "starlette"}


def test_the_wheel_works_where_nothing_else_is_installed(wheel: Path, tmp_path: Path) -> None:
    """With its own dependencies alone the wheel creates and echoes a session, and imports no optional library."""
    venv.create(tmp_path / "empty")
    python = tmp_path / "empty" / "bin" / "python"
    pip(python, "install", "--quiet", wheel)
    program = tmp_path / "program.py"
    program.write_text(PROGRAM, "utf-8")
    printed = run(python, "-I", "-W", "error", program, cwd=tmp_path).strip()
    assert printed == '{"same": true, "optional": []}'
    pip(python, "check")
