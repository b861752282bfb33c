"""A handle on one session, which lives as long as the program wants to speak in it.

A handle is made without asking the server: the session is created when the first request needs it, and resumed where a
jar holds it. Where the server has lost a session, a handle that has a name begins anew, and one without a name is done.

What can go wrong on the client's side of a session.

    ClientError
    ├── Refused          the server answered one of our own requests with an error
    ├── NoAnswer         the server did not answer one of our own requests, or the connection is gone
    ├── NotOffered       the server does not offer what was asked for
    ├── SessionLost      the session has ended, and its handle with it
    └── JarUnreadable    the jar holds something else than sessions; what it held was kept

Every one is an `MCPSessionsError`. None holds a session id or a state: both are credentials.

A session as its client holds it: the draft's `SessionMetadata`.

The id and the state are the server's, and opaque: they are kept and sent as they came, never looked into, and shown by
no `repr`. A result is believed about the session that its request carried and about no other.
Source: the data-layer sessions draft, "Creating Sessions", "Using Sessions" and "Data Types".

What a server shows of a principal's sessions: public names and times, and never an id.

A list is read and not believed: nothing here changes what is held.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime, timezone
from typing import Annotated, Any

import anyio
import msgspec

from ..errors import MCPSessionsError


@dataclass
class Creation:
    """A session on its way: what came of it, once `done` is set."""

    done: anyio.Event = field(default_factory=anyio.Event)
    outcome: Metadata | ClientError = field(default_factory=lambda: NoAnswer("the connection is gone"))


class HeldSession:
    """One session on one server. Made by `ClientSessions.new` and `ClientSessions.open`.

    Attributes:
        name: What the program calls it, `""` for the default session, or None where it has no name.
    """

    def __init__(self, owner: object, name: str | None, params: Mapping[str, Any] | None = None) -> None:
        self.name = name
        self._owner = owner
        self._params = dict(params or {})
        self._metadata: Metadata | None = None
        self._creation: Creation | None = None
        self._over = False

    def __repr__(self) -> str:
        called = "unnamed" if self.name is None else repr(self.name)
        return f"<HeldSession {called}, {'ended' if self._over else 'begun' if self._metadata else 'not begun'}>"

    @property
    def begun(self) -> bool:
        """Whether there is a session on the server, as far as is known here."""
        return self._metadata is not None

    @property
    def ended(self) -> bool:
        """Whether nothing more can be asked in it."""
        return self._over

    @property
    def id(self) -> str | None:
        """The session id, or None before the session has begun. A credential: never log it."""
        return None if self._metadata is None else self._metadata.session_id

    @property
    def expires_at(self) -> datetime | None:
        """The server's hint of when the session ends, or None where it gives none."""
        return None if self._metadata is None else self._metadata.expires

    # --- for the rooms beside this one ---

    @property
    def owner(self) -> object:
        """Whose handle it is."""
        return self._owner

    @property
    def params(self) -> dict[str, Any]:
        """What `sessions/create` is sent."""
        return self._params

    @property
    def metadata(self) -> Metadata | None:
        """What the server gave out, or None where there is no session yet, or no more."""
        return self._metadata

    @property
    def creation(self) -> Creation | None:
        """The creation under way, or None."""
        return self._creation

    def check(self) -> None:
        """Raise where nothing more can be asked in it.

        Raises:
            SessionLost: The session has ended.
        """
        if self._over:
            raise SessionLost("this session has ended; begin another with new()")

    def begin_creation(self) -> Creation:
        """Note that a session is on its way."""
        self._creation = Creation()
        return self._creation

    def end_creation(self, outcome: Metadata | ClientError) -> None:
        """Note what came of it."""
        assert self._creation is not None
        self._creation.outcome = outcome
        self._creation.done.set()
        self._creation = None

    def hold(self, metadata: Metadata) -> None:
        """Note what the server gave out."""
        self._metadata = metadata

    def let_go(self, *, for_good: bool) -> Metadata | None:
        """Hold the session no longer, and tell what was held.

        Args:
            for_good: Whether the handle is done, too.
        """
        held, self._metadata = self._metadata, None
        self._over = self._over or for_good
        return held


