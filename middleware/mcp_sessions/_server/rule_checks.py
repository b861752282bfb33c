"""Compares the names in `require=` with what the wrapped server lists, before the first request.

A rule for a name that the server does not have would never match. A rule by name is evaded if a tool runs others by a
name in its arguments, as some transforms of FastMCP do: they search for tools, or turn resources into tools.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from difflib import get_close_matches
from typing import Any, Final

import anyio

from .._protocol.policy import Policy
from .route_tree import attribute, is_a, managers, reachable

MISSPELT: Final = (
    "require= names %r for %s, which the server does not have: the rule would hold for nothing. Did you mean %r?"
)
MISSING: Final = (
    "require= names %r for %s, which the server does not list: the rule holds for nothing until it does. Check the "
    "spelling, or take it out"
)
DISPATCHES: Final = (
    "the tool %r does what %s does, for a name in its arguments, so clients could use it to evade require=. Require a "
    'session for this tool, too, as in require={"tools/call": [%r, ...]}, or for all tools: "tools/call": True'
)
MAY_DISPATCH: Final = (
    "the tool %r may do what %s does, for a name in its arguments, as tools of its name do in FastMCP. If so, clients "
    'could use it to evade require=: require a session for this tool, too, as in require={"tools/call": [%r, ...]}'
)
DISPATCHERS: Final[Mapping[str, tuple[str, str]]] = {
    "BaseSearchTransform": ("_call_tool_name", "tools/call"),
    "CodeMode": ("execute_tool_name", "tools/call"),
    "ResourcesAsTools": ("read_resource", "resources/read"),
    "PromptsAsTools": ("get_prompt", "prompts/get"),
    "ResourceToolMiddleware": ("read_resource", "resources/read"),
    "PromptToolMiddleware": ("get_prompt", "prompts/get"),
}
"""FastMCP's transforms and middleware: the tool of each, or the attribute that names it, and what it does by name."""
_NAMES: Final[Mapping[str, str]] = {
    "call_tool": "tools/call",
    "execute": "tools/call",
    "read_resource": "resources/read",
    "get_prompt": "prompts/get",
}
"""The usual names of such tools, by which one is known behind a proxy, and what they do by name."""
LISTING: Final = 5.0  # seconds that a server may take to list what it has
_SDK_1: Final = {
    "tools": "ListToolsRequest",
    "prompts": "ListPromptsRequest",
}
_NEAR: Final = 0.85  # of similarity, as for methods
_log: Final = logging.getLogger("mcp_sessions")


async def error_of_rules(app: object, endpoint: str | None, require: object, policy: Policy) -> str | None:
    """Return why rules cannot hold, with the remedy; None if they may, or if what the server has is not seen.

    A name that nothing resembles is a warning, since it may be added later.
    """
    if policy.summary != "some":
        return None
    servers = [manager.app for manager in managers(reachable(app, endpoint))]
    rules = require.items() if isinstance(require, Mapping) else ()
    for method, names in rules:
        if isinstance(names, bool):
            continue
        if (error := await _misspelt(servers, method, sorted(names))) is not None:
            return error
    for server in servers:
        if (error := await _dispatches(server, policy, is_function=callable(require))) is not None:
            return error
    return None


async def _misspelt(servers: list[Any], method: str, names: Iterable[str]) -> str | None:
    """Return what is wrong with names that the servers do not have, if all of them can be listed."""
    what = method.partition("/")[0]
    listed = [await _listed(server, what) for server in servers]
    known = {name for found in listed for name in found or ()}
    if not listed or None in listed:
        return None
    for name in names:
        if name in known or any([await _has(server, what, name) for server in servers]):
            continue
        if (near := _nearest(name, known)) is not None:
            return MISSPELT % (name, method, near)
        _log.warning(MISSING, name, method)
    return None


async def _listed(server: Any, what: str) -> set[str] | None:
    """Return the names of what a server lists without a request, or None if it does not list all."""
    with suppress(Exception), anyio.move_on_after(LISTING):
        found = await _ask(server, what)
        return {str(one.name) for one in found}
    return None


