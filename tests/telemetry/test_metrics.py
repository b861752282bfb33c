"""`SessionMetrics` counts and times, by the conventions' names, and no client can make a series of its own."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from apps import Server, sessions
from clients import Client
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import Histogram, InMemoryMetricReader

from mcp_sessions._protocol.jsonrpc import Message, parse
from mcp_sessions._session.events import RequestRefused, SessionCreated, SessionDeleted, SessionUsed
from mcp_sessions.telemetry import metrics
from mcp_sessions.telemetry.metrics import OPERATION_BUCKETS, SESSION_BUCKETS, SessionMetrics
from mcp_sessions.telemetry.outcome import SUCCESS, Outcome

DAY = 86_400


class Meter:
    """A meter provider, and what has been measured."""

    def __init__(self) -> None:
        self._reader = InMemoryMetricReader()
        self.provider = MeterProvider([self._reader], shutdown_on_exit=False)

    def found(self) -> dict[str, Any]:
        data = self._reader.get_metrics_data()
        assert data is not None
        (resource,) = data.resource_metrics
        return {metric.name: metric for scope in resource.scope_metrics for metric in scope.metrics}

    def points(self, name: str) -> dict[tuple[tuple[str, Any], ...], Any]:
        return {tuple(sorted(point.attributes.items())): point for point in self.found()[name].data.data_points}


@pytest.fixture
def meter() -> Iterator[Meter]:
    meter = Meter()
    yield meter
    meter.provider.shutdown()


def message(method: str, name: str | None = None) -> Message:
    params = {} if name is None else {"name": name}
    parsed = parse(json.dumps({"jsonrpc": "2.0", "id": 1, "method": method, "params": params}).encode())
    assert isinstance(parsed, Message)
    return parsed


@pytest.mark.parametrize("tracked", [True, False])
async def test_it_counts_what_becomes_of_sessions(tracked: bool, meter: Meter) -> None:
    """Created, ended by reason, refused by reason, and alive where each end is seen; no session is named."""
    client = Client(sessions(Server(), metrics=SessionMetrics(meter.provider), tracked=tracked, spans="off"))
    held = await client.create()
    await client.create()
    await client.tool(session=held)
    await client.delete(held)
    await client.tool(session=held)
    assert {key: point.value for key, point in meter.points("mcp_sessions.session.created").items()} == {(): 2}
    assert {key: point.value for key, point in meter.points("mcp_sessions.session.ended").items()} == {
        (("mcp_sessions.reason", "deleted"),): 1
    }
    assert ("mcp_sessions.session.active" in meter.found()) is tracked
    alive = meter.points("mcp_sessions.session.active") if tracked else {}
    assert [point.value for point in alive.values()] == [1] * tracked
    (refused,) = meter.points("mcp_sessions.request.refused").values()
    assert refused.value == 1
    assert refused.attributes["mcp.method.name"] == "tools/call"
    timed = meter.points("mcp.server.operation.duration").values()
    counts = [(point.attributes["mcp.method.name"], point.count) for point in timed]
    assert sorted(counts) == [("sessions/create", 2), ("sessions/delete", 1), ("tools/call", 1), ("tools/call", 1)]
    assert [point.count for point in meter.points("mcp.server.session.duration").values()] == [1]
    assert "ses_" not in repr(meter.found())


def test_the_words_of_applications_and_clients_make_no_series(meter: Meter) -> None:
    """A reason that an application ends sessions for, and a method that the protocol does not know."""
    count = SessionMetrics(meter.provider)
    for number in range(5):
        count(SessionDeleted(f"ses_{number}", f"order {number} done", 1))
        count(RequestRefused("parse_error", -32700, f"made/up{number}"))
    count(RequestRefused("parse_error", -32700, None))
    count(SessionUsed("ses_a", "tools/call"))
    count(SessionCreated("ses_a", 1))
    assert len(meter.points("mcp_sessions.session.ended")) == 1
    assert {key: point.value for key, point in meter.points("mcp_sessions.request.refused").items()} == {
        (("mcp.method.name", "_OTHER"), ("mcp_sessions.reason", "parse_error")): 6
    }


def test_a_sessions_duration_reaches_days(meter: Meter) -> None:
    """The buckets of a connection end at five minutes; a logical session lives for a week."""
    SessionMetrics(meter.provider)(SessionDeleted("ses_a", "idle", 3 * DAY))
    (point,) = meter.points("mcp.server.session.duration").values()
    assert point.explicit_bounds == SESSION_BUCKETS
    assert SESSION_BUCKETS[-1] == 7 * DAY
    assert point.bucket_counts[SESSION_BUCKETS.index(3 * DAY)] == 1
    assert meter.found()["mcp.server.session.duration"].unit == "s"


def test_a_session_that_ends_records_how_long_it_lived(meter: Meter) -> None:
    """As the fact does; and how it was spoken with, as the conventions recommend."""
    SessionMetrics(meter.provider)(SessionDeleted("ses_a", "idle", 90))
    (point,) = meter.points("mcp.server.session.duration").values()
    assert point.sum == 90
    assert point.attributes == {"network.transport": "tcp", "network.protocol.name": "http"}


def test_an_operation_is_timed_by_method_tool_and_outcome(meter: Meter) -> None:
    count = SessionMetrics(meter.provider)
    count.operation(message("tools/call", "add"), "2025-11-25", SUCCESS, seconds=0.03)
    count.operation(message("tools/call", "add"), "2025-11-25", Outcome("tool_error"), seconds=0.03)
    count.operation(message("prompts/get", "greet"), None, SUCCESS, seconds=0.03)
    count.operation(message("ping"), "draft", Outcome("-32601", "-32601"), seconds=0.03)
    data = meter.found()["mcp.server.operation.duration"].data
    assert isinstance(data, Histogram)
    assert {tuple(point.explicit_bounds) for point in data.data_points} == {OPERATION_BUCKETS}
    transport = {"network.transport": "tcp", "network.protocol.name": "http"}
    tool = {"gen_ai.operation.name": "execute_tool", "gen_ai.tool.name": "add", "mcp.protocol.version": "2025-11-25"}
    assert [point.attributes for point in data.data_points] == [
        {"mcp.method.name": "tools/call", **tool, **transport},
        {"mcp.method.name": "tools/call", **tool, "error.type": "tool_error", **transport},
        {"mcp.method.name": "prompts/get", "gen_ai.prompt.name": "greet", **transport},
        {
            "mcp.method.name": "ping",
            "mcp.protocol.version": "_OTHER",
            "error.type": "-32601",
            "rpc.response.status_code": "-32601",
            **transport,
        },
    ]


def test_a_tool_is_named_once_it_has_succeeded(meter: Meter, monkeypatch: pytest.MonkeyPatch) -> None:
    """Else any client could make a series per call, with tools that do not exist; nor are there ever too many."""
    monkeypatch.setattr(metrics, "_MAX_NAMES", 1)
    count = SessionMetrics(meter.provider)
    for number in range(5):
        count.operation(message("tools/call", f"made-up-{number}"), None, Outcome("tool_error"), seconds=0.1)
    for name in ("add", "add", "one too many"):
        count.operation(message("tools/call", name), None, SUCCESS, seconds=0.1)
    count.operation(message("made/up"), None, Outcome("-32601"), seconds=0.1)
    named = {dict(key).get("gen_ai.tool.name") for key in meter.points("mcp.server.operation.duration")}
    assert named == {"_OTHER", "add", None}


def test_without_an_sdk_nothing_happens() -> None:
    count = SessionMetrics()
    count(SessionCreated("ses_a", 1))
    count.operation(message("ping"), None, SUCCESS, seconds=0.1)
