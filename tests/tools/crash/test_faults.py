"""A short run of each fault: what was acknowledged holds, but where the documentation says that it may not."""

from __future__ import annotations

import pytest

from crash.faults import FAULTS, WAITING, known, table

MAY_LOSE = {
    ("one server, appendfsync everysec", "killed with a slow disk"),
    ("one server that evicts", "memory full"),
    ("Sentinel", "fail-over to a replica that lags"),
}
"""What the documentation says so of."""


@pytest.fixture
def anyio_backend() -> str:
    """The driver knows asyncio alone."""
    return "asyncio"


@pytest.mark.parametrize("of", [*FAULTS, *WAITING], ids=", ".join)
async def test_nothing_that_was_acknowledged_is_lost(of: tuple[str, str]) -> None:
    """And no live session ends."""
    if of not in known():
        pytest.skip("this server does not know WAITAOF")
    found = await known()[of]()
    losses = {what: number for what, number in found.items() if "lost" in what or what == "live sessions ended"}
    assert of in MAY_LOSE or not any(losses.values()), found
    assert found.get("deleted", 1) > 0


def test_the_table_has_a_row_for_each() -> None:
    """As the documentation shows it."""

    async def fault() -> dict[str, int]:
        return {"deleted": 1000, "deletes lost": 0}

    shown = table({("a cluster", "a fault"): fault})
    assert shown.splitlines()[2:] == ["| a cluster | a fault | 1,000 deleted, 0 deletes lost |"]
