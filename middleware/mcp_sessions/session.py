"""The session that an application sees, and the state that it may change.

A `Session` is made anew for each request from a verified token. It does no I/O of its own: what
ends a session is handed in by the shell. The id is a credential, so it stays out of `repr`,
pickles and copies; `ref` is the name to log.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator, MutableMapping
from dataclasses import dataclass
from datetime import datetime, timezone
from typing import Any, NoReturn

import msgspec

from . import jsonvalue
from .data import Data
from .errors import StateClosed, StateNotJSON, StoreUnavailable

Ender = Callable[["Session", str, bool], Awaitable[None]]
"""Ends a session: for what reason, and whether with all that was forked from it."""


@dataclass(frozen=True, slots=True)
class Principal:
    """Who a request is authenticated as.

    Args:
        client_id: The OAuth client, or the name of the authenticated user where there is no client.
        issuer: Who vouches for it, or None where the server does not say.
        subject: The user within that issuer, or None where the server does not say.
    """

    client_id: str | None = None
    issuer: str | None = None
    subject: str | None = None


@dataclass(frozen=True, slots=True)
class Correlation:
    """What a client calls the conversation that a request belongs to: a label, and never proof of anything.

    Args:
        id: The name, of at most 256 printable characters. Anybody may send any.
        source: Where it stood, as the option names it, such as `"meta:openai/session"`.
    """

    id: str
    source: str


class State(MutableMapping[str, Any]):
    """Small application data that the client carries, sealed, from request to request.

    A mutable mapping of JSON values. It is last-write-wins: two parallel requests that both change
    it leave one of the two changes with the client. What must not be lost belongs on the server.

    Attributes:
        received: Whether the request carried a state at all; a session that was never given one and
            a session whose state is empty are told apart by this.
    """

    __slots__ = ("_check", "_closed", "_loaded", "_payload", "_values", "received")

    def __init__(self, payload: bytes | None, *, check: Callable[[bytes], object]) -> None:
        """Args:
        payload: The JSON object that the request carried, or None.
        check: Called with the JSON that would be kept; raises `StateTooLarge`.
        """
        self.received = payload is not None
        self._payload = payload if payload is not None else b"{}"
        self._values: dict[str, Any] = {}
        self._loaded = False
        self._closed = False
        self._check = check

    def _load(self) -> dict[str, Any]:
        if not self._loaded:
            self._values = msgspec.json.decode(self._payload, type=dict[str, Any])
            self._loaded = True
        return self._values

    def __getitem__(self, key: str) -> Any:
        return self._load()[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self._load())

    def __len__(self) -> int:
        return len(self._load())

    def __setitem__(self, key: str, value: Any) -> None:
        values = self._writable()
        changed = {**values, key: value}
        self._check(encode_state(changed))
        values[key] = value

    def __delitem__(self, key: str) -> None:
        del self._writable()[key]

    def __repr__(self) -> str:
        return f"<State {'closed' if self._closed else 'open'}>"

    def _writable(self) -> dict[str, Any]:
        if self._closed:
            raise StateClosed("the response has left; session state can be changed only while the request is handled")
        return self._load()

    def section(self, name: str) -> MutableMapping[str, Any]:
        """A part of the state that one library can use without knowing the others.

        Args:
            name: The section's name, best the name of the library.

        Returns:
            A mutable mapping that is written back like the state itself.
        """
        return Section(self, name)

    def close(self) -> bytes | None:
        """Refuse further writes and tell what must be sent back.

        Returns:
            The JSON object to seal, or None when nothing changed.

        Raises:
            StateTooLarge: A nested value grew past the limit.
            StateNotJSON: A nested value has no JSON form.
        """
        self.shut()
        if not self._loaded:
            return None
        payload = encode_state(self._values)
        if payload == self._payload:
            return None
        self._check(payload)
        return payload

    @property
    def untouched(self) -> bool:
        """Whether nobody has looked at it, so that nothing can have changed."""
        return not self._loaded

    def shut(self) -> None:
        """Refuse further writes: the response has left, or never will."""
        self._closed = True

    @property
    def payload(self) -> bytes:
        """The JSON object as it was received, `{}` when none was."""
        return self._payload


class UnreadState(State):
    """A state that lies in a store which does not answer. Nobody knows it, so to look at it or to write is an error.

    Args:
        reason: Why the store did not answer.
    """

    __slots__ = ("_reason",)

    def __init__(self, reason: str) -> None:
        super().__init__(None, check=len)
        self._reason = reason

    def _load(self) -> NoReturn:
        raise StoreUnavailable(self._reason)


class Section(MutableMapping[str, Any]):
    """One library's part of a `State`, kept under its own name."""

    __slots__ = ("_name", "_state")

    def __init__(self, state: State, name: str) -> None:
        self._state = state
        self._name = name

    def _values(self) -> dict[str, Any]:
        values = self._state.get(self._name, {})
        if not isinstance(values, dict):
            raise StateNotJSON(f"session state holds a plain value under {self._name!r}, not a section")
        return values

    def __getitem__(self, key: str) -> Any:
        return self._values()[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self._values())

    def __len__(self) -> int:
        return len(self._values())

    def __setitem__(self, key: str, value: Any) -> None:
        self._state[self._name] = {**self._values(), key: value}

    def __delitem__(self, key: str) -> None:
        values = dict(self._values())
        del values[key]
        self._state[self._name] = values


