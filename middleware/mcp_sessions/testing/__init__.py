"""For tests of your own: a session without a server, and the contract of a store.

    with session_for_test(data={"cart": ["socks"]}) as session:
        assert await my_tool() == "1 thing in the cart"
        assert await session.data.get("cart") == ["socks"]

The contracts need pytest, and are imported on first use: `StoreContract` and `SharedStoreContract` of stores,
`DialectContract` of dialects.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Coroutine, Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import partial
from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

from anyio.lowlevel import current_token

from .._errors import DataError
from .._session.claims import AUDIENCE, SESSION, Claims, Principal, RedactedRepr
from .._session.data import Data, Namespace
from .._session.session import Session, shown_variable
from .._session.state import State, check_size, encode_state
from ..stores._base import Record
from ..stores._memory import MemoryStore
from ..stores._threads import BLOCKS

if TYPE_CHECKING:
    from ._dialect_contract import DialectContract, Held
    from ._dialect_peers import Answer, Call
    from ._store_contract import SharedStoreContract, StoreContract

__all__ = ["Answer", "Call", "DialectContract", "Held", "SharedStoreContract", "StoreContract", "session_for_test"]

_WHEN_ASKED_FOR: Final = {
    "Answer": "_dialect_peers",
    "Call": "_dialect_peers",
    "DialectContract": "_dialect_contract",
    "Held": "_dialect_contract",
    "SharedStoreContract": "_store_contract",
    "StoreContract": "_store_contract",
}
"""The modules of the names that are imported on first use."""

with suppress(ImportError):
    from pytest import register_assert_rewrite  # noqa: PT013

    register_assert_rewrite(*(f"{__name__}.{name}" for name in ("_contract", *_WHEN_ASKED_FOR.values())))


@contextmanager
def session_for_test(
    *,
    state: Mapping[str, Any] | None = None,
    data: Mapping[str, Any] | None = None,
    principal: Principal | None = None,
    lifetime: int = 3600,  # seconds
) -> Iterator[Session]:
    """Provide a session for the block, as `current_session()` returns it, without a server or client.

    It behaves like a real session with a store in memory, and raises the same errors. An in-memory client must connect
    inside the block, so that its server runs there.

    Args:
        state: The initial content of `session.state`.
        data: The initial content of `session.data`.
        principal: The caller that the session belongs to, or None for an anonymous one.
        lifetime: Seconds until `session.expires_at`.

    Raises:
        StateNotJSON: A value of `state` does not survive a round trip through JSON.
        StateTooLarge: `state` takes more bytes than `Limits.state_bytes` allows by default.
        DataNotJSON: A value of `data` does not.
    """
    now = int(time.time())
    of: dict[str, Any] = {"issuer": AUDIENCE, "audience": AUDIENCE, "jti": secrets.token_urlsafe(16), "client": "test"}
    claims = Claims(kind=SESSION, issued_at=now, expires_at=now + lifetime, **of)
    stored = encode_state(dict(state or {}))
    check_size(stored)
    held = State(stored, check=check_size)
    token = f"{claims.jti}-of-a-test"
    session = Session(_NoServer(), claims, principal, claims.expires_at, held, token)
    for key, value in (data or {}).items():
        _step(partial(session.data.set, key, value))
    shown = shown_variable.set({"mcp_session": session})
    try:
        yield session
    finally:
        shown_variable.reset(shown)


class _NoServer(RedactedRepr):
    """Stands in for the middleware: a `SessionRuntime` with a store in memory."""

    def __init__(self) -> None:
        self._store = MemoryStore()

    def data(self, ref: str, expires_at: int, _subject: str | None, _loop: Any) -> Data:
        place = Namespace(ref, expires_at, max_bytes=1 << 20)
        return Data(self._store, place, clock=time.time, max_value_bytes=1 << 16, blocking=_call_off_loop)

    def principal(self, _scope: object) -> None:
        """No other caller: a test handles one request, with all that comes of it."""

    async def client_capabilities(self, _claims: Claims) -> None:
        """No client has stated any."""

    async def end_session(self, claims: Claims, reason: str) -> None:
        await self._store.revoke(Record.of(claims), reason=reason, lease=0)


def _call_off_loop(call: Callable[[], Coroutine[Any, Any, Any]]) -> Any:
    """Serve `session.data.sync`, which is refused on an event loop as in a server, and needs none here."""
    with suppress(RuntimeError):  # no event loop runs
        current_token()
        raise DataError(BLOCKS)
    return _step(call)


def _step(call: Callable[[], Coroutine[Any, Any, Any]]) -> Any:
    try:
        call().send(None)
    except StopIteration as done:  # nothing in memory waits, so each call is done at its first step
        return done.value


def __getattr__(name: str) -> Any:
    if name not in _WHEN_ASKED_FOR:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f".{_WHEN_ASKED_FOR[name]}", __name__), name)
