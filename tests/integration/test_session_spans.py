"""Every span that a session's request causes names that session, on every framework in every mode.

In each cell, errands of two sessions and of none run at the same time, with and without a trace context in `_meta`.
The spans are the frameworks' own and those of OpenTelemetry's instrumentation of ASGI, httpx, sqlite3 and Redis.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import Any, Final

import anyio
import pytest
from environments import require

require("opentelemetry-sdk>=1.28")

from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.trace import SpanContext, SpanKind
from recorded import ALIAS, said
from starlette.types import ASGIApp

from .errands import ALL_CELLS, HEADER, alone, inside, outside
from .servers import Cell, Running, running

NAMES: Final = ("session.id", "mcp.session.id", ALIAS)
PLACES: Final[dict[str, Callable[..., ASGIApp]]] = {"outside": outside, "inside": inside}
TRACEPARENTS: Final = {"own-trace": False, "traceparent": True}

MAKERS: Final = {
    "errands",
    *(f"opentelemetry.instrumentation.{name}" for name in ("asgi", "httpx", "redis", "sqlite3")),
}
FRAMEWORK: Final = {"sdk2": {"mcp-python-sdk"}, "fastmcp3": {"fastmcp"}, "fastmcp4": {"fastmcp"}}
"""The instrumentation scopes of frameworks that make spans of their own."""
FRAMEWORKS_OWN: Final = {"fastapi", "fastmcp", "mcp-python-sdk"}  # FastAPI's only where it is new enough

ERRANDS: Final = ("first", "second", "first-again", "none")
FIRST, SECOND, AGAIN, NONE = ERRANDS


pytestmark = pytest.mark.usefixtures("redis")


def trace_of(name: str) -> int:
    """Return the trace id of an errand with a trace context."""
    return 0xA0 + ERRANDS.index(name)


async def run_all(server: Running, sessions: dict[str, dict[str, str] | None], *, traceparent: bool) -> dict[str, str]:
    """Run all errands at once, each inside its tool before any goes on, and return the ref that each tool saw."""
    client = await server.connected()
    refs: dict[str, str] = {}

    async def run(name: str, held: dict[str, str] | None) -> None:
        params: dict[str, Any] = {"name": "errand", "arguments": {"name": name}}
        if traceparent:
            params["_meta"] = {"traceparent": f"00-{trace_of(name):032x}-{1:016x}-01"}
        refs[name] = (await client.having(**{HEADER: name}).send("tools/call", params, session=held)).text

    async with anyio.create_task_group() as tasks:
        for name, held in sessions.items():
            tasks.start_soon(run, name, held)
        await server.hall.filled(len(sessions))
        server.hall.open()
    return refs


def says(span: ReadableSpan) -> str | None:
    attributes = span.attributes or {}
    texts = {str(attributes.get(name)) for name in ("errand", "http.url", "db.statement")}
    return next((name for name in ERRANDS if texts & {name, f"http://elsewhere/{name}", f"SELECT '{name}'"}), None)


def errand_of(span: ReadableSpan, spans: Sequence[ReadableSpan]) -> str | None:
    """Return the errand that is named by a span, its child, its trace or an ancestor, in this order.

    A framework's own span is the parent of its tool's. Other ancestors may belong to another request: in SDK 1.x to
    the first one of the connection.
    """
    assert span.context is not None
    below = [other for other in spans if is_frameworks(span) and other.parent == span.context]
    above = [other for other in spans if span.parent is not None and other.context == span.parent]
    traces = [name for name in ERRANDS if span.context.trace_id == trace_of(name)]
    nearest = [says(span), *map(says, below), *traces, *(errand_of(other, spans) for other in above)]
    return next(filter(None, nearest), None)


def is_frameworks(span: ReadableSpan) -> bool:
    scope = span.instrumentation_scope
    return scope is not None and scope.name in FRAMEWORKS_OWN


def is_before_the_session(span: ReadableSpan) -> bool:
    """Whether the span is made before the session is known: as a request arrives, or while its body is read."""
    scope = span.instrumentation_scope
    assert scope is not None
    ours = scope.name == "opentelemetry.instrumentation.asgi"
    return ours and (span.kind is SpanKind.SERVER or span.name.endswith("http receive"))


def names_by_errand(spans: Sequence[ReadableSpan]) -> dict[str, dict[str, set[tuple[Any, ...]]]]:
    """Return the sessions that the spans of each errand name, by maker, without spans that cannot know it."""
    found: dict[str, dict[str, set[tuple[Any, ...]]]] = {name: defaultdict(set) for name in ERRANDS}
    for span in spans:
        errand, maker = errand_of(span, spans), span.instrumentation_scope
        named = tuple((span.attributes or {}).get(attribute) for attribute in NAMES)
        if named[0] and named[1] is None and is_before_the_session(span):  # the span below has it
            named = (named[0], named[0], named[2])
        if errand is not None and maker is not None and (any(named) or not is_before_the_session(span)):
            found[errand][maker.name].add(named)
    return found


@pytest.mark.parametrize("traceparent", TRACEPARENTS.values(), ids=TRACEPARENTS)
@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("cell", ALL_CELLS, ids=str)
async def test_every_span_names_the_session_of_its_request(
    cell: Cell, place: str, traceparent: bool, spans: list[ReadableSpan]
) -> None:
    """Without a session they name none, or that of the client's transport where it has one."""
    async with running(cell, make=PLACES[place]) as server:
        client = await server.connected()
        first, second = await client.create(), await client.create()
        held: dict[str, dict[str, str] | None] = {FIRST: first, SECOND: second, AGAIN: dict(first), NONE: None}
        refs = await run_all(server, held, traceparent=traceparent)
        assert refs[FIRST] == refs[AGAIN] != refs[SECOND]
    has_transport = place == "inside" and not cell.modern and not cell.stateful
    assert (refs[NONE] == "nobody") != has_transport
    found = names_by_errand(spans)
    for name in ERRANDS if has_transport else (FIRST, SECOND, AGAIN):
        assert MAKERS | FRAMEWORK.get(cell.framework, set()) <= found[name].keys()
        assert set().union(*found[name].values()) == {(refs[name],) * 3}, name
        without = set().union(*found[NONE].values())
        if cell.stateful and not cell.modern:  # the server's own session
            assert {str(named[0])[:4] for named in without} == {"srv_"}
            assert len(without) == len(set(*without)) == 1
        else:
            assert has_transport or not any(named[0] or named[2] for named in without)  # FastMCP names one of its own


