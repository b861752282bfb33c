"""`docs/api.md` documents every public name."""

from __future__ import annotations

import re
from importlib import import_module
from pathlib import Path
from typing import Any, get_args

import pytest
from environments import needs

from mcp_sessions._session.events import Fact
from mcp_sessions.stores.base import Store
from mcp_sessions.stores.memory import MemoryStore
from mcp_sessions.stores.redis import RedisStore
from mcp_sessions.stores.sqlite import SQLiteStore

PAGE = (Path(__file__).resolve().parent.parent.parent / "docs" / "api.md").read_text("utf-8")
DOCUMENTED = re.findall(r"^\.\. auto\w+:: ([\w.]+)", PAGE, re.MULTILINE)
MODULES = {
    "mcp_sessions": "mcp-sessions",
    "mcp_sessions.client": "mcp-sessions",
    "mcp_sessions.telemetry": "mcp-sessions",
    "mcp_sessions.integrations.fastapi": "fastapi",
    "mcp_sessions.integrations.fastmcp": "fastmcp",
    "mcp_sessions.integrations.sdk": "mcp",
}
"""The modules from which users import, each with the distribution that it needs."""


def found(path: str) -> Any:
    """Import what a full name names."""
    module, _, name = path.rpartition(".")
    return getattr(import_module(module), name)


@pytest.mark.parametrize("module", [pytest.param(name, marks=needs(what)) for name, what in MODULES.items()])
def test_every_public_name_is_on_the_page(module: str) -> None:
    """Every public name is documented, under its own name or another one of the same object."""
    things = [found(path) for path in DOCUMENTED]
    public = import_module(module)
    missing = [name for name in public.__all__ if not any(getattr(public, name) is thing for thing in things)]
    assert missing == []


def test_every_store_and_every_fact_is_on_the_page() -> None:
    """Stores and facts are documented, though they have no name in `mcp_sessions`."""
    stores = {MemoryStore, RedisStore, SQLiteStore, Store}
    assert stores | set(get_args(Fact)) <= {thing for thing in map(found, DOCUMENTED) if isinstance(thing, type)}


def test_every_name_has_one_entry() -> None:
    """A name is documented once."""
    assert len(DOCUMENTED) == len(set(DOCUMENTED))
