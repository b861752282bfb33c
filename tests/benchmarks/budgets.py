"""The budgets of the gate: instructions per request beyond a pass-through that serves the same body, pure Python."""

from __future__ import annotations

from typing import Final

BUDGETS: Final = {
    "ours, no session": 79_000,
    "ours, session": 231_000,
    "ours, session, state changed": 333_000,
    "ours, forged session refused": 331_000,
    "ours, session, traced": 620_000,
}
