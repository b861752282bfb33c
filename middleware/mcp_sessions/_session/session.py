"""The session that an application sees.

A `Session` is made anew for each request from a verified token. It does no I/O of its own: what
ends a session is handed in by the shell. The id is a credential, so it stays out of `repr`,
pickles and copies; `ref` is the name to log.
"""

from __future__ import annotations

from collections.abc import Awaitable
from dataclasses import dataclass
from datetime import datetime
from typing import Any, NoReturn, Protocol

import msgspec

from .claims import Correlation, Principal, utc
from .data import Data
from .state import State


class Facts(Protocol):
    """What is known of a session for as long as it lives: the claims of its token."""

    @property
    def ref(self) -> str:
        """Its public name."""

    @property
    def issued_at(self) -> int:
        """When it was created, Unix seconds."""

    @property
    def parent(self) -> str | None:
        """The `ref` of the session that it was forked from."""

    @property
    def client(self) -> str | None:
        """What its client calls itself."""

    @property
    def trace(self) -> str | None:
        """The trace context of its start."""


class Source(Protocol):
    """What a session is made of, and who does what it is asked. It belongs to one request, as the session does."""

    @property
    def token(self) -> str:
        """The session id as the client holds it."""

    @property
    def claims(self) -> Facts:
        """What that says."""

    @property
    def ends_at(self) -> int:
        """The earlier of absolute and idle expiry, Unix seconds."""

    @property
    def principal(self) -> Principal | None:
        """Who the request is authenticated as."""

    @property
    def state(self) -> State:
        """What the client carried."""

    def data(self) -> Data:
        """What the server keeps for it."""

    def capabilities(self) -> Awaitable[bytes | None]:
        """The JSON of what its client said that it can do, or None."""

    def end(self, reason: str, *, descendants: bool) -> Awaitable[None]:
        """Make every worker refuse it, and with `descendants` all that was forked from it."""


class Session:
    """A logical session, as one request sees it.

    Attributes:
        correlation: What the client of this request calls its conversation, where `correlate=` looks for it, or
            None. A label, which anybody may send: no access and no data may hang on it.
    """

    # Made for every request, and mostly asked for little: so it holds no more than it must.
    __slots__ = ("_data", "_ended", "_source", "correlation")

    def __init__(self, source: Source) -> None:
        """Args:
        source: What it is made of.
        """
        self._source = source
        self._ended = False
        self._data: Data | None = None
        self.correlation: Correlation | None = None

    @property
    def ref(self) -> str:
        """The session's public name: safe in logs and traces, worthless as a credential."""
        return self._source.claims.ref

    @property
    def principal(self) -> Principal | None:
        """Who the session belongs to, or None for an anonymous one."""
        return self._source.principal

    @property
    def parent(self) -> str | None:
        """The `ref` of the session that it was forked from, or None."""
        return self._source.claims.parent

    @property
    def client(self) -> str | None:
        """What the client called itself when the session was created, name and version, or None.

        Its own word: nothing vouches for it.
        """
        return self._source.claims.client

    @property
    def traceparent(self) -> str | None:
        """The trace context (W3C) of the session's start, for spans of your own that shall link to it.

        None where nobody traced.
        """
        return self._source.claims.trace

    @property
    def id(self) -> str:
        """The session id: a credential. Never log, trace or display it."""
        return self._source.token

    @property
    def created_at(self) -> datetime:
        """When it was created, UTC."""
        return utc(self._source.claims.issued_at)

    @property
    def expires_at(self) -> datetime:
        """When it ends at the latest, UTC."""
        return utc(self._source.ends_at)

    @property
    def state(self) -> State:
        """Data that the client carries; changes are written back with the response."""
        return self._source.state

    @property
    def data(self) -> Data:
        """What the server keeps for the session, shared by its parallel requests on every worker without loss."""
        if self._data is None:
            self._data = self._source.data()
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
        kept = await self._source.capabilities()
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
            await self._source.end(reason, descendants=descendants)
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
