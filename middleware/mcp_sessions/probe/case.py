"""One server in one era while it is examined: how it is spoken to, and the sessions that are held there.

What an act makes is held here under a name, so that later acts find it and all of it can be deleted in the end.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from .speech import Speech
from .wire import Answer

Session = dict[str, Any]


class Skipped(Exception):  # nothing is wrong
    """A rule does not apply. The message says why."""


@dataclass
class Case:
    """One server in one era.

    Args:
        speech: How to speak to it.
        held: The sessions that are held, by what the acts call them.
    """

    speech: Speech
    held: dict[str, Session] = field(default_factory=dict)

    def session(self, name: str) -> Session:
        """A session that an earlier act made."""
        if name not in self.held:
            raise Skipped("no session was created")
        return self.held[name]

    def use(self, session: object, **how: Any) -> Answer:
        """A harmless request in a session."""
        return self.speech.ask(self.speech.harmless, session=session, **how)

    def create(self, name: str) -> str | None:
        """Create a session and hold it; what was seen where there is none."""
        answer = self.speech.ask("sessions/create")
        return self.hold(name, answer)

    def hold(self, name: str, answer: Answer) -> str | None:
        """Hold the session in a result; what was seen where there is none."""
        session = (answer.result or {}).get("session")
        if not isinstance(session, dict) or not _is_visible(session.get("sessionId")):
            return f"{answer}" if answer.result is None else "no sessionId of visible ASCII in result.session"
        self.held[name] = session
        return None

    def let_go(self) -> None:
        """Delete what is held."""
        for session in self.held.values():
            self.speech.ask("sessions/delete", session=sent(session))
        self.held.clear()


def sent(session: Session) -> Session:
    """A session as requests carry it."""
    return {name: session[name] for name in ("sessionId", "state") if isinstance(session.get(name), str)}


def _is_visible(text: object) -> bool:
    return isinstance(text, str) and bool(text) and all("!" <= character <= "~" for character in text)
