"""Every span that a session's request causes names that session, on every framework in every mode.

A cell of the matrix is one framework in one mode; in each, errands of two sessions and of nobody run at the same time,
with and without a trace context in `_meta`. The spans are the frameworks' own and those of OpenTelemetry's
instrumentation of ASGI, httpx, sqlite3 and Redis. No cell can be skipped: the table of expected cells is written down,
and the last test counts those that ran.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final

import anyio
import pytest
from environments import require

require("opentelemetry-sdk>=1.28")

from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.trace import SpanKind
from recorded import ALIAS, process_wide
from starlette.types import ASGIApp

from .errands import ALL_CELLS, HEADER, inside, instrumented_redis, outside
from .servers import FRAMEWORKS, Cell, Running, running
from .wire import Held

NAMES: Final = ("session.id", "mcp.session.id", ALIAS)
PLACES: Final[dict[str, Callable[..., ASGIApp]]] = {"outside": outside, "inside": inside}
TRACEPARENTS: Final = {"own-trace": False, "traceparent": True}

_MODES: Final = {f"{mode}-{form}" for mode in ("stateful", "stateless") for form in ("json", "sse")}
_PLAIN: Final = {
    f"{name}-{era}-stateless-{form}"
    for name in ("starlette", "fastapi")
    for era in ("legacy", "modern")
    for form in ("json", "sse")
}
EXPECTED: Final = {
    ("sdk2", "fastmcp4"): _PLAIN
    | {f"{name}-{era}-{mode}" for name in ("sdk2", "fastmcp4") for era in ("legacy", "modern") for mode in _MODES},
    ("sdk1", "fastmcp3"): _PLAIN | {f"{name}-legacy-{mode}" for name in ("sdk1", "fastmcp3") for mode in _MODES},
}
MAKERS: Final = {
    "errands",
    *(f"opentelemetry.instrumentation.{name}" for name in ("asgi", "httpx", "redis", "sqlite3")),
}
FRAMEWORK: Final = {"sdk2": {"mcp-python-sdk"}, "fastmcp3": {"fastmcp"}, "fastmcp4": {"fastmcp"}}
"""Who makes spans of its own, by its instrumentation scope."""
FRAMEWORKS_OWN: Final = {"fastapi", "fastmcp", "mcp-python-sdk"}  # FastAPI's only where it is new enough
RAN: Final[set[tuple[str, str, str]]] = set()

ERRANDS: Final = ("first", "second", "first-again", "nobody")
FIRST, SECOND, AGAIN, NOBODY = ERRANDS


@pytest.fixture
def spans() -> Iterator[list[ReadableSpan]]:
    """The spans of one test, of all that is in this process."""
    instrumented_redis()
    with process_wide().recording() as kept:
        yield kept


def trace_of(name: str) -> int:
    """The trace of an errand that brings one along."""
    return 0xA0 + ERRANDS.index(name)


async def run_all(server: Running, sessions: dict[str, Held | None], *, traceparent: bool) -> dict[str, str]:
    """All errands at once, each inside its tool before any goes on; whose each was, as its tool says."""
    client = await server.connected()
    said: dict[str, str] = {}

    async def run(name: str, held: Held | None) -> None:
        params: dict[str, Any] = {"name": "errand", "arguments": {"name": name}}
        if traceparent:
            params["_meta"] = {"traceparent": f"00-{trace_of(name):032x}-{1:016x}-01"}
        said[name] = (await client.request("tools/call", params, held, {HEADER: name})).text

    async with anyio.create_task_group() as tasks:
        for name, held in sessions.items():
            tasks.start_soon(run, name, held)
        await server.hall.filled(len(sessions))
        server.hall.open()
    return said


def says(span: ReadableSpan) -> str | None:
    """The errand that a span itself names."""
    attributes = span.attributes or {}
    texts = {str(attributes.get(name)) for name in ("errand", "http.url", "db.statement")}
    return next((name for name in ERRANDS if texts & {name, f"http://elsewhere/{name}", f"SELECT '{name}'"}), None)


def errand_of(span: ReadableSpan, spans: Sequence[ReadableSpan]) -> str | None:
    """The errand that a span belongs to: it says so itself, or one right below it does, or its trace, or one above.

    A framework's own span is right above its tool's. Other spans above may be another request's: in SDK 1.x the
    context of a connection's first one.
    """
    assert span.context is not None
    below = [other for other in spans if is_frameworks(span) and other.parent == span.context]
    above = [other for other in spans if span.parent is not None and other.context == span.parent]
    traces = [name for name in ERRANDS if span.context.trace_id == trace_of(name)]
    nearest = [says(span), *map(says, below), *traces, *(errand_of(other, spans) for other in above)]
    return next(filter(None, nearest), None)


def is_frameworks(span: ReadableSpan) -> bool:
    """Whether a framework made it."""
    scope = span.instrumentation_scope
    return scope is not None and scope.name in FRAMEWORKS_OWN


def is_before_the_session(span: ReadableSpan) -> bool:
    """The instrumentation outside of us: a request as it arrives, and the reading of its body."""
    scope = span.instrumentation_scope
    assert scope is not None
    ours = scope.name == "opentelemetry.instrumentation.asgi"
    return ours and (span.kind is SpanKind.SERVER or span.name.endswith("http receive"))


def names_by_errand(spans: Sequence[ReadableSpan]) -> dict[str, dict[str, set[tuple[Any, ...]]]]:
    """What the spans of each errand name as their session, by who made them, less what cannot know it."""
    found: dict[str, dict[str, set[tuple[Any, ...]]]] = {name: defaultdict(set) for name in ERRANDS}
    for span in spans:
        errand, maker = errand_of(span, spans), span.instrumentation_scope
        named = tuple((span.attributes or {}).get(attribute) for attribute in NAMES)
        if errand is not None and maker is not None and (any(named) or not is_before_the_session(span)):
            found[errand][maker.name].add(named)
    return found


@pytest.mark.parametrize("traceparent", TRACEPARENTS.values(), ids=TRACEPARENTS)
@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("cell", ALL_CELLS, ids=str)
async def test_every_span_names_the_session_of_its_request(
    cell: Cell, place: str, traceparent: bool, spans: list[ReadableSpan]
) -> None:
    """The tool's own span, the HTTP request, the query and what the framework adds.

    Nobody's name no session, or that of their client's transport where it was given one.
    """
    async with running(cell, make=PLACES[place]) as server:
        client = await server.connected()
        first, second = await client.create(), await client.create()
        held: dict[str, Held | None] = {FIRST: first, SECOND: second, AGAIN: Held(dict(first.metadata)), NOBODY: None}
        said = await run_all(server, held, traceparent=traceparent)
    assert said[FIRST] == said[AGAIN] != said[SECOND]
    has_transport = place == "inside" and not cell.modern and not cell.stateful
    assert (said[NOBODY] == "nobody") != has_transport
    found = names_by_errand(spans)
    for name in ERRANDS if has_transport else (FIRST, SECOND, AGAIN):
        assert MAKERS | FRAMEWORK.get(cell.framework, set()) <= found[name].keys()
        assert set().union(*found[name].values()) == {(said[name],) * 3}, name
    nobodys = set().union(*found[NOBODY].values())
    assert has_transport or not any(named[0] or named[2] for named in nobodys)  # FastMCP names one of its own
    RAN.add((str(cell), place, str(traceparent)))


def test_the_table_of_cells_is_what_this_environment_must_run() -> None:
    """Every mode of both installed frameworks and of the plain ones is there."""
    assert {str(cell) for cell in ALL_CELLS} == EXPECTED[FRAMEWORKS]


def test_every_cell_that_was_selected_ran(request: pytest.FixtureRequest) -> None:
    """No cell of the matrix was skipped or left out on the way."""
    name = test_every_span_names_the_session_of_its_request.__name__
    tests = [item for item in request.session.items if isinstance(item, pytest.Function) and item.originalname == name]
    cells = [test.callspec.params for test in tests]
    assert {(str(cell["cell"]), cell["place"], str(cell["traceparent"])) for cell in cells} == RAN
