"""How many sessions a caller may create.

Callers are told apart by what their tokens will say of them, a keyed hash; anonymous ones share one
budget. Windows are whole minutes of the clock, so that around the turn of one at most twice the limit
gets through. The count is this process's alone: with four workers the deployment's limit is four times
as high. Time is passed in, and memory is bounded: where a minute has seen more callers than are told
apart, further ones share one budget.
"""

from __future__ import annotations

from typing import Final

from .errors import CreateLimited

WINDOW: Final = 60  # seconds
MAX_CALLERS: Final = 10_000  # told apart within one window

_OTHERS: Final = ""  # no subject is empty


class CreateLimit:
    """The budgets of one process.

    Args:
        per_minute: Sessions that a caller may create within one window.
        max_callers: How many callers are told apart within one window.
    """

    __slots__ = ("_created", "_max_callers", "_per_minute", "_window")

    def __init__(self, per_minute: int, *, max_callers: int = MAX_CALLERS) -> None:
        self._per_minute = per_minute
        self._max_callers = max_callers
        self._window = -1
        self._created: dict[str | None, int] = {}

    def spend(self, subject: str | None, *, now: float) -> None:
        """Take one session from a caller's budget.

        Args:
            subject: The caller as tokens name it, or None for an anonymous one.
            now: Unix seconds.

        Raises:
            CreateLimited: Nothing is left of it; `retry_after` says for how long.
        """
        window = int(now // WINDOW)
        if window != self._window:
            self._window, self._created = window, {}
        created = self._created
        caller = subject if subject in created or len(created) < self._max_callers else _OTHERS
        spent = created.get(caller, 0)
        if not spent < self._per_minute:
            raise CreateLimited(retry_after=WINDOW - int(now % WINDOW))
        created[caller] = spent + 1
