"""Each rule holds on real servers, and finds its fault: on a server that is right nothing fails.

`tests/tools/conformance` runs the official suite, which does not know sessions.
"""

from __future__ import annotations

from typing import Any

import pytest
from anyio import to_thread
from faulty import OFFERS, Faulty, listening
from session_rules import RULES, Skipped, examine
from starlette.types import ASGIApp

from integration.servers import CELLS, bare, wrapped
from integration.serving import serving

NAMES = [rule.name for rule in RULES]
GONE = {"replay", "delete-again"}

# What a fault makes fail, in the modern era, where all rules apply.
FAULTS = {
    "advertised": {"advertised"},
    "create": {"create"},
    "full": {"create"},
    "unique": {"unique", "wrong-header", "survivor", "fork"},
    "hint": {"hint"},
    "create-within": {"create-within"},
    "use": {"use", "parallel"},
    "refused": {"use"},
    "mute": {"use", "parallel"},
    "state": {"state"},
    "without": {"without"},
    "parallel": {"parallel"},
    "malformed": {"malformed"},
    "unknown": {"unknown", "forged", "oversized", *GONE},
    "forged": {"forged", "alike"},
    "unnamed": {"unknown", "forged", *GONE},
    "alike": {"alike"},
    "oversized": {"oversized"},
    "worn-out": {"oversized"},
    "wrong-header": {"wrong-header"},
    "mirrored": {"mirrored"},
    "envelope": {"envelope"},
    "wrong-method": {"wrong-method"},
    "delete-nothing": {"delete-nothing"},
    "delete": {"delete"},
    "replay": GONE,
    "survivor": {"survivor", "fork"},
    "listed": {"listed"},
    "list-none": {"listed"},
    "fork": {"fork"},
    "fork-none": {"fork"},
}


ERAS = {"sdk1": {"legacy"}, "fastmcp3": {"legacy"}, "sdk2": {"legacy", "modern"}, "fastmcp4": {"legacy", "modern"}}
TWO = [cell for cell in CELLS if not cell.modern and cell.stateful is not cell.json]
Found = dict[tuple[str, str], str | Skipped | None]


def examined(*faults: str, offers: dict[str, object] | None = OFFERS) -> Found:
    """What is found on a server with these faults."""
    with listening(Faulty(frozenset(faults), offers)) as url:
        return examine(url)


def failing(found: Found) -> set[tuple[str, str]]:
    return {rule for rule, seen in found.items() if isinstance(seen, str)}


def skipped(found: Found, era: str = "modern") -> dict[str, str]:
    return {name: str(seen) for (of, name), seen in found.items() if isinstance(seen, Skipped) and of == era}


async def served(app: ASGIApp) -> Found:
    async with serving(app) as url:
        return await to_thread.run_sync(examine, url)


@pytest.mark.parametrize("anyio_backend", ["asyncio"])
@pytest.mark.parametrize(
    ("cell", "options"), [(TWO[0], {}), (TWO[-1], {"tracked": True, "idle_timeout": 600, "transport": "auto"})], ids=str
)
async def test_with_the_middleware_every_rule_holds(cell: Any, options: dict[str, Any]) -> None:
    found = await served(wrapped(cell, **options))
    assert failing(found) == set()
    assert {era for era, _ in found} == ERAS[cell.framework]
    holding = {name for (_, name), seen in found.items() if seen is None}
    assert {"parallel", "replay", "forged", "oversized", "wrong-header", "fork"} <= holding


@pytest.mark.parametrize("anyio_backend", ["asyncio"])
async def test_a_plain_server_has_no_sessions(anyio_backend: str) -> None:  # Uvicorn runs on it alone
    assert {name for _, name in failing(await served(bare(TWO[0])))} == {"advertised"}


def test_a_right_server_keeps_every_rule() -> None:
    """In both eras; a rule that does not apply says why, and no session stays behind."""
    server = Faulty(frozenset({"stateful"}))
    with listening(server) as url:
        found = examine(url)
    assert failing(found) == set()
    assert [name for _, name in found] == NAMES * 2
    assert skipped(found) == {}
    assert set(skipped(found, "legacy")) == {"mirrored", "envelope", "wrong-method"}
    assert server.live == {}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_is_found(fault: str) -> None:
    assert {name for era, name in failing(examined(fault)) if era == "modern"} == FAULTS[fault]


def test_every_rule_has_a_fault_that_it_finds() -> None:
    """A rule that never fails proves nothing."""
    assert set().union(*FAULTS.values()) == set(NAMES)


def test_rules_that_do_not_apply_say_why() -> None:
    """Without a session, without an offer of sessions or of an extension, and for anonymous callers."""
    assert set(skipped(examined("full")).values()) == {"no session was created", "no session was deleted"}
    assert skipped(examined("hintless", offers={})) == {
        "hint": "the server gives none",
        "state": "the server keeps no state with the client",
        "listed": "not offered",
        "fork": "not offered",
    }
    assert skipped(examined("list-anonymous"))["listed"] == "for callers that are authenticated"
    without = examined(offers=None)
    assert failing(without) == {("legacy", "advertised"), ("modern", "advertised")}
    assert set(skipped(without).values()) == {"no sessions are offered"}
