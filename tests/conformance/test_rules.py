"""Every rule of sessions holds on a real server in the middleware, and a server without it offers none.

`tests/tools/conformance` runs the official suite, which does not know sessions.
"""

from typing import Any

import pytest
from clients import lifespan
from session_rules import RULES, Skipped, examine
from starlette.types import ASGIApp

from integration.servers import CELLS, bare, wrapped
from mcp_sessions import Session

ERAS = {"sdk1": {"legacy"}, "fastmcp3": {"legacy"}, "sdk2": {"legacy", "modern"}, "fastmcp4": {"legacy", "modern"}}
TWO = [cell for cell in CELLS if not cell.modern and cell.stateful is not cell.json]
MODERN_ONLY = {"mirrored", "envelope", "wrong_method"}

pytestmark = pytest.mark.parametrize("anyio_backend", ["asyncio"])  # the rules are the same on trio


async def keep_state(session: Session, params: object, scope: object) -> None:
    """Begin every session with state, which the client then returns with each request."""
    session.state["count"] = 0


async def examined(app: ASGIApp) -> dict[tuple[str, str], Exception | None]:
    """Return the outcome of each rule, by era, on a server of this application."""
    async with lifespan(app):
        return await examine(app)


@pytest.mark.parametrize(
    ("cell", "options", "not_applicable"),
    [
        (TWO[0], {"on_create": keep_state}, {"listed"}),
        (TWO[-1], {"tracked": True, "idle_timeout": 600, "transport": "auto"}, {"state", "listed"}),
    ],
    ids=["stateful", "tracked"],
)
async def test_with_the_middleware_every_rule_holds(
    cell: Any, options: dict[str, Any], not_applicable: set[str]
) -> None:
    """In each era that the server speaks; only a rule of something that is not offered is skipped."""
    outcomes = await examined(wrapped(cell, **options))
    assert {rule: outcome for rule, outcome in outcomes.items() if not isinstance(outcome, Skipped | None)} == {}
    for era in ERAS[cell.framework]:
        skipped = {name for name in RULES if outcomes[era, name] is not None}
        assert skipped == not_applicable | (MODERN_ONLY if era == "legacy" else set())


async def test_a_plain_server_has_no_sessions() -> None:
    """The first rule fails on it, so the rules tell the two apart."""
    outcomes = await examined(bare(TWO[0]))
    assert {name for (_, name), one in outcomes.items() if isinstance(one, AssertionError)} == {"advertised"}
