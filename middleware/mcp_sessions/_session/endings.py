"""Who ended a session, and why. The store keeps it as one text, so that another worker can report it."""

from __future__ import annotations

from typing import Final, Literal, NamedTuple

EndedBy = Literal["client", "application", "operator", "expiry"]
MAX_NAME: Final = 64  # characters

_SEPARATOR: Final = "\x1f"
_USUAL: Final[dict[str, EndedBy]] = {
    "deleted": "client",
    "expired": "expiry",
    "idle": "expiry",
    "ended_all": "operator",
    "inspector": "operator",
}


class Ending(NamedTuple):
    """Why a session ended, and who ended it."""

    reason: str
    by: EndedBy
    name: str | None = None  # of the person or program that ended it, as it gave it

    def to_text(self) -> str:
        """Return a text for the store: the reason alone if that says everything."""
        reason, name = self.reason.replace(_SEPARATOR, " "), _cleaned(self.name)
        if name is None and self.by == _usual(reason):
            return reason
        return _SEPARATOR.join((reason, self.by, name or ""))

    @classmethod
    def from_text(cls, text: str) -> Ending:
        """Return the ending in a text of the store."""
        reason, *rest = text.split(_SEPARATOR)
        if len(rest) != 2 or rest[0] not in {"client", "application", "operator", "expiry"}:
            return cls(reason, _usual(reason))
        return cls(reason, rest[0], rest[1] or None)  # type: ignore[arg-type]  # checked above

    def __str__(self) -> str:
        return f"{self.reason}, by {self.by}{'' if self.name is None else f' {self.name}'}"


def _usual(reason: str) -> EndedBy:
    """Return who usually ends a session for a reason."""
    return _USUAL.get(reason, "application")


def _cleaned(name: str | None) -> str | None:
    """Return a name that fits into a line of a log."""
    return None if name is None else "".join(one for one in name if one.isprintable())[:MAX_NAME] or None
