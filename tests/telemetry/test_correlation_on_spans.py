"""What a client calls its conversation is on the spans of its request, beside the session and never in its place."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from apps import Server, sessions
from clients import Client
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.trace import Tracer
from recorded import Recorder, process_wide

from mcp_sessions import Correlation, Session, current_correlation
from mcp_sessions.telemetry import SessionSpanProcessor

CHAT = {"_meta": {"openai/session": "c1"}}
SESSION = "session.id", "mcp.session.id"
LABEL = {"mcp_sessions.correlation": "c1", "mcp_sessions.correlation.source": "meta:openai/session"}


@pytest.fixture
def tracing() -> Iterator[tuple[Tracer, Recorder]]:
    """A tracer with the processor, and what it has recorded."""
    provider, recorder = TracerProvider(shutdown_on_exit=False), Recorder()
    provider.add_span_processor(SessionSpanProcessor())
    provider.add_span_processor(recorder)
    yield provider.get_tracer("tests"), recorder
    provider.shutdown()


async def called(tracer: Tracer, recorder: Recorder, *, within_session: bool, method: str = "tools/call") -> Any:
    """The attributes of the spans around a request and in its tool, by name."""
    seen: list[Correlation | None] = []

    async def tool(session: Session | None, arguments: dict[str, Any]) -> str:
        tracer.start_span("in the tool").end()
        seen.append(current_correlation())
        return "done"

    client = Client(sessions(Server(tool=tool), correlate=True, spans="off"))
    session = await client.create() if within_session else None
    with recorder.recording() as spans:
        with tracer.start_as_current_span("around"):
            await client.send(method, {"name": "tool", **CHAT}, session=session)
        tracer.start_span("after").end()
    assert seen == [Correlation("c1", "meta:openai/session")][: method == "tools/call"]
    return {span.name: dict(span.attributes or {}) for span in spans}


async def test_without_a_session_the_label_is_all_that_groups(tracing: tuple[Tracer, Recorder]) -> None:
    """On the span around and on those below, and on nothing that comes after the request."""
    spans = await called(*tracing, within_session=False)
    assert spans == {"in the tool": LABEL, "around": LABEL, "after": {}}


async def test_beside_a_session_it_is_no_session(tracing: tuple[Tracer, Recorder]) -> None:
    spans = await called(*tracing, within_session=True)
    assert spans["in the tool"] == {**LABEL, **{name: spans["in the tool"][name] for name in SESSION}}
    assert spans["in the tool"]["session.id"].startswith("ses_")
    assert (spans["around"], spans["after"]) == (LABEL, {})


async def test_tasks_that_a_handshake_starts_do_not_inherit_it(tracing: tuple[Tracer, Recorder]) -> None:
    """They outlive it; its own span says it all the same."""
    assert await called(*tracing, within_session=False, method="initialize") == {"around": LABEL, "after": {}}


async def test_the_span_of_the_message_itself_carries_it() -> None:
    """Where the middleware makes that span, the label is on it, with or without a session."""
    client = Client(sessions(Server(), correlate=True))
    session = await client.create()
    with process_wide().recording() as spans:
        for held in (None, session):
            await client.send("tools/call", {"name": "whoami", **CHAT}, session=held)
    made = [dict(span.attributes or {}) for span in spans if span.name == "tools/call whoami"]
    assert [{name: attributes[name] for name in LABEL} for attributes in made] == [LABEL, LABEL]
    assert ["session.id" in attributes for attributes in made] == [False, True]
