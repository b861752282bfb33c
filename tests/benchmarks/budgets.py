"""The budgets of the gate: instructions per request beyond a pass-through that serves the same body, pure Python."""

from __future__ import annotations

from typing import Final

BUDGETS: Final = {
    "ours, no session": 95_000,
    "ours, session": 205_000,
    "ours, session, state changed": 310_000,
    "ours, forged session refused": 280_000,
    "ours, session, traced": 585_000,
}
