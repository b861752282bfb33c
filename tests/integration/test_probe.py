"""The probe on real servers, with the middleware and without it."""

from __future__ import annotations

from typing import Any

import pytest
from anyio import to_thread
from starlette.types import ASGIApp

from mcp_sessions._cli.probe import Report, probe
from mcp_sessions._cli.probe_client import Wire

from .servers import CELLS, Cell, bare, wrapped
from .serving import serving

ERAS = {"sdk1": 1, "fastmcp3": 1, "sdk2": 2, "fastmcp4": 2}
TWO = [cell for cell in CELLS if not cell.modern and cell.stateful is not cell.json]


async def examined(app: ASGIApp) -> Report:
    async with serving(app) as url:
        return await to_thread.run_sync(probe, Wire(url))


@pytest.mark.parametrize(
    ("cell", "options"), [(TWO[0], {}), (TWO[-1], {"tracked": True, "idle_timeout": 600, "transport": "auto"})], ids=str
)
async def test_with_the_middleware_every_rule_holds(cell: Cell, options: dict[str, Any]) -> None:
    report = await examined(wrapped(cell, **options))
    assert [finding for finding in report.findings if finding.outcome == "fails"] == []
    assert report.holds
    assert len(report.eras) == ERAS[cell.framework]
    assert all("draft" in era.dialects for era in report.eras)
    tried = {finding.rule for finding in report.findings if finding.outcome == "holds"}
    assert {"parallel", "replay", "forged", "oversized", "wrong-header", "fork"} <= tried


async def test_a_plain_server_has_no_sessions() -> None:
    report = await examined(bare(TWO[0]))
    assert {finding.rule for finding in report.findings if finding.outcome == "fails"} == {"advertised"}
    assert not report.holds
    assert report.stopped is None
