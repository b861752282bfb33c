"""Of the trace contexts that a message comes with, one is the parent, and each other is a link that says what it is."""

from __future__ import annotations

from typing import Any

import pytest
from apps import Server, sessions
from clients import Client
from opentelemetry import baggage, trace
from opentelemetry.sdk.trace import ReadableSpan

from mcp_sessions import Session

CALLER, HTTP = 0xCA, 0x8A
META = {"_meta": {"traceparent": f"00-{CALLER:032x}-{CALLER:016x}-01"}}
HEADER = (b"traceparent", b"00-%032x-%016x-01" % (HTTP, HTTP))


def related(span: ReadableSpan) -> tuple[int | None, dict[str, int]]:
    """The parent's trace, and the traces that are linked by what they are."""
    links = {str((link.attributes or {})["mcp_sessions.link"]): link.context.trace_id for link in span.links}
    return None if span.parent is None else span.parent.trace_id, links


CASES: list[tuple[bool, bool, int | None, dict[str, int]]] = [
    (False, False, None, {}),
    (True, False, CALLER, {}),
    (False, True, HTTP, {}),
    (True, True, CALLER, {"transport": HTTP}),
]


@pytest.mark.parametrize(("in_meta", "in_header", "parent", "links"), CASES)
async def test_the_http_header_counts_where_meta_has_none(
    in_meta: bool, in_header: bool, parent: int | None, links: dict[str, int], spans: list[ReadableSpan]
) -> None:
    """Without an HTTP instrumentation, which would read it itself."""
    params = {"name": "whoami", **(META if in_meta else {})}
    await Client(sessions(Server())).send("tools/call", params, *([HEADER] if in_header else []))
    assert related(spans[-1]) == (parent, links)


async def test_the_span_around_is_linked_where_the_message_has_a_caller(spans: list[ReadableSpan]) -> None:
    """And counts for the header that led to it."""
    client = Client(sessions(Server()))
    held = await client.create()
    with trace.get_tracer("tests").start_as_current_span("http") as http:
        await client.send("tools/call", {"name": "whoami", **META}, HEADER, session=held)
    (start,) = [span for span in spans if span.name == "session start"]
    (call,) = [span for span in spans if span.name == "tools/call whoami"]
    assert start.context is not None
    around = http.get_span_context().trace_id
    assert related(call) == (CALLER, {"transport": around, "start": start.context.trace_id})


async def test_where_a_session_is_one_trace_both_are_linked(spans: list[ReadableSpan]) -> None:
    client = Client(sessions(Server(), trace="session"))
    held = await client.create()
    await client.send("tools/call", {"name": "whoami", **META}, HEADER, session=held)
    (start,) = [span for span in spans if span.name == "session start"]
    assert start.context is not None
    assert related(spans[-1]) == (start.context.trace_id, {"caller": CALLER, "transport": HTTP})


async def test_the_baggage_of_the_http_request_comes_with_its_span(spans: list[ReadableSpan]) -> None:
    found: list[Any] = []

    async def look(session: Session | None, arguments: dict[str, Any]) -> None:
        found.append(baggage.get_baggage("shop"))

    client = Client(sessions(Server(look=look)))
    await client.tool("look", HEADER, (b"baggage", b"shop=shoes"))
    assert found == ["shoes"]
    assert related(spans[-1]) == (HTTP, {})
