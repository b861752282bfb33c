"""The moment since which Redis has forgotten nothing, and how it moves.

The moment lies in Redis itself, so what empties Redis takes it away: it is then set to now, and sessions that
were issued before are not vouched for. A server that was restarted without an append-only file may have brought
back an old copy of it along with an old list of revocations: there the run of each server, which lies beside it,
tells, and the moment moves. It never moves back.
"""

from __future__ import annotations

from .redis_durability import Durability, Facts, judge
from .redis_keys import Keys
from .redis_link import Link
from .redis_scripts import FENCE, Word


class Fence:
    """What one worker knows of the fence.

    Args:
        keys: The names of keys.
        durability: What to do about a server that may forget.
    """

    def __init__(self, keys: Keys, durability: Durability) -> None:
        self._keys = keys
        self._durability = durability
        self._met: dict[str, str] = {}  # the run of each server that was looked into
        self._news: dict[str, Facts] = {}  # runs that were not yet
        self._silent = False  # whether a server would not say
        self._since = 0  # where it stood when it was last set or moved here

    @property
    def met_nobody(self) -> bool:
        """Whether no connection was made that would have been noticed here."""
        return not (self._silent or self._met or self._news)

    @property
    def stands(self) -> bool:
        """Whether what was read from Redis can be judged by the fence that was read with it."""
        return not self._news

    def heard(self, server: str, facts: Facts | None) -> None:
        """A connection was made.

        Args:
            server: Its name, the same after a restart.
            facts: What it says of itself, or None where it does not.
        """
        if facts is None:
            if not self._silent:
                judge(None, self._durability)
            self._silent = True
        elif self._met.get(server) != facts.run:
            self._news[server] = facts

    async def settle(self, link: Link, now: float) -> None:
        """Set the moment where it is missing, move it where a run began that may have forgotten.

        Raises:
            ConfigurationError: A server may forget, and was told to be refused then.
            StoreUnavailable: Redis did not answer.
        """
        news = dict(self._news)
        runs: list[Word] = []
        for server, facts in news.items():
            judge(facts, self._durability)
            runs += (server, facts.run, int(facts.keeps))
        # What was forgotten at runtime includes what happened in this very second. Who meets an empty Redis at first
        # lost nothing, and sessions that begin within the same second are to live. Where the fence stands before the
        # place that is remembered, an old copy came back.
        lost = int(now) + 1
        first = lost if self._since else int(now)
        step = FENCE(self._keys.since, self._keys.servers, args=(first, lost, self._since, *runs))
        (since,) = await link.run(step, again=True)
        self._since = int(since)
        self._met.update({server: facts.run for server, facts in news.items()})
        self._news = dict(self._news.items() - news.items())  # less what was heard meanwhile
