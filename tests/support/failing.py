"""A store in memory of which some methods fail, or something happens before."""

from collections.abc import Awaitable, Callable
from typing import Any

from mcp_sessions._errors import StoreUnavailable
from mcp_sessions.stores import MemoryStore


class Failing(MemoryStore):
    """Raises an error in the methods that `failing` names, which a test may change.

    What a test sets in `before` happens just before the next call of a method, as another worker might act then.
    """

    def __init__(self, *failing: str, error: Callable[[], Exception] = StoreUnavailable, **options: Any) -> None:
        super().__init__(**options)
        self.failing = {*failing}
        self.before: dict[str, Callable[..., Awaitable[object]]] = {}
        self.error = error

    def __getattribute__(self, name: str) -> Any:
        known = object.__getattribute__(self, "__dict__")
        method = super().__getattribute__("_fail" if name in known.get("failing", ()) else name)
        before = known.get("before", {})
        if name not in before:
            return method

        async def overtaken(*args: Any, **options: Any) -> Any:
            await before.pop(name)(*args)
            return await method(*args, **options)

        return overtaken

    async def _fail(self, *_: object, **__: object) -> None:
        raise self.error()
