"""A store in memory of which some methods fail."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from mcp_sessions._errors import StoreUnavailable
from mcp_sessions.stores import MemoryStore


class Failing(MemoryStore):
    """Raises an error in the methods that `failing` names, which a test may change."""

    def __init__(self, *failing: str, error: Callable[[], Exception] = StoreUnavailable, **options: Any) -> None:
        super().__init__(**options)
        self.failing = {*failing}
        self.error = error

    def __getattribute__(self, name: str) -> Any:
        failing = object.__getattribute__(self, "__dict__").get("failing", ())
        return super().__getattribute__("_fail" if name in failing else name)

    async def _fail(self, *_: object, **__: object) -> None:
        raise self.error()
