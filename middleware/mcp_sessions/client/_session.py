"""A session as its client holds it, what a server lists of sessions, and the errors of the client.

The id and the state are opaque credentials: kept and sent as they came, and shown by no `repr` and no error. A result
is believed about the session that its request carried and about no other.
Source: the data-layer sessions draft, "Creating Sessions", "Using Sessions" and "Data Types".
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime, timezone
from typing import Annotated, Any

import anyio
import msgspec

from .._errors import MCPSessionsError


class ClientError(MCPSessionsError):
    """The base class of errors that the client raises."""


class Refused(ClientError):
    """The server refused `server/discover` or a request about sessions.

    Attributes:
        method: The method of the request.
        code: The JSON-RPC error code.
    """

    def __init__(self, method: str, code: int, message: str) -> None:
        super().__init__(f"{method} was refused: {code} {message}")
        self.method = method
        self.code = code


class NoAnswer(ClientError):
    """The server did not answer, or its answer is not valid."""


class NotOffered(ClientError):
    """The server does not offer what was requested, such as forks or lists."""


class SessionLost(ClientError):
    """The session has ended and cannot be used any more. Begin another with `new()`."""


class JarUnreadable(ClientError):
    """The jar cannot be read. The message says where its content was moved."""


class Metadata(msgspec.Struct, frozen=True, omit_defaults=True, rename="camel"):
    """The draft's `SessionMetadata`, as the server gave it out."""

    session_id: Annotated[str, msgspec.Meta(pattern=r"\A[!-~]+\Z")]
    state: str | None = None
    expires_at: str | None = None  # a hint, ISO 8601

    def __repr__(self) -> str:
        return f"<Metadata, expires at {self.expires_at}>"

    def __rich_repr__(self) -> list[tuple[str, str | None]]:
        return [("expires_at", self.expires_at)]

    def for_request(self) -> dict[str, str]:
        return {"sessionId": self.session_id, **({} if self.state is None else {"state": self.state})}

    def updated(self, echoed: object) -> Metadata:
        """Return the metadata after a result; what it holds of another session, or malformed, changes nothing."""
        try:
            news = msgspec.convert(echoed, Metadata)
        except msgspec.ValidationError:
            return self
        if news.session_id != self.session_id:
            return self
        return Metadata(self.session_id, news.state or self.state, news.expires_at or self.expires_at)

    @property
    def expires(self) -> datetime | None:
        """The hint as a time, in UTC where it names no zone; None where there is none that can be read."""
        try:
            hint = datetime.fromisoformat((self.expires_at or "").replace("Z", "+00:00"))
        except ValueError:
            return None
        return hint if hint.tzinfo else hint.replace(tzinfo=timezone.utc)


@dataclass
class Creation:
    done: anyio.Event = field(default_factory=anyio.Event)
    outcome: Metadata | ClientError = field(  # once `done` is set
        default_factory=lambda: NoAnswer("the connection was closed before the session was created")
    )


class HeldSession:
    """One session of a client on a server. Created by `ClientSessions.new` and `ClientSessions.open`.

    This sends no request: the session is created by the first request that needs it, or resumed from a jar. If the
    server loses it, a named session is created again by the next request; an unnamed one stays ended. `name` is the
    program's name for it, `""` for the default session, or None.
    """

    def __init__(self, owner: object, name: str | None, params: Mapping[str, Any] | None = None) -> None:
        self.name = name
        self.owner = owner
        self.params: dict[str, Any] = dict(params or {})
        self.metadata: Metadata | None = None
        self.creation: Creation | None = None
        self._ended = False

    def __repr__(self) -> str:
        called = "unnamed" if self.name is None else repr(self.name)
        return f"<HeldSession {called}, {'ended' if self._ended else 'begun' if self.metadata else 'not begun'}>"

    @property
    def begun(self) -> bool:
        """Whether the session exists on the server, as far as the client knows."""
        return self.metadata is not None

    @property
    def ended(self) -> bool:
        """Whether the session has ended for good."""
        return self._ended

    @property
    def id(self) -> str | None:
        """The session id, a credential, or None before the session has begun. Never log it."""
        return None if self.metadata is None else self.metadata.session_id

    @property
    def expires_at(self) -> datetime | None:
        """When the session ends, as far as the server says, or None."""
        return None if self.metadata is None else self.metadata.expires

    def forget(self, *, for_good: bool) -> Metadata | None:
        """Hold the session no longer, nor any other where `for_good`, and return what was held."""
        metadata, self.metadata = self.metadata, None
        self._ended = self._ended or for_good
        return metadata


class ListedSession(msgspec.Struct, frozen=True, rename="camel"):
    """One of the caller's sessions in a list of the server.

    Args:
        ref: Its public name. Not a credential.
        created_at: When it was created.
        last_seen_at: When it was last used; may lag by a minute.
        expires_at: When it expires.
        current: Whether it is the session of the request.
    """

    ref: str
    created_at: datetime
    last_seen_at: datetime
    expires_at: datetime
    current: bool = False


class SessionPage(msgspec.Struct, frozen=True, rename="camel"):
    """One page of the caller's sessions, oldest first.

    Args:
        sessions: The sessions.
        next_cursor: The cursor of the next page, or None on the last page.
    """

    sessions: list[ListedSession]
    next_cursor: str | None = None
