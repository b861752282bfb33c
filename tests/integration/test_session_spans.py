"""Every span that a session's request causes names that session, on every framework in every mode.

A tool runs an errand: a span of its own, an HTTP request, a database query and a Redis command, under the real
instrumentation. In each cell, errands of two sessions and of none run at the same time, with and without a trace
context in `_meta`. An errand's span has its name, and those of what it does are below that one.
"""

import sqlite3
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from itertools import chain
from typing import Any, Final

import anyio
import httpx
import pytest
import redis
import redis_servers
from apps import grouped
from environments import require

require("opentelemetry-sdk>=1.28")

from opentelemetry import trace
from opentelemetry.instrumentation.asgi import OpenTelemetryMiddleware
from opentelemetry.instrumentation.httpx import HTTPXClientInstrumentor
from opentelemetry.instrumentation.redis import RedisInstrumentor
from opentelemetry.instrumentation.sqlite3 import SQLite3Instrumentor
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.trace import SpanContext, SpanKind
from recorded import ALIAS, process_wide, said
from starlette.types import ASGIApp

from mcp_sessions import MCPSessionMiddleware

from .servers import COVERING, KEYS, Cell, Hall, Running, made, ref, running

HEADER: Final = "x-errand"
"""The request header that names an errand to the instrumentation around the server."""


@pytest.fixture(autouse=True)
def spans() -> Iterator[list[Any]]:
    """The spans that end during one test, from everything in this process."""
    redis_client()
    with process_wide().recording() as kept:
        yield kept


async def errand(hall: Hall, name: str) -> str:
    """Run an errand and return the ref of the session it ran in."""
    with trace.get_tracer("errands").start_as_current_span("errand", attributes={"errand": name}):
        await hall.enter(name)
        async with httpx.AsyncClient(transport=httpx.MockTransport(lambda request: httpx.Response(200))) as client:
            HTTPXClientInstrumentor.instrument_client(client)
            await client.get("http://elsewhere")
        connection = sqlite3.connect(":memory:")
        SQLite3Instrumentor.instrument_connection(connection).cursor().execute("SELECT 1")
        connection.close()
        redis_client().set(name, "done")
    return ref()


@cache
def redis_client() -> redis.Redis:
    """A client of the run's Redis server; asked for before an errand, since a test without Redis is skipped."""
    client = redis.Redis.from_url(redis_servers.shared().url)
    RedisInstrumentor.instrument_client(client)
    return client


def bare(cell: Cell, hall: Hall) -> Any:
    async def run(name: str) -> str:
        return await errand(hall, name)

    return made(cell, run)


def _name_errand(span: trace.Span, scope: dict[str, Any]) -> None:
    named = dict(scope["headers"]).get(HEADER.encode())
    if named is not None:
        span.set_attribute("errand", named.decode())


def alone(cell: Cell, hall: Hall, **options: Any) -> ASGIApp:
    return MCPSessionMiddleware(bare(cell, hall), **grouped(**{"keys": KEYS, "transport": "off", **options}))


def outside(cell: Cell, hall: Hall, **options: Any) -> ASGIApp:
    """Put OpenTelemetry's ASGI instrumentation around the middleware, as `opentelemetry-instrument` does."""
    return OpenTelemetryMiddleware(alone(cell, hall, **options), server_request_hook=_name_errand)


def inside(cell: Cell, hall: Hall, **options: Any) -> ASGIApp:
    """Put OpenTelemetry's ASGI instrumentation within the middleware, which also names transport sessions."""
    theirs = OpenTelemetryMiddleware(bare(cell, hall), server_request_hook=_name_errand)
    return MCPSessionMiddleware(theirs, **grouped(keys=KEYS, **options))


NAMES: Final = ("session.id", "mcp.session.id", ALIAS)
ASGI: Final = "opentelemetry.instrumentation.asgi"
each_trace = pytest.mark.parametrize("traceparent", [False, True], ids=["own-trace", "traceparent"])

MAKERS: Final = {"errands", ASGI, *(f"opentelemetry.instrumentation.{name}" for name in ("httpx", "redis", "sqlite3"))}
FRAMEWORK: Final = {"sdk2": {"mcp-python-sdk"}, "fastmcp3": {"fastmcp"}, "fastmcp4": {"fastmcp"}}
"""The instrumentation scopes of frameworks that make spans of their own."""

