"""`SessionMetrics` counts and times, by the conventions' names, and no client can make a series of its own."""

import re
from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from time import perf_counter
from typing import Any, ClassVar

import anyio
import pytest
from apps import Server, sessions
from clients import Client, call, http
from failing import Failing
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from pages import DOCS
from starlette.types import Scope

from integration.servers import COVERING, Cell, running
from mcp_sessions import CreateRefused, Session, __version__
from mcp_sessions._refusals import ENDS, REFUSALS
from mcp_sessions._session.events import RequestRefused, SessionDeleted, SessionUsed
from mcp_sessions.stores import MemoryStore
from mcp_sessions.stores._timeout import TimeoutStore
from mcp_sessions.telemetry import _attributes as attributes
from mcp_sessions.telemetry._attributes import SCHEMA_URL
from mcp_sessions.telemetry._metrics import OPERATION_BUCKETS, SESSION_BUCKETS, SessionMetrics

DAY = 86_400
REASON, OUTCOME = "mcp_sessions.reason", "mcp_sessions.outcome"
OPERATION = "mcp.server.operation.duration"
TRANSPORT = {"network.transport": "tcp", "network.protocol.name": "http"}


class Meter:
    """A meter provider, and what has been measured."""

    def __init__(self) -> None:
        self._reader = InMemoryMetricReader()
        self.provider = MeterProvider([self._reader], shutdown_on_exit=False)

    def found(self) -> dict[str, Any]:
        """The metrics by name, all of our own scope."""
        data = self._reader.get_metrics_data()
        assert data is not None
        (scoped,) = data.resource_metrics[0].scope_metrics
        assert (scoped.scope.version, scoped.scope.schema_url) == (__version__, SCHEMA_URL)
        return {metric.name: metric for metric in scoped.metrics}

    def points(self, name: str) -> Sequence[Any]:
        found: Sequence[Any] = self.found()[name].data.data_points
        return found

    def counted(self, name: str, by: str) -> dict[str, int]:
        """The values of a counter that are more than 0, by an attribute."""
        return {point.attributes[by]: point.value for point in self.points(name) if point.value}


@pytest.fixture
def meter() -> Iterator[Meter]:
    meter = Meter()
    yield meter
    meter.provider.shutdown()


async def fail(session: Session | None, arguments: dict[str, Any]) -> str:
    raise LookupError


def refuse(session: Session, params: dict[str, Any], scope: Any) -> None:
    if "no" in params:
        raise CreateRefused


@pytest.mark.parametrize("spans", ["auto", "enrich", "off"])
async def test_it_counts_what_becomes_of_sessions(spans: str, meter: Meter) -> None:
    """Created, ended by reason, refused by reason, timed by method, as the page says; no session is named."""
    metrics = SessionMetrics(meter.provider)
    app = sessions(Server(fail=fail), metrics=metrics, spans=spans, tracked=True, on_create=refuse)
    client = Client(app, http_version="1.1")
    held = await client.create()
    await client.create()
    await client.send("sessions/create", {"no": 1})
    await client.tool(session=held)
    await client.send("prompts/get", {"name": "greeting"}, session=held)
    await client.send("no/such", session=held)
    with pytest.raises(LookupError):
        await client.tool("fail", session=held)
    await client.delete(held)
    await client.tool(session=held)
    assert [point.value for point in meter.points("mcp_sessions.session.created")] == [2]
    assert meter.counted("mcp_sessions.session.ended", REASON) == {"deleted": 1}
    assert meter.counted("mcp_sessions.request.refused", REASON) == {"ended": 1, "create_refused": 1}
    timed = [(point.attributes["mcp.method.name"], point.count) for point in meter.points(OPERATION)]
    own = [("sessions/create", 2), ("sessions/delete", 1)]
    assert sorted(timed) == [("_OTHER", 1), ("prompts/get", 1), *own, ("tools/call", 1), ("tools/call", 1)]
    refused = {point.attributes[REASON]: point.count for point in meter.points("mcp_sessions.refusal.duration")}
    assert refused == {"ended": 1, "create_refused": 1}
    assert [point.count for point in meter.points("mcp.server.session.duration")] == [1]
    assert "ses_" not in repr(meter.found())
    metrics.alive("the store", "shop", 1)
    metrics.store_call("look_up", "success", 0.1)
    found = {
        name: (metric.unit, {name for point in metric.data.data_points for name in point.attributes or {}})
        for name, metric in meter.found().items()
    }
    page = re.findall(
        r"^\| `(mcp[\w.]+)` \| `([^`]+)` \|(.*)\|$", (DOCS / "tracing.md").read_text("utf-8"), re.MULTILINE
    )
    assert found == {name: (unit, set(re.findall(r"`([\w.]+)`", attributes))) for name, unit, attributes in page}


