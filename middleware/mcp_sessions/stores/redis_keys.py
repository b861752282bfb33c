"""The names of the keys under which the Redis store keeps what it is told.

Keys of one session share the tag `{ref}`, those of one principal `{subject}`, the rest `{all}`: what one script
touches lies in one hash slot.
Source: Redis, "Cluster specification" (hash tags).
"""

from __future__ import annotations


class Keys:
    """The names under which one deployment keeps its sessions."""

    def __init__(self, prefix: str) -> None:
        self._prefix = prefix
        # With the number of the format: what an older one ended is not read here, so its fence must vouch for nobody.
        self.since = f"{prefix}{{all}}:since:2"
        self.servers = f"{prefix}{{all}}:servers"

    def ended(self, ref: str) -> str:
        """A revocation. Whoever made it is told by its value, so that a repeated call knows itself."""
        return f"{self._prefix}{{{ref}}}:ended"

    def session(self, ref: str) -> str:
        """A record."""
        return f"{self._prefix}{{{ref}}}:session"

    def fate(self, ref: str) -> tuple[str, str]:
        """What the scripts on a session's end are given."""
        return self.ended(ref), self.session(ref)

    def shelf(self, ref: str) -> tuple[str, str, str, str]:
        """What the scripts on a session's data are given."""
        tagged = f"{self._prefix}{{{ref}}}"
        return *self.fate(ref), f"{tagged}:data", f"{tagged}:times"

    def due(self, audience: str) -> str:
        """An audience's recorded sessions, by when to look at them next."""
        return f"{self._prefix}{{all}}:due:{audience}"

    def sweeper(self, audience: str) -> str:
        """Who looks at them."""
        return f"{self._prefix}{{all}}:sweeper:{audience}"

    def ended_before(self, audience: str, subject: str | None) -> str:
        """A moment before which all sessions ended, of one principal or of everybody."""
        return f"{self._prefix}{{{subject or 'all'}}}:ended-before:{audience}"

    def sessions(self, audience: str, subject: str) -> str:
        """A principal's recorded sessions, by their ends."""
        return f"{self._prefix}{{{subject}}}:sessions:{audience}"

    def forks(self, root: str) -> str:
        """A lineage's recorded forks, by their ends."""
        return f"{self._prefix}{{{root}}}:forks"