async def _ask(server: Any, what: str) -> Iterable[Any]:
    if (fastmcp := getattr(server, "fastmcp", None)) is not None:
        fastmcps: Iterable[Any] = await getattr(fastmcp, f"list_{what}")(run_middleware=False)
        return fastmcps
    if hasattr(server, "get_request_handler"):  # SDK 2
        result = await server.get_request_handler(f"{what}/list").handler(None, None)
        pages, items = result.next_cursor, getattr(result, what)
    else:
        handlers = {kind.__name__: handler for kind, handler in server.request_handlers.items()}
        result = (await handlers[_SDK_1[what]](None)).root
        pages, items = result.nextCursor, getattr(result, what)
    if pages:
        raise LookupError(what)
    listed: Iterable[Any] = items
    return listed


async def _has(server: Any, what: str, name: str) -> bool:
    """Return whether FastMCP serves a name that it does not list, such as a tool that is found by a search."""
    with suppress(Exception), anyio.move_on_after(LISTING):
        return await getattr(server.fastmcp, f"get_{what[:-1]}")(name) is not None
    return False


def _nearest(name: str, known: Iterable[str]) -> str | None:
    """Return the known name of which another is a spelling, or None; names that differ in digits alone are two."""
    folded = {_letters(one): one for one in known}
    if (same := folded.get(_letters(name))) is not None:
        return same
    for one in sorted(folded.values()):
        if one.endswith(f"_{name}"):  # as a server that is mounted with a namespace lists it
            return one
    near = get_close_matches(name, folded.values(), n=1, cutoff=_NEAR)
    return next((one for one in near if re.sub(r"\d", "", one) != re.sub(r"\d", "", name)), None)


def _letters(name: str) -> str:
    return re.sub(r"[\W_]+", "", name.casefold())


# --- tools that run others by name ---------------------------------------------------------------


async def _dispatches(server: Any, policy: Policy, *, is_function: bool) -> str | None:
    """Return which tool evades the rules, if one does what they guard and is not guarded itself."""
    fastmcp = getattr(server, "fastmcp", None)
    for tool, method in _dispatchers(fastmcp):
        listed = await _listed(server, "tools") or ()
        # A server that is mounted with a namespace has its tools listed with a prefix.
        names = [name for name in listed if name == tool or name.endswith(f"_{tool}")] or [tool]
        is_guarded = is_function or policy.requires(method, lambda: None, False)
        for name in names if is_guarded else ():
            if not policy.requires("tools/call", lambda name=name: name, False):  # type: ignore[misc]
                return DISPATCHES % (name, method, name)
    await _warn_of_names(server, policy, is_function=is_function)
    return None


async def _warn_of_names(server: Any, policy: Policy, *, is_function: bool) -> None:
    """Log which tools may evade the rules, as far as their names say so."""
    for name in sorted(await _listed(server, "tools") or ()):
        method = next((does for tool, does in _NAMES.items() if name == tool or name.endswith(f"_{tool}")), None)
        if method is None or policy.requires("tools/call", lambda name=name: name, False):  # type: ignore[misc]
            continue
        if is_function or policy.requires(method, lambda: None, False):
            _log.warning(MAY_DISPATCH, name, method, name)


def _dispatchers(fastmcp: object) -> Iterator[tuple[str, str]]:
    """Yield each tool that does what a method does, and that method, in a server and those mounted in it."""
    seen: set[int] = set()
    ahead = [fastmcp]
    for part in ahead:
        if part is None or id(part) in seen:
            continue
        seen.add(id(part))
        ahead += [attribute(part, name) for name in ("server", "_server", "_inner", "_provider")]
        ahead += attribute(part, "providers") or ()
        for transform in [*(attribute(part, "_transforms") or ()), *(attribute(part, "middleware") or ())]:
            for kind, (tool, method) in DISPATCHERS.items():
                if is_a(transform, kind):
                    named = attribute(transform, tool)
                    yield (named if isinstance(named, str) else tool), method
