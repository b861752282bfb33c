"""What the stores in SQL do alike: changes of data within a transaction, and calls on threads, which leave no spans."""

from __future__ import annotations

import sys
from abc import abstractmethod
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future
from contextlib import AbstractContextManager, contextmanager, suppress
from typing import Any, Final, NamedTuple, TypeVar

import anyio
from anyio.lowlevel import current_token

from .._errors import StoreFull
from .._session.claims import Claims
from .._session.data import Namespace
from ._base import LIVE, ByName, FullLog, Standing, added, check_size, size_of

T = TypeVar("T")
_PLAIN: Final = "suppress_instrumentation"  # the key of older instrumentations
CallSoon = Callable[[Callable[[], object]], object]


class Item(NamedTuple):
    """A value that a transaction may change."""

    namespace: Namespace
    key: str
    value: bytes | None
    expires_at: float | None
    others: int  # bytes of the session's other values
    account: int = 0  # bytes of all data of its principal, where that is known before the change


class SQLTransaction:
    """What a call of the contract's methods does whatever the database.

    Attributes:
        now: Unix seconds.
    """

    now: float

    def __init__(self, leeway: float, vouches_always: bool) -> None:
        self._leeway = leeway
        self._vouches_always = vouches_always

    @abstractmethod
    def _changing(self, namespace: Namespace, key: str) -> AbstractContextManager[Item]:
        """Let nothing else change a session meanwhile; raise `DataGone` where it has ended."""
        ...

    @abstractmethod
    def _replace(self, item: Item, value: bytes | None, expires_at: float | None) -> None: ...

    def write(self, namespace: Namespace, key: str, value: bytes | None, *, expires_at: float | None = None) -> None:
        with self._changing(namespace, key) as item:
            self._save(item, value, expires_at)

    def compare_and_swap(self, namespace: Namespace, key: str, old: bytes | None, new: bytes | None) -> bool:
        with self._changing(namespace, key) as item:
            if item.value == old:
                self._save(item, new, item.expires_at)
        return item.value == old

    def add(self, namespace: Namespace, key: str, by: int) -> int:
        with self._changing(namespace, key) as item:
            total = added(item.value, by)
            self._save(item, b"%d" % total, item.expires_at)
        return total

    def _save(self, item: Item, value: bytes | None, expires_at: float | None) -> None:
        kept = value if expires_at is None or self.now < expires_at else None
        if kept is not None:
            check_size(item.namespace, item.others + size_of(item.key, kept))
        self._replace(item, kept, expires_at)

    def _standing(self, ended: bool, is_known: bool | None) -> Standing:
        if ended:
            return Standing.ENDED
        return LIVE if self._vouches_always or is_known else Standing.LOST


class SQLStore(ByName):
    """A store whose methods are those of a transaction.

    Attributes:
        _clock: Unix seconds.
    """

    _clock: Callable[[], float]

    def __init__(self) -> None:
        self._full_log = FullLog()

    async def admit(self, claims: Claims) -> None:
        """Note a session of the epoch's own second by its name: its date does not say on which side it is."""
        if await self.status(claims) is Standing.LOST:
            await self._call("admit", (claims,), {})

    async def _call(self, name: str, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        """Return what the method of `Transaction` with that name returns."""
        try:
            return await self._transact(name, args, kwargs)
        except StoreFull:
            if self._full_log.is_due(self._clock()):
                self._full_log.log(await self._transact("filling", (), {}))
            raise

    @abstractmethod
    async def _transact(self, name: str, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any: ...


def call_soon() -> CallSoon:
    """Return what calls a function in this event loop, asyncio's or Trio's, from any thread."""
    loop: Any = current_token().native_token
    found: CallSoon = getattr(loop, "call_soon_threadsafe", None) or loop.run_sync_soon
    return found


async def outcome(future: Future[T]) -> T:
    """Wait for a future in whichever event loop this is. A caller that gives up cancels what has not begun."""
    soon, done = call_soon(), anyio.Event()

    def wake(_future: object) -> None:
        with suppress(RuntimeError):  # that event loop has ended, and with it the caller
            soon(done.set)

    future.add_done_callback(wake)
    try:
        await done.wait()
        return future.result()
    finally:
        future.cancel()
        del future  # an error's traceback holds this frame, which would hold the error


@contextmanager
def hidden() -> Iterator[None]:
    """Keep instrumentations of drivers from making spans: most of what a store sends belongs to no request."""
    contexts: Any = sys.modules.get("opentelemetry.context")  # what was never imported instruments nothing
    if contexts is None:
        yield
        return
    key = getattr(contexts, "_SUPPRESS_INSTRUMENTATION_KEY", _PLAIN)
    token = contexts.attach(contexts.set_value(_PLAIN, True, contexts.set_value(key, True)))
    try:
        yield
    finally:
        contexts.detach(token)


def call_hidden(work: Callable[..., T], *arguments: Any) -> T:
    """Return what a call returns that is made on a thread, which has a context of its own."""
    with hidden():
        return work(*arguments)
