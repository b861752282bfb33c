"""`SessionMetrics` counts and times, by the conventions' names, and no client can make a series of its own."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from typing import Any, ClassVar

import pytest
from apps import Server, sessions
from clients import Client
from failing import Failing
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import Histogram, InMemoryMetricReader
from starlette.types import Scope

from integration.servers import COVERING, Cell, running
from mcp_sessions import CreateRefused, Session, __version__
from mcp_sessions._errors import StoreUnavailable
from mcp_sessions._protocol.jsonrpc import Message, parse
from mcp_sessions._refusals import ENDS, REFUSALS
from mcp_sessions._session.events import RequestRefused, SessionCreated, SessionDeleted, SessionUsed
from mcp_sessions.stores._base import Record
from mcp_sessions.stores._memory import MemoryStore
from mcp_sessions.stores._timeout import TimeoutStore
from mcp_sessions.telemetry import _attributes as attributes
from mcp_sessions.telemetry._attributes import SCHEMA_URL, KnownNames, target_of, versions_of
from mcp_sessions.telemetry._metrics import OPERATION_BUCKETS, SESSION_BUCKETS, SessionMetrics
from mcp_sessions.telemetry._outcome import SUCCESS, Outcome, RequestTelemetry

DAY = 86_400


class Meter:
    """A meter provider, and what has been measured."""

    def __init__(self) -> None:
        self._reader = InMemoryMetricReader()
        self.provider = MeterProvider([self._reader], shutdown_on_exit=False)

    def scoped(self) -> Sequence[Any]:
        data = self._reader.get_metrics_data()
        assert data is not None
        (resource,) = data.resource_metrics
        return resource.scope_metrics

    def found(self) -> dict[str, Any]:
        return {metric.name: metric for scope in self.scoped() for metric in scope.metrics}

    def points(self, name: str) -> dict[tuple[tuple[str, Any], ...], Any]:
        return {tuple(sorted(point.attributes.items())): point for point in self.found()[name].data.data_points}


@pytest.fixture
def meter() -> Iterator[Meter]:
    meter = Meter()
    yield meter
    meter.provider.shutdown()


def test_metrics_say_by_which_version_and_conventions_they_are(meter: Meter) -> None:
    SessionMetrics(meter.provider)
    (scoped,) = meter.scoped()
    assert (scoped.scope.version, scoped.scope.schema_url) == (__version__, SCHEMA_URL)


def message(method: str, name: str | None = None) -> Message:
    params = {} if name is None else {"name": name}
    return parse(json.dumps({"jsonrpc": "2.0", "id": 1, "method": method, "params": params}).encode())


KNOWN = KnownNames()


@pytest.fixture(autouse=True)
def no_names() -> None:
    KNOWN._names.clear()


def handle(count: SessionMetrics, sent: Message, version: str | None, outcome: Outcome) -> None:
    """Let a message end so."""
    versions = versions_of(version, "1.1")
    request = RequestTelemetry(
        message=sent, target=target_of(sent), versions=versions, known=KNOWN, listeners=[count.operation]
    )
    request._settle(outcome)
    request.end()


def reason(word: str) -> tuple[tuple[str, str]]:
    return (("mcp_sessions.reason", word),)


def counted(meter: Meter, name: str) -> dict[tuple[tuple[str, Any], ...], Any]:
    """The points that are more than 0."""
    return {key: point.value for key, point in meter.points(name).items() if point.value}


@pytest.mark.parametrize("spans", ["auto", "enrich", "off"])
async def test_it_counts_what_becomes_of_sessions(spans: str, meter: Meter) -> None:
    """Created, ended by reason, refused by reason, timed by method, with spans or without; no session is named."""
    client = Client(sessions(Server(), metrics=SessionMetrics(meter.provider), spans=spans))
    held = await client.create()
    await client.create()
    await client.tool(session=held)
    await client.delete(held)
    await client.tool(session=held)
    assert counted(meter, "mcp_sessions.session.created") == {(): 2}
    assert counted(meter, "mcp_sessions.session.ended") == {reason("deleted"): 1}
    assert counted(meter, "mcp_sessions.request.refused") == {reason("ended"): 1}
    timed = meter.points("mcp.server.operation.duration").values()
    counts = [(point.attributes["mcp.method.name"], point.count) for point in timed]
    assert sorted(counts) == [("sessions/create", 2), ("sessions/delete", 1), ("tools/call", 1), ("tools/call", 1)]
    assert [point.count for point in meter.points("mcp.server.session.duration").values()] == [1]
    assert "ses_" not in repr(meter.found())


async def test_every_counter_begins_at_0(meter: Meter) -> None:
    """As the server starts, before any request: of a counter that appears with a burst no rate shows the burst."""
    app = sessions(Server(), metrics=SessionMetrics(meter.provider))
    async with app.services.around(lambda _: nullcontext(), None):
        ended, refused = (meter.points(f"mcp_sessions.{name}") for name in ("session.ended", "request.refused"))
        assert {*ended} == {reason(word) for word in (*ENDS, "_OTHER")}
        assert {*refused} == {reason(word) for word in (*REFUSALS, "_OTHER")}
        created, calls = (meter.points(f"mcp_sessions.{name}") for name in ("session.created", "tool.calls"))
        assert {*created} == {()}
        assert {dict(key)["mcp_sessions.outcome"] for key in calls} == {"success", "tool_error", "error", "refused"}
        points = (*ended.values(), *refused.values(), *created.values(), *calls.values())
        assert {point.value for point in points} == {0}


def refuses(session: Session, params: dict[str, Any], scope: Any) -> None:
    """Refuse every session."""
    raise CreateRefused


class Away(MemoryStore):
    """A store that takes no session."""

    async def register(self, record: Record, **limits: Any) -> None:
        raise StoreUnavailable


@pytest.mark.parametrize(
    ("options", "params"), [({"on_create": refuses}, {}), ({"store": Away()}, {})], ids=["refused", "store away"]
)
async def test_a_session_that_never_began_is_not_counted(
    options: dict[str, Any], params: dict[str, Any], meter: Meter
) -> None:
    client = Client(sessions(Server(), metrics=SessionMetrics(meter.provider), tracked=True, **options))
    assert "error" in (await client.send("sessions/create", params)).json
    assert counted(meter, "mcp_sessions.session.created") == counted(meter, "mcp_sessions.session.ended") == {}
    assert "mcp.server.session.duration" not in meter.found()


def test_the_words_of_applications_and_clients_make_no_series(meter: Meter) -> None:
    """Nor do a store's: each reason that is not in the table is `_OTHER`."""
    count = SessionMetrics(meter.provider)
    for number in range(5):
        count(SessionDeleted(f"ses_{number}", f"order {number} done", 1))
        count(RequestRefused(f"store_{number}", -32603, f"made/up{number}"))
    count(SessionUsed("ses_a", "tools/call"))
    count(SessionCreated("ses_a", 1))
    for name in ("session.ended", "request.refused"):
        assert counted(meter, f"mcp_sessions.{name}") == {reason("_OTHER"): 5}