# --- a session as one trace ------------------------------------------------------------------------

CALLER = (0xCA, 0xC1)
META = {"traceparent": f"00-{CALLER[0]:032x}-{CALLER[1]:016x}-01"}


@pytest.mark.parametrize("traceparent", TRACEPARENTS.values(), ids=TRACEPARENTS)
@pytest.mark.parametrize("place", ["alone", *PLACES])
@pytest.mark.parametrize("cell", [cell for cell in ALL_CELLS if cell.json], ids=str)
async def test_a_session_can_be_one_trace(cell: Cell, place: str, traceparent: bool, spans: list[ReadableSpan]) -> None:
    """All that names the session is in one trace, with one server span a call, whatever trace the caller brings.

    The span of an HTTP instrumentation outside starts before the session is known, so it stays in its caller's trace.
    """
    async with running(cell, make={"alone": alone, **PLACES}[place], trace="session", transport="off") as server:
        client = await server.connected()
        held = await client.create()
        server.hall.open()
        params = {"name": "errand", "arguments": {"name": "one"}, "_meta": META if traceparent else {}}
        session = (await client.send("tools/call", params, session=held)).text
        await client.delete(held)
    around = [span for span in spans if place == "outside" and maker(span) == "opentelemetry.instrumentation.asgi"]
    within = [span for span in spans if said(span, "session.id") == [session] and span not in around]
    (trace,) = {span.context.trace_id for span in within if span.context is not None}
    (root,) = [span for span in spans if span.parent is None and (where(span.context) or (0,))[0] == trace]
    assert root.name == "sessions/create"
    assert {"session start", "errand", "session end", "sessions/delete"} <= {span.name for span in within}
    (call,) = [span for span in within if span.kind is SpanKind.SERVER and is_message(span, "tools/call")]
    assert (maker(call) != "mcp_sessions") == (cell.framework in FRAMEWORK)
    assert where(call.parent) in {where(span.context) for span in within}
    assert (CALLER in links(call)) == traceparent
    assert {where(span.context) for span in around if is_message(span, "tools/call")} <= links(call)


def is_message(span: ReadableSpan, method: str) -> bool:
    return said(span, "mcp.method.name") == [method]


def maker(span: ReadableSpan) -> str:
    assert span.instrumentation_scope is not None
    return span.instrumentation_scope.name


def where(context: SpanContext | None) -> tuple[int, int] | None:
    return None if context is None else (context.trace_id, context.span_id)


def links(span: ReadableSpan) -> set[tuple[int, int] | None]:
    return {where(link.context) for link in span.links}
