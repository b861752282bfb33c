"""The session in handlers of FastMCP 3 and 4 (`session: Session = Depends(require_session)`), and its state there.

FastMCP keeps `ctx.set_state` under an id of the connection, which with stateless HTTP and in the modern era is a new
one for each request. `SessionStateStore` keeps it in the data of our session instead.
Sources: FastMCP's `session_state_store=`; the protocol `AsyncKeyValue` of py-key-value.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, SupportsFloat

from .._server.current import current_session, require_session
from .._session.data import ReservedName
from .._session.session import Session, find_session

if TYPE_CHECKING:
    from key_value.aio.protocols.key_value import AsyncKeyValue

__all__ = ["SessionStateStore", "current_session", "require_session"]


class SessionStateStore:
    """FastMCP's state in the session's data: `FastMCP("cart", session_state_store=SessionStateStore())`.

    `ctx.set_state` and `ctx.get_state` then use the session of the request, in both eras, on every worker, until it
    ends; `ctx.enable_components` and the like do so for clients of the legacy era. The limits of `session.data` apply,
    but none of its names reaches a value of FastMCP's.
    `ctx.set_state` replaces the previous value: use `session.data.update` if parallel calls must not lose changes.
    """

    def __init__(self, fallback: AsyncKeyValue | None = None) -> None:
        """Args:
        fallback: The store for everything else: the state of requests without a session, of users (`UserSession`)
            and of ids that the model passes on (`SessionId`). None keeps it in this process.
        """
        self._given = fallback

    async def get(self, key: str, *, collection: str | None = None) -> dict[str, Any] | None:
        session, name = _locate(key)
        if session is None:
            return await self._fallback.get(key, collection=collection)
        value: dict[str, Any] | None = await session.data.get(name)
        return value

    async def ttl(self, key: str, *, collection: str | None = None) -> tuple[dict[str, Any] | None, float | None]:
        """Return a value and its seconds to live, which a session's data does not tell: None."""
        session, name = _locate(key)
        if session is None:
            return await self._fallback.ttl(key, collection=collection)
        return await session.data.get(name), None

    async def put(
        self, key: str, value: Mapping[str, Any], *, collection: str | None = None, ttl: SupportsFloat | None = None
    ) -> None:
        """Keep a value, at the longest until the session ends.

        Raises:
            DataError: The session's data does not take it; see `session.data.set`.
        """
        session, name = _locate(key)
        if session is None:
            await self._fallback.put(key, value, collection=collection, ttl=ttl)
        else:
            await session.data.set(name, dict(value), ttl=None if ttl is None else float(ttl))

    async def delete(self, key: str, *, collection: str | None = None) -> bool:
        session, name = _locate(key)
        if session is None:
            return await self._fallback.delete(key, collection=collection)
        was_there = await session.data.get(name) is not None
        await session.data.delete(name)
        return was_there

    async def get_many(self, keys: Sequence[str], *, collection: str | None = None) -> list[dict[str, Any] | None]:
        return [await self.get(key, collection=collection) for key in keys]

    async def ttl_many(
        self, keys: Sequence[str], *, collection: str | None = None
    ) -> list[tuple[dict[str, Any] | None, float | None]]:
        return [await self.ttl(key, collection=collection) for key in keys]

    async def put_many(
        self,
        keys: Sequence[str],
        values: Sequence[Mapping[str, Any]],
        *,
        collection: str | None = None,
        ttl: SupportsFloat | None = None,
    ) -> None:
        for key, value in zip(keys, values, strict=True):
            await self.put(key, value, collection=collection, ttl=ttl)

    async def delete_many(self, keys: Sequence[str], *, collection: str | None = None) -> int:
        return sum([await self.delete(key, collection=collection) for key in keys])

    @property
    def _fallback(self) -> AsyncKeyValue:
        if self._given is None:
            from key_value.aio.stores.memory import MemoryStore

            self._given = MemoryStore()
        return self._given


def _locate(key: str) -> tuple[Session | None, str]:
    """Return the session that a key of FastMCP's belongs to, if any, and the name of its value there."""
    session = find_session()
    if session is None:
        return None, key
    from fastmcp.server.dependencies import get_context

    try:
        prefix = f"{get_context().session_id}:"  # of FastMCP's own keys: the id that it gave the request
    except RuntimeError:  # FastMCP is handling nothing
        return None, key
    if not key.startswith(prefix):
        return None, key
    return session, ReservedName("fastmcp", key.removeprefix(prefix))
