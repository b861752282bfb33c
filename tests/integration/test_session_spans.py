"""Every span that a session's request causes names that session, on every framework in every mode.

A tool runs an errand: a span of its own, an HTTP request and a database query, under the real instrumentation. In each
cell, errands of two sessions and of none run at the same time, each in a trace of its own, which its caller brings.
"""

import sqlite3
from collections.abc import Callable, Iterator
from typing import Any, Final

import anyio
import httpx
import pytest
from apps import grouped
from environments import require

require("opentelemetry-sdk>=1.28")

from opentelemetry import trace
from opentelemetry.instrumentation.asgi import OpenTelemetryMiddleware
from opentelemetry.instrumentation.httpx import HTTPXClientInstrumentor
from opentelemetry.instrumentation.sqlite3 import SQLite3Instrumentor
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.trace import SpanContext, SpanKind
from recorded import ALIAS, process_wide, said
from starlette.types import ASGIApp

from mcp_sessions import MCPSessionMiddleware

from .servers import COVERING, KEYS, Cell, Hall, made, ref, running


@pytest.fixture(autouse=True)
def spans() -> Iterator[list[Any]]:
    """The spans that end during one test, from everything in this process."""
    with process_wide().recording() as kept:
        yield kept


def bare(cell: Cell, hall: Hall) -> Any:
    async def run() -> str:
        """Run an errand and return the ref of the session it ran in."""
        with trace.get_tracer("errands").start_as_current_span("errand"):
            await hall.enter("errand")
            async with httpx.AsyncClient(transport=httpx.MockTransport(lambda request: httpx.Response(200))) as client:
                HTTPXClientInstrumentor.instrument_client(client)
                await client.get("http://elsewhere")
            connection = sqlite3.connect(":memory:")
            SQLite3Instrumentor.instrument_connection(connection).cursor().execute("SELECT 1")
            connection.close()
        return ref()

    return made(cell, run)


def alone(cell: Cell, hall: Hall, **options: Any) -> ASGIApp:
    return MCPSessionMiddleware(bare(cell, hall), **grouped(**{"keys": KEYS, "transport": "off", **options}))


def outside(cell: Cell, hall: Hall, **options: Any) -> ASGIApp:
    """Put OpenTelemetry's ASGI instrumentation around the middleware, as `opentelemetry-instrument` does."""
    return OpenTelemetryMiddleware(alone(cell, hall, **options))


def inside(cell: Cell, hall: Hall, **options: Any) -> ASGIApp:
    """Put OpenTelemetry's ASGI instrumentation within the middleware, which also names transport sessions."""
    return MCPSessionMiddleware(OpenTelemetryMiddleware(bare(cell, hall)), **grouped(keys=KEYS, **options))


ASGI: Final = "opentelemetry.instrumentation.asgi"
MAKERS: Final = {"errands", ASGI, "opentelemetry.instrumentation.httpx", "opentelemetry.instrumentation.sqlite3"}
FRAMEWORK: Final = {"sdk2": {"mcp-python-sdk"}, "fastmcp3": {"fastmcp"}, "fastmcp4": {"fastmcp"}}
"""The instrumentation scopes of frameworks that make spans of their own."""


def maker(span: ReadableSpan) -> str:
    assert span.instrumentation_scope is not None
    return span.instrumentation_scope.name


def names(span: ReadableSpan) -> tuple[Any, ...]:
    return tuple((span.attributes or {}).get(name) for name in ("session.id", "mcp.session.id", ALIAS))


def is_before_the_session(span: ReadableSpan) -> bool:
    """Whether the span is made before the session is known: as a request arrives, or while its body is read."""
    return maker(span) == ASGI and (span.kind is SpanKind.SERVER or span.name.endswith("http receive"))


