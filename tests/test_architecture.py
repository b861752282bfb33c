"""The architecture: which package may import which, what is pure, and how long files and functions may be."""

import ast
import re
from collections.abc import Iterator
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

from mcp_sessions._session import claims

PACKAGE = Path(__file__).resolve().parents[1] / "middleware" / "mcp_sessions"

MAY_IMPORT = {
    "_errors": (),
    "_files": ("_errors",),
    "_refusals": ("_errors",),
    "_session": ("_errors",),
    "_tokens": ("_errors", "_files", "_session"),
    "_protocol": ("_errors", "_refusals", "_session"),
    "_affinity": ("_errors", "_refusals", "_session", "_protocol", "_tokens", "stores"),
    "stores": ("_errors", "_files", "_refusals", "_session"),
    "telemetry": ("_errors", "_refusals", "_session", "_protocol"),
    "client": ("_errors", "_files", "_session", "_protocol"),
    "_dialects": (
        "_errors",
        "_refusals",
        "_session",
        "_protocol",
        "_tokens",
        "stores",
        "_affinity",
        "_server",
        "handles",
    ),
    "_server": (
        *("_errors", "_refusals", "_session", "_protocol", "_tokens", "stores", "telemetry", "_affinity", "_dialects"),
    ),
    "dialects": ("_dialects", "_server"),
    "errors": ("_errors",),
    "events": ("_session",),
    "keys": ("_tokens",),
    "operator": ("_server", "stores"),
    "testing": ("_errors", "_session", "_protocol", "_server", "stores"),
    "handles": ("_errors", "_session", "_tokens", "_server"),
    "integrations": ("_affinity", "_dialects", "_errors", "_session", "_tokens", "_server"),
    "_cli": ("_errors", "_session", "_protocol", "_tokens", "stores", "telemetry", "_server"),
}
CORE = {"_errors", "_files", "_refusals", "_session", "_tokens", "_protocol", "_server", "telemetry"}
PURE = {"_errors", "_refusals", "_session", "_protocol"}
IMPURE = {
    *"anyio asgiref asyncio concurrent http importlib io logging multiprocessing opentelemetry os pathlib".split(),
    *"random secrets select selectors signal socket sqlite3 ssl starlette subprocess tempfile threading time".split(),
    *"trio urllib".split(),
}
CLOCKS = {"now", "today", "utcnow"}
OPTIONAL = {
    "fastapi",
    "fastmcp",
    "httpx",
    "httpx2",
    "mcp",
    "mcp_types",
    "psycopg",
    "pydantic",
    "pydantic_core",
    "redis",
}
KINDS = {"SESSION", "TRANSPORT", "COOKIE", "USER", "CONVERSATION", "ARGUMENT", "FIELD", "COEXISTING"}
THE_LIST = {"Options", "dialects_of"}
DIALECT = re.compile(r"sep.?1364|\bbridg|cookie.jar", re.IGNORECASE)
MAX_FILE_LINES = 400
MAX_FUNCTION_LINES = 40

FILES = {path.relative_to(PACKAGE).with_suffix("").parts: path.read_text("utf-8") for path in PACKAGE.rglob("*.py")}
Imports = Iterator[tuple[int, tuple[str, ...]]]


def imports(file: tuple[str, ...], nodes: Iterator[ast.AST]) -> Imports:
    """Yield each imported name as 1 and its path in the package, or 0 and its path elsewhere."""
    for node in nodes:
        if isinstance(node, ast.Import):
            yield from ((0, tuple(alias.name.split("."))) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = file[: len(file) - node.level] if node.level else ()
            path = (*base, *(node.module.split(".") if node.module else ()))
            yield from ((min(node.level, 1), (*path, alias.name)) for alias in node.names)


def at_import(node: ast.AST, *, typing: bool = False) -> Iterator[ast.AST]:
    """Yield the nodes that run when a module is imported, or with `typing` also those that only type checkers read."""
    for child in ast.iter_child_nodes(node):
        if not typing and isinstance(child, ast.If) and ast.unparse(child.test) == "TYPE_CHECKING":
            yield from child.orelse
        elif not isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef):
            yield child
            yield from at_import(child, typing=typing)