async def test_refusals_are_timed_from_their_arrival(meter: Meter) -> None:
    """What it takes to find out that a request is refused counts."""

    def slow(scope: Scope) -> None:
        until = perf_counter() + 0.02
        while perf_counter() < until:
            pass

    client = Client(sessions(Server(), metrics=SessionMetrics(meter.provider), principal=slow))
    assert (await client.tool(session={"sessionId": "x"})).error["code"] == -32043
    (point,) = meter.points("mcp_sessions.refusal.duration")
    assert (point.sum >= 0.02, point.attributes) == (True, {REASON: "token_shape"})
    assert OPERATION not in meter.found()


class Slow(MemoryStore):
    """A store across a slow network."""

    async def look_up(self, *questions: Any, **options: Any) -> Any:
        await anyio.sleep(0.05)
        return await super().look_up(*questions, **options)


async def test_a_slow_store_shows(meter: Meter) -> None:
    """In the time of its calls, and in the time of requests, as clients see it."""
    store = TimeoutStore(Slow(), seconds=5)
    client = Client(sessions(Server(), store=store, metrics=SessionMetrics(meter.provider)))
    held = await client.create()
    await client.tool(session=held)
    seconds = {
        (point.attributes["mcp_sessions.store.call"], point.attributes[OUTCOME]): point.sum
        for point in meter.points("mcp_sessions.store.duration")
    }
    assert seconds["look_up", "success"] >= 0.05
    (called,) = [p for p in meter.points(OPERATION) if p.attributes["mcp.method.name"] == "tools/call"]
    assert called.sum >= 0.05


async def test_a_call_of_the_store_has_the_reason_of_its_failure(meter: Meter) -> None:
    store = TimeoutStore(Failing("look_up"), seconds=5)
    client = Client(sessions(Server(), store=store, metrics=SessionMetrics(meter.provider)))
    held = await client.create()
    assert (await client.tool(session=held)).status == 503
    found = {p.attributes[OUTCOME] for p in meter.points("mcp_sessions.store.duration")}
    assert "store_unavailable" in found


async def test_every_counter_begins_at_0(meter: Meter) -> None:
    """As the server starts, before any request: of a counter that appears with a burst no rate shows the burst."""
    app = sessions(Server(), metrics=SessionMetrics(meter.provider))
    async with app.services.around(lambda _: nullcontext(), None):
        for name, by, words in (
            ("session.created", "", [None]),
            ("session.ended", REASON, [*ENDS, "_OTHER"]),
            ("request.refused", REASON, [*REFUSALS, "_OTHER"]),
            ("tool.calls", OUTCOME, ["success", "tool_error", "error", "refused"]),
        ):
            points = meter.points(f"mcp_sessions.{name}")
            assert {(point.attributes.get(by), point.value) for point in points} == {(word, 0) for word in words}


def test_the_words_of_applications_and_clients_make_no_series(meter: Meter) -> None:
    """Each reason that is not in the table is `_OTHER`. An end records how long the session lived, for up to a week."""
    count = SessionMetrics(meter.provider)
    for number in range(5):
        count(SessionDeleted(f"ses_{number}", f"order {number} done", 1))
        count(RequestRefused(f"store_{number}", -32603, f"made/up{number}"))
    count(SessionUsed("ses_a", "tools/call"))
    count(SessionDeleted("ses_a", "idle", 3 * DAY))
    assert meter.counted("mcp_sessions.session.ended", REASON) == {"_OTHER": 5, "idle": 1}
    assert meter.counted("mcp_sessions.request.refused", REASON) == {"_OTHER": 5}
    _, point = meter.points("mcp.server.session.duration")
    assert (point.sum, point.attributes) == (3 * DAY, {REASON: "idle", **TRANSPORT})
    assert point.explicit_bounds == SESSION_BUCKETS
    assert SESSION_BUCKETS[-1] == 7 * DAY
    assert point.bucket_counts[SESSION_BUCKETS.index(3 * DAY)] == 1


