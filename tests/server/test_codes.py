"""The codes of a deployment reach what its application raises, and where they are the usual ones nothing does."""

from __future__ import annotations

from typing import Any

import pytest
from apps import Server, sessions
from clients import Client
from starlette.types import Receive, Scope, Send

from mcp_sessions._server.placement import code_of, with_codes
from mcp_sessions.errors import Refusal, SessionNotFound, SessionRequired, StoreUnavailable

OWN = {"not_found_code": -40001, "required_code": -40002}
REFUSALS: tuple[type[Refusal], ...] = (SessionNotFound, SessionRequired, StoreUnavailable)


@pytest.mark.parametrize(("options", "codes"), [({}, (-32043, -31044, -32603)), (OWN, (-40001, -40002, -32603))])
async def test_an_application_finds_the_codes_by_its_scope_and_by_its_context(
    options: dict[str, Any], codes: tuple[int, ...]
) -> None:
    """Whichever of them it can see; a refusal that has no option keeps its own."""
    found: list[tuple[int, ...]] = []

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        found.extend(tuple(code_of(refusal(), where) for refusal in REFUSALS) for where in (scope, None))
        await Server()(scope, receive, send)

    await Client(sessions(app, admission="own", **options)).tool()
    assert found == [codes, codes]
    assert code_of(SessionRequired(), None) == -31044


def test_who_has_the_usual_codes_is_told_nothing() -> None:
    """So nothing is between the middleware and the application."""
    app = Server()
    assert with_codes(app, lambda refusal: refusal.code) is app