@pytest.mark.parametrize("place", [outside, inside])
@pytest.mark.parametrize("cell", COVERING, ids=str)
async def test_every_span_names_the_session_of_its_request(
    cell: Cell, place: Callable[..., ASGIApp], spans: list[ReadableSpan]
) -> None:
    """Without a session they name none, or that of the client's transport where it has one."""
    refs: dict[int, str] = {}  # that the tools saw, by trace

    async def run(number: int, held: dict[str, str] | None) -> None:
        parent = f"00-{number:032x}-{1:016x}-01"
        params = {"name": "run", "arguments": {}, "_meta": {"traceparent": parent}}
        refs[number] = (await client.having(traceparent=parent).send("tools/call", params, session=held)).text

    async with running(cell, make=place) as server:
        client = await server.connected()
        first, second = await client.create(), await client.create()
        async with anyio.create_task_group() as tasks:
            for number, held in enumerate((first, second, dict(first), None), 1):
                tasks.start_soon(run, number, held)
            await server.hall.filled(4)
            server.hall.open()
    has_transport = place is inside and not cell.modern and not cell.stateful
    assert refs[1] == refs[3] != refs[2]
    assert (refs[4] == "nobody") != has_transport
    # In the stateful mode of SDK 1.x and FastMCP 3, handlers run in a task of their connection, and so in its trace.
    has_own_trace = not (cell.stateful and cell.framework in {"sdk1", "fastmcp3"})
    tools = {names(span)[0] for span in spans if maker(span) == "errands"}
    assert {session for session in refs.values() if session != "nobody"} <= tools
    for number, session in refs.items():
        mine = [span for span in spans if span.context is not None and span.context.trace_id == number]
        assert not has_own_trace or MAKERS | FRAMEWORK.get(cell.framework, set()) <= {maker(span) for span in mine}
        early = {names(span)[0] for span in mine if is_before_the_session(span)}
        named = {names(span) for span in mine if not is_before_the_session(span)}
        if session != "nobody":
            # FastMCP writes its own id over `mcp.session.id` on its own span.
            assert {(own, alias) for own, _, alias in named} == {(session, session)}
            ours = {names(span)[1] for span in mine if maker(span) not in {ASGI, "fastmcp"}}
            assert ours == {session} or (not has_own_trace and not ours)
            assert early <= {None, session}
        elif cell.stateful and not cell.modern:  # the server's own session
            ((own, alias),) = {(own, alias) for own, _, alias in named}
            assert own.startswith("srv_")
            assert alias == own
        else:
            assert {(own, alias) for own, _, alias in named} == {(None, None)}  # FastMCP names one of its own


# --- a session as one trace ------------------------------------------------------------------------

CALLER = (0xCA, 0xC1)
META = {"traceparent": f"00-{CALLER[0]:032x}-{CALLER[1]:016x}-01"}


@pytest.mark.parametrize("traceparent", [False, True], ids=["own-trace", "traceparent"])
@pytest.mark.parametrize("place", [alone, outside, inside])
@pytest.mark.parametrize("cell", [cell for cell in COVERING if cell.json], ids=str)
async def test_a_session_can_be_one_trace(
    cell: Cell, place: Callable[..., ASGIApp], traceparent: bool, spans: list[ReadableSpan]
) -> None:
    """All that names the session is in one trace, with one server span a call, whatever trace the caller brings.

    The span of an HTTP instrumentation outside starts before the session is known, so it stays in its caller's trace.
    """
    async with running(cell, make=place, trace="session", transport="off") as server:
        client = await server.connected()
        held = await client.create()
        server.hall.open()
        params = {"name": "run", "arguments": {}, "_meta": META if traceparent else {}}
        session = (await client.send("tools/call", params, session=held)).text
        await client.delete(held)
    around = [span for span in spans if place is outside and maker(span) == ASGI]
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


def where(context: SpanContext | None) -> tuple[int, int] | None:
    return None if context is None else (context.trace_id, context.span_id)


def links(span: ReadableSpan) -> set[tuple[int, int] | None]:
    return {where(link.context) for link in span.links}