class ClientError(MCPSessionsError):
    """Base of what the client raises."""


class Refused(ClientError):
    """The server answered a request of our own, `server/discover` or one about sessions, with an error.

    Attributes:
        method: What was asked.
        code: The JSON-RPC error code.
    """

    def __init__(self, method: str, code: int, message: str) -> None:
        super().__init__(f"{method} was refused: {code} {message}")
        self.method = method
        self.code = code


class NoAnswer(ClientError):
    """The server did not answer, or not with what was asked for."""


class NotOffered(ClientError):
    """The server's capabilities do not have what was asked for: forks, or lists."""


class SessionLost(ClientError):
    """The session has ended, so nothing more can be asked in it. Begin another with `new()`."""


class JarUnreadable(ClientError):
    """The jar cannot be read. The message says where its content was kept."""


VISIBLE_ASCII = r"\A[!-~]+\Z"


class Metadata(msgspec.Struct, frozen=True, omit_defaults=True, rename="camel"):
    """What the server gave out.

    Args:
        session_id: The id. A credential.
        state: The state token to send along, or None where there is none.
        expires_at: The server's hint, ISO 8601.
    """

    session_id: Annotated[str, msgspec.Meta(pattern=VISIBLE_ASCII)]
    state: str | None = None
    expires_at: str | None = None

    def __repr__(self) -> str:
        return f"<Metadata, expires at {self.expires_at}>"

    def sent(self) -> dict[str, str]:
        """What a request says of the session. The hint stays here: it is news for the client alone."""
        carried = {"sessionId": self.session_id}
        return carried if self.state is None else {**carried, "state": self.state}

    def learned(self, echoed: object) -> Metadata:
        """What is held after a result of a request in this session.

        Args:
            echoed: What the result says of a session, as it came.
        """
        try:
            news = msgspec.convert(echoed, Metadata)
        except msgspec.ValidationError:
            return self
        if news.session_id != self.session_id:
            return self
        return Metadata(self.session_id, news.state or self.state, news.expires_at or self.expires_at)

    @property
    def expires(self) -> datetime | None:
        """When the session is expected to end, or None where the server does not say, or not so that it can be read."""
        try:
            hint = datetime.fromisoformat((self.expires_at or "").replace("Z", "+00:00"))
        except ValueError:
            return None
        return hint if hint.tzinfo else hint.replace(tzinfo=timezone.utc)


def created(result: dict[str, Any]) -> Metadata:
    """The session in the result of `sessions/create`.

    Raises:
        msgspec.ValidationError: There is none, or its id is none.
    """
    return msgspec.convert(result.get("session"), Metadata)


class ListedSession(msgspec.Struct, frozen=True, rename="camel"):
    """One session of the caller, as the server knows it.

    Args:
        ref: Its public name. No credential.
        created_at: When it was created.
        last_seen_at: When it was last used; it may lag by a minute.
        expires_at: When it ends by itself.
        root: The session at the top of its lineage, by its public name, or None where it is no fork.
        current: Whether it is the session that the request was made in.
    """

    ref: str
    created_at: datetime
    last_seen_at: datetime
    expires_at: datetime
    root: str | None = None
    current: bool = False


class SessionPage(msgspec.Struct, frozen=True, rename="camel"):
    """Some of the caller's sessions, oldest first.

    Args:
        sessions: The sessions.
        next_cursor: Where the next page begins, or None where this is the last.
    """

    sessions: list[ListedSession]
    next_cursor: str | None = None


def page(result: dict[str, Any]) -> SessionPage:
    """The page in the result of `sessions/list`.

    Raises:
        msgspec.ValidationError: There is none.
    """
    return msgspec.convert(result, SessionPage)