def test_a_session_that_ends_records_how_long_it_lived_and_why_it_ended(meter: Meter) -> None:
    """The buckets of a connection end at five minutes; a logical session lives for a week."""
    SessionMetrics(meter.provider)(SessionDeleted("ses_a", "idle", 3 * DAY))
    (point,) = meter.points("mcp.server.session.duration").values()
    transport = {"network.transport": "tcp", "network.protocol.name": "http"}
    assert (point.sum, point.attributes) == (3 * DAY, {"mcp_sessions.reason": "idle", **transport})
    assert point.explicit_bounds == SESSION_BUCKETS
    assert SESSION_BUCKETS[-1] == 7 * DAY
    assert point.bucket_counts[SESSION_BUCKETS.index(3 * DAY)] == 1
    assert meter.found()["mcp.server.session.duration"].unit == "s"


def test_an_operation_is_timed_by_method_tool_and_outcome(meter: Meter) -> None:
    count = SessionMetrics(meter.provider)
    handle(count, message("tools/call", "add"), "2025-11-25", SUCCESS)
    handle(count, message("tools/call", "add"), "2025-11-25", Outcome("tool_error"))
    handle(count, message("prompts/get", "greet"), None, SUCCESS)
    handle(count, message("ping"), "2020-02-02", Outcome.of_code(-32601))
    data = meter.found()["mcp.server.operation.duration"].data
    assert isinstance(data, Histogram)
    assert {tuple(point.explicit_bounds) for point in data.data_points} == {OPERATION_BUCKETS}
    transport = {"network.transport": "tcp", "network.protocol.name": "http", "network.protocol.version": "1.1"}
    tool = {"gen_ai.operation.name": "execute_tool", "gen_ai.tool.name": "add", "mcp.protocol.version": "2025-11-25"}
    assert [point.attributes for point in data.data_points] == [
        {"mcp.method.name": "tools/call", **tool, **transport},
        {"mcp.method.name": "tools/call", **tool, "error.type": "tool_error", **transport},
        {"mcp.method.name": "prompts/get", "gen_ai.prompt.name": "greet", **transport},
        {
            "mcp.method.name": "ping",
            "mcp.protocol.version": "_OTHER",
            "rpc.response.status_code": "-32601",
            **transport,
        },
    ]