@pytest.mark.parametrize("package", MAY_IMPORT)
def test_a_package_imports_what_it_may(package: str) -> None:
    """The rule holds anywhere in a file, inside functions and for types too."""
    files = [file for file in FILES if file[0] == package]
    used = {path[0] for file in files for own, path in imports(file, ast.walk(ast.parse(FILES[file]))) if own}
    assert files
    assert used - {package} <= {*MAY_IMPORT[package]}


@pytest.mark.parametrize("file", [file for file in FILES if file[0] in {"_server", "_protocol"}], ids="/".join)
def test_the_core_knows_no_dialect(file: tuple[str, ...]) -> None:
    """It imports their base class and what their list exports, and mentions no dialect and no kind of token."""
    tree = ast.parse(FILES[file])
    assert not DIALECT.findall(FILES[file])
    imported = {path for own, path in imports(file, ast.walk(tree)) if own}
    assert {path[1] for path in imported if path[0] == "_dialects"} <= {"base", *THE_LIST}
    assert not {path[2] for path in imported if path[:2] == ("_session", "claims")} & KINDS
    compared = {one for node in ast.walk(tree) if isinstance(node, ast.Compare) for one in ast.walk(node)}
    kinds = {getattr(claims, name) for name in KINDS}
    assert not {one.value for one in compared if isinstance(one, ast.Constant) and isinstance(one.value, str)} & kinds


def test_every_package_has_a_row() -> None:
    """Every package has its row of allowed imports; only the top-level module may import all."""
    assert {file[0] for file in FILES} == {*MAY_IMPORT, "__init__", "__main__"}


def test_no_file_imports_itself_by_way_of_others() -> None:
    """In the core, imports for types alone count, too."""
    modules = {file[:-1] if file[-1] == "__init__" else file: file for file in FILES}
    graph = {}
    for file, text in FILES.items():
        nodes = at_import(ast.parse(text), typing=file[0] in CORE)
        paths = [path for own, path in imports(file, nodes) if own]
        ends = [max((end for end in range(1, len(path) + 1) if path[:end] in modules), default=0) for path in paths]
        graph[file] = {modules[path[:end]] for path, end in zip(paths, ends, strict=True) if end} - {file}
    assert [*TopologicalSorter(graph).static_order()]


@pytest.mark.parametrize("file", [file for file in FILES if file[0] in PURE], ids="/".join)
def test_the_core_is_pure(file: tuple[str, ...]) -> None:
    """The core uses no I/O, clock, event loop, ASGI or OpenTelemetry: bytes and time in, decisions and bytes out."""
    nodes = [*ast.walk(ast.parse(FILES[file]))]
    assert not IMPURE & {path[0] for own, path in imports(file, iter(nodes)) if not own}
    assert not {"open", "print", "input"} & {node.id for node in nodes if isinstance(node, ast.Name)}
    assert not CLOCKS & {node.attr for node in nodes if isinstance(node, ast.Attribute)}


@pytest.mark.parametrize("file", FILES, ids="/".join)
def test_a_file_has_a_docstring_and_a_readable_length(file: tuple[str, ...]) -> None:
    """A file also imports its optional libraries lazily."""
    tree = ast.parse(FILES[file])
    assert ast.get_docstring(tree)
    assert FILES[file].count("\n") <= MAX_FILE_LINES
    assert not OPTIONAL & {path[0] for own, path in imports(file, at_import(tree)) if not own}


@pytest.mark.parametrize("file", FILES, ids="/".join)
def test_a_function_fits_a_screen(file: tuple[str, ...]) -> None:
    """Its body, without the docstring."""
    functions = [
        one for one in ast.walk(ast.parse(FILES[file])) if isinstance(one, ast.FunctionDef | ast.AsyncFunctionDef)
    ]
    bodies = {one.name: one.body[ast.get_docstring(one) is not None :] for one in functions}
    lines = {name: (body[-1].end_lineno or 0) - body[0].lineno + 1 for name, body in bodies.items() if body}
    assert [name for name, count in lines.items() if count > MAX_FUNCTION_LINES] == []
