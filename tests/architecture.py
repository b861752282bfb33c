"""The house rules of the package, as a checker that reads source text and never imports it.

`FLOORS` lists every file; a file imports its own floor or a lower one, and imports never run in a circle. The two
lowest floors are pure: no I/O, no clock, no framework. `violations` returns sentences, one per broken rule, so that
a failing test reads as a list of what to mend.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

# What each room is for stands in its own docstring. A folder stands for every file in it.
FLOORS: dict[int, tuple[str, ...]] = {
    0: ("carried", "data", "discreet", "errors/", "events", "jsonvalue", "session", "tracing"),
    1: (
        "appending",
        "clientinfo",
        "correlation",
        "dialects/",
        "envelope",
        "extensions",
        "handles",
        "jsonrpc",
        "keys",
        "limits",
        "lineage",
        "members",
        "nesting",
        "policy",
        "protocol",
        "splice",
        "sse",
        "state",
        "tokens",
    ),
    2: ("stores/",),
    3: (
        "__init__",
        "__main__",
        "admission",
        "answers",
        "background",
        "bodyless",
        "bridge",
        "checks",
        "cli",
        "cli_probe",
        "cli_sessions",
        "cli_tail",
        "client/",
        "codes",
        "conversation",
        "conversing",
        "current",
        "endings",
        "exchange",
        "forks",
        "forwarding",
        "explicit_handles",
        "field_answers",
        "field_exchange",
        "handshake",
        "head",
        "hooks",
        "intake",
        "integrations/",
        "keyfile",
        "lifespan",
        "listeners",
        "live",
        "logs",
        "methods",
        "minting",
        "middleware",
        "opening",
        "options",
        "paths",
        "placement",
        "principals",
        "probe/",
        "responder",
        "resumption",
        "roster",
        "sessions",
        "settings",
        "streams",
        "sweeper",
        "telemetry/",
        "terminal",
        "told",
        "unconfirmed",
        "workers",
        "writeback",
    ),
}

PURE = 1  # the highest floor that does no I/O and knows no clock, no event loop and no framework
IMPURE_MODULES = frozenset(
    "anyio asgiref asyncio concurrent fastapi fastmcp http httpx httpx2 importlib io logging mcp multiprocessing "
    "opentelemetry os pathlib redis sched select selectors signal sniffio socket socketserver sqlite3 ssl starlette "
    "subprocess tempfile threading time trio urllib uvicorn".split()
)
IMPURE_BUILTINS = frozenset({"input", "open", "print"})
CLOCKS = frozenset({"now", "today", "utcnow"})
OPTIONAL = frozenset({"fastapi", "fastmcp", "httpx", "httpx2", "mcp", "mcp_types", "redis"})

MAX_FILE_LINES = 400
MAX_BODY_LINES = 40

Function = ast.FunctionDef | ast.AsyncFunctionDef


@dataclass(frozen=True)
class Room:
    """One source file, named by its path in the package: `errors`, `stores/base`, `stores/__init__`."""

    name: str
    source: str

    @cached_property
    def tree(self) -> ast.Module:
        """The file's syntax tree."""
        return ast.parse(self.source)

    @property
    def floor(self) -> int | None:
        """Where `FLOORS` lists the file or its folder, or None."""
        names = {self.name, f"{self.name.split('/', maxsplit=1)[0]}/"}
        return next((floor for floor, rooms in FLOORS.items() if names.intersection(rooms)), None)


def read_house(package: Path) -> dict[str, Room]:
    """Every source file of a package folder, by name."""
    rooms = {}
    for path in sorted(package.rglob("*.py")):
        name = path.relative_to(package).with_suffix("").as_posix()
        rooms[name] = Room(name, path.read_text("utf-8"))
    return rooms


def violations(package: Path) -> list[str]:
    """Every broken rule of a package folder, as sentences that begin with the file's name."""
    house = read_house(package)
    found = [fault for room in house.values() for fault in _faults(room, house, package.name)]
    return found + list(_cycles(house, package.name))


def _faults(room: Room, house: dict[str, Room], package: str) -> Iterator[str]:
    if room.floor is None:
        yield f"{room.name}: not listed in FLOORS"
    else:
        yield from _upward(room, room.floor, house, package)
        if room.floor <= PURE:
            yield from _impure(room)
    yield from _optional_at_top(room)
    yield from _sizes(room)


def _upward(room: Room, floor: int, house: dict[str, Room], package: str) -> Iterator[str]:
    for target in sorted(imported_rooms(room, house, package)):
        above = house[target].floor
        if above is not None and above > floor:
            yield f"{room.name}: floor {floor} imports {target}, which is on floor {above}"