class Shop(Server):
    """A server whose tools fail in words of their own, and that lists some."""

    FAILURES: ClassVar = {"buy": "no stock", "pay": "no funds", "guess": "Unknown tool: guess"}

    async def _answer(self, scope: Scope, message: dict[str, Any]) -> dict[str, Any]:
        if message["method"] == "tools/list":
            return {"result": {"tools": [{"name": name} for name in ("pay", "ship", "x\ny")]}}
        text = self.FAILURES[message["params"]["name"]]
        return {"result": {"isError": True, "content": [{"type": "text", "text": text}]}}


def calls(meter: Meter) -> dict[tuple[str, str], int]:
    """How many calls there were, by tool and outcome, where there were any."""
    points = counted(meter, "mcp_sessions.tool.calls")
    return {(dict(key)["gen_ai.tool.name"], dict(key)["mcp_sessions.outcome"]): n for key, n in points.items()}


@pytest.mark.parametrize("sse", [False, True], ids=["json", "events"])
async def test_a_tool_is_named_before_it_has_ever_succeeded(sse: bool, meter: Meter) -> None:
    """From the list as it passes, and where the tool itself fails; one that there is not stays `_OTHER`."""
    client = Client(sessions(Shop(sse=sse), metrics=SessionMetrics(meter.provider), admission="own", spans="off"))
    await client.tool("buy")
    await client.tool("guess")
    await client.send("tools/list")
    zeros = {dict(key)["gen_ai.tool.name"] for key in meter.points("mcp_sessions.tool.calls")}
    assert zeros == {"_OTHER", "buy", "pay", "ship"}
    await client.tool("pay")
    assert calls(meter) == {("buy", "tool_error"): 1, ("_OTHER", "refused"): 1, ("pay", "tool_error"): 1}
    timed = [dict(key).get("gen_ai.tool.name") for key in meter.points("mcp.server.operation.duration")]
    assert sorted(filter(None, timed)) == ["_OTHER", "buy", "pay"]


@pytest.mark.parametrize("cell", [cell for cell in COVERING if not cell.stateful], ids=str)
async def test_a_tool_that_meets_a_fault_of_the_store_has_not_failed(cell: Cell, meter: Meter) -> None:
    """Each framework makes a failed result of the store's outage; when that is over, the tool may fail again."""
    store, metrics = Failing("add"), SessionMetrics(meter.provider)
    async with running(cell, store=TimeoutStore(store, seconds=5), metrics=metrics) as server:
        client = await server.connected()
        held = await client.create()
        for failing in ({"add"}, set[str]()):
            store.failing = failing
            failed = await client.send("tools/call", {"name": "tally"}, session=held)
            assert failed.result["isError"] is bool(failing)
    assert calls(meter) == {("tally", "refused"): 1, ("tally", "success"): 1}


def test_no_client_makes_names(meter: Meter, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nor are there ever too many, however a server words its errors; what it lists comes before what fails."""
    monkeypatch.setattr(attributes, "_MAX_NAMES", 3)
    monkeypatch.setattr(attributes, "_MAX_UNLISTED", 2)
    count = SessionMetrics(meter.provider)
    for number in range(5):
        handle(count, message("tools/call", f"made-up-{number}"), None, Outcome.of_code(-32602))
        handle(count, message("tools/call", f"fails-{number}"), None, Outcome("tool_error"))
    handle(count, message("tools/list"), None, Outcome(tools=("add", "one too many")))
    for name in ("add", "add", "one too many"):
        handle(count, message("tools/call", name), None, SUCCESS)
    handle(count, message("made/up"), None, Outcome.of_code(-32601))
    named = {dict(key).get("gen_ai.tool.name") for key in meter.points("mcp.server.operation.duration")}
    assert named == {"_OTHER", "fails-0", "fails-1", "add", None}
    assert calls(meter)["_OTHER", "refused"] == 5


def test_counters_begin_again_for_a_provider_that_comes_later(meter: Meter) -> None:
    """The names that are known, too: `begin` is called at the server's start."""
    count = SessionMetrics(meter.provider)
    handle(count, message("prompts/get", "greet"), None, SUCCESS)
    handle(count, message("tools/call", "add"), None, SUCCESS)
    count.begin()
    assert calls(meter) == {("add", "success"): 1}


def test_a_call_that_names_no_tool_is_timed_alone(meter: Meter) -> None:
    handle(SessionMetrics(meter.provider), message("tools/call"), None, Outcome.of_code(-32602))
    assert calls(meter) == {}
    (point,) = meter.points("mcp.server.operation.duration")
    assert "gen_ai.tool.name" not in dict(point)


def test_without_an_sdk_nothing_happens() -> None:
    count = SessionMetrics()
    count(SessionCreated("ses_a", 1))
    handle(count, message("ping"), None, SUCCESS)
