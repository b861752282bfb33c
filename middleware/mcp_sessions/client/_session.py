"""A session as its client holds it, what a server lists of sessions, and the errors of the client.

The id and the state are opaque credentials: kept and sent as they came, and shown by no `repr` and no error.
Source: the data-layer sessions draft, "Creating Sessions", "Using Sessions" and "Data Types".
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime, timezone
from typing import Annotated, Any

import anyio
import msgspec

from .._errors import MCPSessionsError
from .._session.claims import RedactedRepr


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


class SessionNotFound(ClientError):
    """The session has ended and cannot be used any more. Begin another with `new()`."""


class SessionMetadata(RedactedRepr, msgspec.Struct, frozen=True, omit_defaults=True, rename="camel"):
    """The draft's `SessionMetadata`, as the server gave it out; a storage keeps it."""

    session_id: Annotated[str, msgspec.Meta(pattern=r"\A[!-~]+\Z")]
    state: str | None = None
    expires_at: str | None = None  # a hint, ISO 8601

    def for_request(self) -> dict[str, str]:
        return {"sessionId": self.session_id, **({} if self.state is None else {"state": self.state})}

    def updated(self, echoed: object) -> SessionMetadata:
        """Return the metadata after a result, which a malformed echo, or one of another session, leaves unchanged."""
        try:
            news = msgspec.convert(echoed, SessionMetadata)
        except msgspec.ValidationError:
            return self
        if news.session_id != self.session_id:
            return self
        return SessionMetadata(self.session_id, news.state or self.state, news.expires_at or self.expires_at)

    @property
    def expires(self) -> datetime | None:
        """The hint as a time, in UTC where it names no zone; None where it cannot be read."""
        try:
            hint = datetime.fromisoformat((self.expires_at or "").replace("Z", "+00:00"))
        except ValueError:
            return None
        return hint if hint.tzinfo else hint.replace(tzinfo=timezone.utc)


class ClientSession:
    """One session of a client on a server. Created by `ClientSessions.new`, `ClientSessions.open` and a fork.

    This sends no request: the session is created by the first request that needs it, or resumed from a storage. If the
    server does not find it any more, a named session is created again by the next request; an unnamed one stays ended.
    `name` is the program's name for it, `""` for the default session, or None.
    """

    def __init__(self, owner: object, name: str | None, params: Mapping[str, Any] | None = None) -> None:
        self.name = name
        self.owner = owner
        self.params: dict[str, Any] = dict(params or {})
        self.metadata: SessionMetadata | None = None
        self.creating: anyio.Lock = anyio.Lock()  # held while it is created or deleted
        self._ended = False

    def __repr__(self) -> str:
        name = "unnamed" if self.name is None else repr(self.name)
        return f"<ClientSession {name}, {'ended' if self._ended else 'created' if self.created else 'not created'}>"

    @property
    def created(self) -> bool:
        """Whether the session exists on the server, as far as the client knows."""
        return self.metadata is not None

    @property
    def ended(self) -> bool:
        """Whether the session has ended for good."""
        return self._ended

    @property
    def id(self) -> str | None:
        """The session id, a credential, or None before the session is created. Never log it."""
        return None if self.metadata is None else self.metadata.session_id

    @property
    def expires_at(self) -> datetime | None:
        """When the session ends, as far as the server says, or None."""
        return None if self.metadata is None else self.metadata.expires

    def detach(self, *, for_good: bool) -> SessionMetadata | None:
        """Forget the session on the server, refuse another where `for_good`, and return what was held."""
        metadata, self.metadata = self.metadata, None
        self._ended = self._ended or for_good
        return metadata


class ListedSession(msgspec.Struct, frozen=True, rename="camel"):
    """One of the caller's sessions in a list of the server: its public name `ref`, and times.

    `last_seen_at` may lag by a minute; `current` marks the session of the request.
    """

    ref: str
    created_at: datetime
    last_seen_at: datetime
    expires_at: datetime
    current: bool = False


class SessionPage(msgspec.Struct, frozen=True, rename="camel"):
    """One page of the caller's sessions, oldest first; `next_cursor` is None on the last page."""

    sessions: list[ListedSession]
    next_cursor: str | None = None