ERRANDS: Final = ("first", "second", "first-again", "none")
FIRST, SECOND, AGAIN, NONE = ERRANDS


def trace_of(name: str) -> int:
    """Return the trace id of an errand with a trace context."""
    return 0xA0 + ERRANDS.index(name)


async def run_all(server: Running, sessions: dict[str, dict[str, str] | None], *, traceparent: bool) -> dict[str, str]:
    """Run all errands at once, each inside its tool before any goes on, and return the ref that each tool saw."""
    client = await server.connected()
    refs: dict[str, str] = {}

    async def run(name: str, held: dict[str, str] | None) -> None:
        params: dict[str, Any] = {"name": "run", "arguments": {"name": name}}
        if traceparent:
            params["_meta"] = {"traceparent": f"00-{trace_of(name):032x}-{1:016x}-01"}
        refs[name] = (await client.having(**{HEADER: name}).send("tools/call", params, session=held)).text

    async with anyio.create_task_group() as tasks:
        for name, held in sessions.items():
            tasks.start_soon(run, name, held)
        await server.hall.filled(len(sessions))
        server.hall.open()
    return refs


def maker(span: ReadableSpan) -> str:
    assert span.instrumentation_scope is not None
    return span.instrumentation_scope.name


def errand_of(span: ReadableSpan, spans: Sequence[ReadableSpan]) -> str | None:
    """Return the errand that is named by a span, its child, its trace or an ancestor, in this order.

    A framework's own span is the parent of its tool's. Other ancestors may belong to another request: in SDK 1.x to
    the first one of the connection.
    """
    assert span.context is not None
    is_frameworks = maker(span) in set(chain.from_iterable(FRAMEWORK.values()))
    below = [other for other in spans if is_frameworks and other.parent == span.context]
    above = [other for other in spans if span.parent is not None and other.context == span.parent]
    named = [name for one in (span, *below) for name in said(one, "errand")]
    traces = [name for name in ERRANDS if span.context.trace_id == trace_of(name)]
    return next(filter(None, [*named, *traces, *(errand_of(other, spans) for other in above)]), None)


def is_before_the_session(span: ReadableSpan) -> bool:
    """Whether the span is made before the session is known: as a request arrives, or while its body is read."""
    return maker(span) == ASGI and (span.kind is SpanKind.SERVER or span.name.endswith("http receive"))


def names_by_errand(spans: Sequence[ReadableSpan]) -> dict[str, dict[str, set[tuple[Any, ...]]]]:
    """Return the sessions that the spans of each errand name, by maker, without spans that cannot know it."""
    found: dict[str, dict[str, set[tuple[Any, ...]]]] = {name: defaultdict(set) for name in ERRANDS}
    for span in spans:
        errand = errand_of(span, spans)
        named = tuple((span.attributes or {}).get(attribute) for attribute in NAMES)
        if named[0] and named[1] is None and is_before_the_session(span):  # the span below has it
            named = (named[0], named[0], named[2])
        if errand is not None and (any(named) or not is_before_the_session(span)):
            found[errand][maker(span)].add(named)
    return found


@each_trace
@pytest.mark.parametrize("place", [outside, inside])
@pytest.mark.parametrize("cell", COVERING, ids=str)
async def test_every_span_names_the_session_of_its_request(
    cell: Cell, place: Callable[..., ASGIApp], traceparent: bool, spans: list[ReadableSpan]
) -> None:
    """Without a session they name none, or that of the client's transport where it has one."""
    async with running(cell, make=place) as server:
        client = await server.connected()
        first, second = await client.create(), await client.create()
        held: dict[str, dict[str, str] | None] = {FIRST: first, SECOND: second, AGAIN: dict(first), NONE: None}
        refs = await run_all(server, held, traceparent=traceparent)
        assert refs[FIRST] == refs[AGAIN] != refs[SECOND]
    has_transport = place is inside and not cell.modern and not cell.stateful
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


@each_trace
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
        params = {"name": "run", "arguments": {"name": "one"}, "_meta": META if traceparent else {}}
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