class Shop(Server):
    """A server that lists some tools and words its failures itself, as text, or as the code of an error."""

    LISTED = ("pay", "ship", "x\ny")
    FAILURES: ClassVar[dict[str | None, str | int]] = {"buy": "no stock", "guess": "Unknown tool: guess", None: -32602}

    async def _answer(self, scope: Scope, message: dict[str, Any]) -> dict[str, Any]:
        if message["method"] == "tools/list":
            return {"result": {"tools": [{"name": name} for name in self.LISTED]}}
        failure = self.FAILURES.get(message["params"].get("name"))
        if isinstance(failure, int):
            return {"error": {"code": failure, "message": "no"}}
        return {"result": {"isError": failure is not None, "content": [{"type": "text", "text": failure or ""}]}}


def shopping(meter: Meter, **how: Any) -> Client:
    """A client of the shop."""
    app = sessions(Shop(**how), metrics=SessionMetrics(meter.provider), admission="own", spans="off")
    return Client(app, http_version="1.1")


def calls(meter: Meter) -> dict[tuple[str, str], int]:
    """How many calls there were, by tool and outcome, where there were any."""
    points = [point for point in meter.points("mcp_sessions.tool.calls") if point.value]
    return {(point.attributes["gen_ai.tool.name"], point.attributes[OUTCOME]): point.value for point in points}


async def test_an_operation_is_timed_by_method_tool_and_outcome(meter: Meter) -> None:
    client = shopping(meter)
    await client.tool("add")
    await client.tool("buy")
    await client.send("tools/call")
    await client.send("prompts/get", {"name": "greet"})
    scope = http(headers=[(b"mcp-protocol-version", b"2020-02-02")], http_version="1.1")
    await call(client.app, scope, b'{"jsonrpc":"2.0","id":1,"method":"ping","params":{"name":"add"}}')
    assert {tuple(point.explicit_bounds) for point in meter.points(OPERATION)} == {OPERATION_BUCKETS}
    common = {**TRANSPORT, "network.protocol.version": "1.1", "mcp.protocol.version": "2026-07-28"}
    execute = {"mcp.method.name": "tools/call", "gen_ai.operation.name": "execute_tool", **common}
    assert [point.attributes for point in meter.points(OPERATION)] == [
        {**execute, "gen_ai.tool.name": "add"},
        {**execute, "gen_ai.tool.name": "buy", "error.type": "tool_error"},
        {**execute, "rpc.response.status_code": "-32602"},
        {**common, "mcp.method.name": "prompts/get", "gen_ai.prompt.name": "greet"},
        {**common, "mcp.method.name": "ping", "mcp.protocol.version": "_OTHER"},
    ]
    assert calls(meter) == {("add", "success"): 1, ("buy", "tool_error"): 1}


@pytest.mark.parametrize("sse", [False, True], ids=["json", "events"])
async def test_a_tool_is_named_before_it_has_ever_succeeded(sse: bool, meter: Meter) -> None:
    """From the list as it passes, and where the tool itself fails; one that there is not stays `_OTHER`."""
    client = shopping(meter, sse=sse)
    await client.tool("buy")
    await client.tool("guess")
    await client.send("tools/list")
    zeros = {point.attributes["gen_ai.tool.name"] for point in meter.points("mcp_sessions.tool.calls")}
    assert zeros == {"_OTHER", "buy", "pay", "ship"}
    assert calls(meter) == {("buy", "tool_error"): 1, ("_OTHER", "refused"): 1}


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


async def test_no_client_makes_names(meter: Meter, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nor are there ever too many, however a server words its errors; what it lists comes before what fails."""
    monkeypatch.setattr(attributes, "_MAX_NAMES", 3)
    monkeypatch.setattr(attributes, "_MAX_UNLISTED", 2)
    fails = {f"fails-{number}": "broken" for number in range(5)}
    monkeypatch.setattr(Shop, "FAILURES", {**fails, **{f"made-up-{number}": -32602 for number in range(5)}})
    client = shopping(meter)
    for name in Shop.FAILURES:
        await client.tool(str(name))
    await client.send("tools/list")
    for name in Shop.LISTED[:2]:
        await client.tool(name)
    await client.send("made/up")
    timed = [point.attributes for point in meter.points(OPERATION)]
    assert {of.get("gen_ai.tool.name") for of in timed} == {"_OTHER", "fails-0", "fails-1", "pay", None}
    assert {of["mcp.method.name"] for of in timed} == {"tools/call", "tools/list", "_OTHER"}
    assert calls(meter)["_OTHER", "refused"] == 5
