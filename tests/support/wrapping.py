"""A store around another, for tests that count its calls, delay them or let them fail."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from mcp_sessions.stores import Store, StoreScope
from mcp_sessions.stores._base import METHODS


class StoreWrapper:
    """A store that passes every call on, by `_call`, which a subclass may override."""

    if TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any: ...

    def __init__(self, store: Store) -> None:
        self._store = store

    @property
    def scope(self) -> StoreScope:
        return self._store.scope

    def _call(self, name: str, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        return getattr(self._store, name)(*args, **kwargs)


def _passed_on(name: str) -> Any:
    return lambda self, *args, **kwargs: self._call(name, args, kwargs)


for _name in METHODS:
    setattr(StoreWrapper, _name, _passed_on(_name))
