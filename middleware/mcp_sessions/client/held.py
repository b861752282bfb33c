"""A handle on one session, which lives as long as the program wants to speak in it.

A handle is made without asking the server: the session is created when the first request needs it, and resumed where a
jar holds it. Where the server has lost a session, a handle that has a name begins anew, and one without a name is done.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

import anyio

from .errors import ClientError, NoAnswer, SessionLost
from .metadata import Metadata


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
