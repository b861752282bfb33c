"""What of a client's sessions is in its jar, and what the jar is told.

The jar is read when a connection is made, and written when something changed that would be missed after a crash. A jar
that fails to be read stops the connection from being made; one that fails to be written later is reported in the log,
since the calls under way must not fail with it. Without a jar nothing is kept.
"""

from __future__ import annotations

import logging
from typing import Any

from ..errors import ConfigurationError
from .errors import JarUnreadable
from .held import HeldSession
from .jar import SessionJar
from .metadata import Metadata
from .shelves import LEEWAY, Place, Shelf, server_of, url_of

logger = logging.getLogger("mcp_sessions")


class Keeper:
    """One user's sessions on one server, in a jar.

    Args:
        jar: The jar, or None.
        server: The server's URL, or None where the transport shows it.
        identity: Whom the program speaks for.
    """

    def __init__(self, jar: SessionJar | None, *, server: str | None, identity: str) -> None:
        self._jar = jar
        self._server = server
        self._identity = identity
        self._place: Place | None = None
        self._written: Shelf = {}

    @property
    def names(self) -> set[str]:
        """The names under which the jar holds sessions, as far as is known here."""
        return set(self._written)

    def keeps(self, held: HeldSession) -> bool:
        """Whether a session outlives the connection."""
        return self._jar is not None and held.name is not None

    async def load(self, transport: Any) -> None:
        """Read the jar.

        Raises:
            ConfigurationError: It is not known, or not clear, which server the transport connects to.
            JarUnreadable: The jar holds something else than sessions.
            OSError: The jar's file cannot be read or written.
        """
        if self._jar is not None:
            place = Place(self._server_of(transport), self._identity)
            if self._place not in {None, place}:
                raise ConfigurationError(
                    "this transport connects to another server than the last; use another with_sessions"
                )
            self._place = place
            self._written = await self._jar.load(self._place)

    def _server_of(self, transport: Any) -> str:
        """Where the sessions belong: to the server that the transport connects to, and to no other."""
        servers = {server_of(url) for url in (self._server, url_of(transport)) if url is not None}
        if not servers:
            raise ConfigurationError(
                "a jar keeps sessions by the server's URL, and this transport hides it; set server="
            )
        if len(servers) > 1:
            raise ConfigurationError("server= names another server than the one that the transport connects to")
        return servers.pop()

    def resume(self, held: HeldSession) -> None:
        """Let a handle hold what the jar holds under its name, if it holds nothing yet."""
        kept = self._written.get(held.name) if held.name is not None else None
        if kept is not None and not held.begun:
            held.hold(kept)

    async def keep(self, held: HeldSession) -> None:
        """Write a session that is new."""
        if held.name is not None:
            self._written.pop(held.name, None)
        await self.write(held)

    async def update(self, held: HeldSession) -> None:
        """Write what changed, unless it is the hint alone and hardly moved: servers move it with every call."""
        written, metadata = self._written.get(held.name or ""), held.metadata
        assert metadata is not None
        if written is None or written.state != metadata.state or _moved(written, metadata):
            await self.write(held)

    async def write(self, held: HeldSession) -> None:
        """Write what is not written yet."""
        name, metadata = held.name, held.metadata
        if name is None or metadata is None or metadata == self._written.get(name):
            return
        if await self._tell("update" if name in self._written else "put", name, metadata):
            self._written[name] = metadata

    async def drop(self, held: HeldSession, session_id: str) -> None:
        """Take a session that has ended out of the jar."""
        if held.name is not None:
            await self._tell("drop", held.name, session_id)
            self._written.pop(held.name, None)

    async def _tell(self, what: str, *about: Any) -> bool:
        """Have the jar do something; whether it did."""
        if self._jar is None:
            return False
        try:
            await getattr(self._jar, what)(self._place, *about)
        except (JarUnreadable, OSError) as error:
            logger.error("the jar of sessions cannot be written, so this change is held in memory alone: %s", error)
            return False
        return True


def _moved(before: Metadata, after: Metadata) -> bool:
    """Whether the hint moved by so much that the old one would mislead after a crash."""
    if before.expires is None or after.expires is None:
        return before.expires_at != after.expires_at
    return abs(after.expires - before.expires) > LEEWAY / 2