def _cycles(house: dict[str, Room], package: str) -> Iterator[str]:
    graph = {name: imported_rooms(room, house, package) for name, room in house.items()}
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        circle = error.args[1][::-1]
        yield f"{circle[0]}: imports in a circle: {' -> '.join(circle)}"


def _impure(room: Room) -> Iterator[str]:
    for module in sorted(IMPURE_MODULES.intersection(_foreign(ast.walk(room.tree)))):
        yield f"{room.name}: a pure floor imports {module}"
    for node in ast.walk(room.tree):
        match node:
            case ast.Call(func=ast.Name(id=name)) if name in IMPURE_BUILTINS:
                yield f"{room.name}:{node.lineno}: a pure floor calls {name}()"
            case ast.Attribute(attr=name, value=ast.Name(id=kind) | ast.Attribute(attr=kind)) if (
                name in CLOCKS and kind in {"date", "datetime"}
            ):
                yield f"{room.name}:{node.lineno}: a pure floor reads the clock ({kind}.{name})"


def _optional_at_top(room: Room) -> Iterator[str]:
    for module in sorted(OPTIONAL.intersection(_foreign(_run_at_import(room.tree)))):
        yield f"{room.name}: imports {module}, which is optional, when it is itself imported"


def _sizes(room: Room) -> Iterator[str]:
    lines = len(room.source.splitlines())
    if lines > MAX_FILE_LINES:
        yield f"{room.name}: {lines} lines, more than {MAX_FILE_LINES}"
    if lines and ast.get_docstring(room.tree) is None:
        yield f"{room.name}: no module docstring"
    for node in ast.walk(room.tree):
        if isinstance(node, Function) and (length := _body_lines(node)) > MAX_BODY_LINES:
            yield f"{room.name}:{node.lineno}: {node.name} has {length} lines, more than {MAX_BODY_LINES}"


def _body_lines(function: Function) -> int:
    body = function.body[1:] if ast.get_docstring(function) is not None else function.body
    return (body[-1].end_lineno or 0) - body[0].lineno + 1 if body else 0


# --- imports -------------------------------------------------------------------------------------


def imported_rooms(room: Room, house: dict[str, Room], package: str) -> set[str]:
    """The rooms of the same package that a file imports, at its top or anywhere in it."""
    found = {target for node in ast.walk(room.tree) for target in _targets(node, room, house, package)}
    return found - {room.name}


def _targets(node: ast.AST, room: Room, house: dict[str, Room], package: str) -> Iterator[str]:
    match node:
        case ast.Import(names=names):
            paths = (tuple(alias.name.split(".")) for alias in names)
            yield from (_room_at(path[1:], house) for path in paths if path[0] == package)
        case ast.ImportFrom(module=module, level=level, names=names):
            base = _absolute(module, level, room, package)
            if base is not None:
                yield from (_room_at((*base, alias.name), house) for alias in names)


def _room_at(path: tuple[str, ...], house: dict[str, Room]) -> str:
    """The file that a dotted path leads to: `stores.base.Store` to `stores/base`, a name of ours to `__init__`."""
    for end in range(len(path), 0, -1):
        for name in ("/".join(path[:end]), "/".join((*path[:end], "__init__"))):
            if name in house:
                return name
    return "__init__"


def _absolute(module: str | None, level: int, room: Room, package: str) -> tuple[str, ...] | None:
    """A `from` import's path inside the package, or None where it leads elsewhere."""
    parts = tuple(module.split(".")) if module else ()
    if level == 0:
        return parts[1:] if parts[0] == package else None
    folders = room.name.split("/")[:-1]
    return (*folders[: len(folders) - level + 1], *parts)


def _foreign(nodes: Iterator[ast.AST]) -> set[str]:
    """The top-level names of the modules from elsewhere that the nodes import."""
    found: set[str] = set()
    for node in nodes:
        match node:
            case ast.Import(names=names):
                found.update(alias.name.split(".")[0] for alias in names)
            case ast.ImportFrom(module=str(module), level=0):
                found.add(module.split(".")[0])
    return found


def _run_at_import(node: ast.AST) -> Iterator[ast.AST]:
    """The nodes that run when a module is imported: not function bodies, not `if TYPE_CHECKING:`."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.If) and ast.unparse(child.test) in {"TYPE_CHECKING", "typing.TYPE_CHECKING"}:
            yield from child.orelse
        elif not isinstance(child, Function):
            yield child
            yield from _run_at_import(child)