def encode_state(values: dict[str, Any]) -> bytes:
    """JSON of a state, or `StateNotJSON` where a value has none."""
    try:
        return jsonvalue.encode(values)
    except ValueError as error:
        raise StateNotJSON(f"session state must be JSON: {error}") from error


async def _nothing() -> None:
    """What is known of a client that never said what it can do."""


class Session:
    """A logical session, as one request sees it.

    Attributes:
        ref: The session's public name: safe in logs and traces, worthless as a credential.
        principal: Who the session belongs to, or None for an anonymous one.
        parent: The `ref` of the session that it was forked from, or None.
        client: What the client called itself when the session was created, name and version, or None. Its own
            word: nothing vouches for it.
        traceparent: The trace context (W3C) of the session's start, for spans of your own that shall link to
            it, or None where nobody traced.
        state: Data that the client carries; changes are written back with the response.
        correlation: What the client of this request calls its conversation, where `correlate=` looks for it, or
            None. A label, which anybody may send: no access and no data may hang on it.
    """

    __slots__ = (
        *("_created_at", "_data", "_ended", "_ender", "_expires_at", "_id", "_make_data", "_read_capabilities"),
        *("client", "correlation", "parent", "principal", "ref", "state", "traceparent"),
    )

    def __init__(
        self,
        id: str,
        *,
        ref: str,
        created_at: int,
        expires_at: int,
        state: State,
        ender: Ender,
        make_data: Callable[[], Data],
        principal: Principal | None = None,
        parent: str | None = None,
        read_capabilities: Callable[[], Awaitable[bytes | None]] = _nothing,
        client: str | None = None,
        traceparent: str | None = None,
    ) -> None:
        """Args:
        id: The token as the client holds it.
        ref: Its public name.
        created_at: Unix seconds.
        expires_at: Unix seconds.
        state: What the client carried.
        ender: Makes every worker refuse the session.
        make_data: Gives what the server keeps for it; called when somebody asks.
        principal: Who the request is authenticated as.
        parent: The `ref` of the session that it was forked from.
        read_capabilities: Reads the JSON of what its client said that it can do.
        client: What its client calls itself.
        traceparent: The trace context of its start.
        """
        self._id = id
        self.ref = ref
        self.parent = parent
        self.principal = principal
        self.client = client
        self.traceparent = traceparent
        self._created_at = created_at
        self._expires_at = expires_at
        self.state = state
        self._ender = ender
        self._ended = False
        self._make_data = make_data
        self._read_capabilities = read_capabilities
        self._data: Data | None = None
        self.correlation: Correlation | None = None

    @property
    def id(self) -> str:
        """The session id: a credential. Never log, trace or display it."""
        return self._id

    @property
    def created_at(self) -> datetime:
        """When it was created, UTC."""
        return utc(self._created_at)

    @property
    def expires_at(self) -> datetime:
        """When it ends at the latest, UTC."""
        return utc(self._expires_at)

    @property
    def data(self) -> Data:
        """What the server keeps for the session, shared by its parallel requests on every worker without loss."""
        if self._data is None:
            self._data = self._make_data()
        return self._data

    @property
    def has_data(self) -> bool:
        """Whether anybody asked for `data` in this request."""
        return self._data is not None

    async def client_capabilities(self) -> dict[str, Any] | None:
        """What the client of a SEP-1364 session said last that it can do; None for other sessions.

        It is what the client sent in `sessions/create` (alternative 1) or `initialize` (alternative 2), kept
        in the store until the session ends.

        Raises:
            StoreUnavailable: The store did not answer.
        """
        kept = await self._read_capabilities()
        return None if kept is None else msgspec.json.decode(kept, type=dict[str, Any])

    async def end(self, reason: str = "ended", *, descendants: bool = False) -> None:
        """End the session: once this returns, every worker that shares the store refuses it.

        The request that ends it still gets its answer; event streams of the session's other requests are
        ended. What `on_end` frees is freed now, even though handlers of the session may still run. Ending
        twice does nothing more.

        Args:
            reason: Why, for the log and for `on_end`.
            descendants: Whether to end all that was forked from it, too: for a session that is itself no fork.

        Raises:
            ValueError: It is a fork, whose own forks cannot be told from the others of its lineage.
            StoreUnavailable: The store did not take it, so the session still lives.
        """
        if descendants and self.parent is not None:
            raise ValueError("only a session that is itself no fork can end its descendants")
        if not self._ended:
            await self._ender(self, reason, descendants)
            self._ended = True

    def __repr__(self) -> str:
        return f"<Session {self.ref}>"

    def __reduce__(self) -> NoReturn:
        raise TypeError("a Session holds a credential and belongs to one request; keep session.ref instead")


@dataclass(frozen=True, slots=True)
class EndedSession:
    """A session that has ended, as `on_end` is told of it. Its id is not known: it may have ended long after use.

    Args:
        ref: Its public name.
        created_at: When it was created, UTC.
        expires_at: When it would have ended by itself, UTC.
        data: What the server still keeps for it, to be read: it goes when `on_end` has returned.
    """

    ref: str
    created_at: datetime
    expires_at: datetime
    data: Data


def utc(seconds: int) -> datetime:
    """Unix seconds as an aware datetime."""
    return datetime.fromtimestamp(seconds, tz=timezone.utc)
