"""Every two things that one response can need, in JSON and as an event stream, with telemetry beside them or without.

Not together: a session is echoed or its state is kept, and an `initialize` that carries a transport id begins anew.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator
from contextlib import ExitStack
from typing import Any

import pytest
from apps import Server, sessions
from clients import Answer, Client
from recorded import process_wide
from sep1364 import SERVES, Speaker
from sep1364 import Stateful as Naming
from starlette.types import Receive, Scope, Send
from stateful import Stateful

from mcp_sessions import SEP1364Create, SEP1364Initialize, Session
from mcp_sessions._server.callers import PendingInitialized

HEADER = b"mcp-session-id"


async def tally(session: Session | None, arguments: dict[str, Any]) -> Any:
    """Count in the session's state."""
    assert session is not None
    session.state["n"] = session.state.get("n", 0) + 1
    return session.state["n"]


class Deployment:
    """A server that answers in JSON or with events, and clients of every dialect."""

    def __init__(self, sse: bool) -> None:
        self.sse = sse
        self.server = Server(sse=sse, tally=tally)

    def client(self, **options: Any) -> Client:
        return Client(sessions(self.server, **options), modern=False)

    def speaker(self, *dialects: Any, stateful: bool = False, **options: Any) -> Speaker:
        server: Any = Naming(self.server) if stateful else self.server
        return Speaker(sessions(server, dialects=dialects, **options))

    def bridged(self, server: Any = None) -> Client:
        return Client(sessions(server or Stateful(sse=self.sse), bridge=True), modern=False)


async def begun(client: Client) -> tuple[bytes, bytes]:
    """A transport session, as its client sends it."""
    return HEADER, (await client.send("initialize")).headers[HEADER]


async def created(client: Client) -> dict[str, str]:
    """A session of the draft."""
    return await client.create()


# --- the pairs -----------------------------------------------------------------------------------


async def echoed_and_advertised(at: Deployment) -> Answer:
    client = at.client()
    session = await created(client)
    answer = await client.send("server/discover", session=session)
    assert answer.session is not None
    assert answer.session["sessionId"] == session["sessionId"]
    assert answer.result["capabilities"]["sessions"] == {}
    return answer


async def echoed_and_named(at: Deployment) -> Answer:
    client = at.client()
    session = await created(client)
    answer = await client.send("initialize", session=session)
    assert answer.session is not None
    assert answer.headers[HEADER] != session["sessionId"].encode()
    return answer


async def echoed_and_translated(at: Deployment) -> Answer:
    client = at.bridged()
    transport = await begun(client)
    session = (await client.send("sessions/create", {}, transport)).result["session"]
    answer = await client.send("tools/call", {}, transport, session={"sessionId": session["sessionId"]})
    assert answer.session is not None
    assert answer.headers[HEADER] == transport[1]
    return answer


async def echoed_and_in_the_field(at: Deployment) -> Answer:
    speaker = at.speaker(SEP1364Create())
    held = (await created(speaker.client))["sessionId"]
    params = {"name": "whoami", "arguments": {}, "_meta": {"io.modelcontextprotocol/session": {"sessionId": held}}}
    answer = await speaker.say("tools/call", params, sessionId=held)
    assert answer.session is not None
    assert answer.json["sessionId"] == answer.session["sessionId"] == held
    return answer


async def advertised_and_saved(at: Deployment) -> Answer:
    client = at.client()
    answer = await client.send("server/discover", {}, await begun(client))
    assert answer.result["capabilities"]["sessions"] == {}
    assert answer.session is None
    return answer


async def advertised_and_named(at: Deployment) -> Answer:
    answer = await at.client().send("initialize")
    assert answer.result["capabilities"]["sessions"] == {}
    assert answer.headers[HEADER].count(b".") == 2
    return answer


async def advertised_and_translated(at: Deployment) -> Answer:
    answer = await at.bridged().send("initialize")
    assert answer.result["capabilities"]["sessions"] == {}
    assert answer.headers[HEADER].count(b".") == 2
    return answer


async def advertised_and_in_the_field(at: Deployment) -> Answer:
    answer = await at.speaker(SEP1364Initialize()).initialize()
    assert answer.result["capabilities"]["sessions"] == {}
    assert answer.headers[HEADER] == answer.json["sessionId"].encode()
    return answer


async def saved_and_translated(at: Deployment) -> Answer:
    client = at.bridged(Naming(at.server))
    transport = await begun(client)
    answers = [await client.tool("tally", transport) for _ in range(2)]
    assert [answer.result["content"] for answer in answers] == [1, 2]
    return answers[-1]


async def saved_and_in_the_field(at: Deployment) -> Answer:
    speaker = at.speaker(SEP1364Create())
    held = await speaker.create()
    answers = [await speaker.tool("tally", held) for _ in range(2)]
    assert [(answer.result["content"], answer.json["sessionId"]) for answer in answers] == [(1, held), (2, held)]
    return answers[-1]


async def named_and_translated(at: Deployment) -> Answer:
    client = at.bridged(at.server)  # which names none, so one of ours that the server knows nothing of is named
    answer = await client.send("initialize")
    assert answer.headers[HEADER].count(b".") == 2
    assert (await client.tool("tally", (HEADER, answer.headers[HEADER]))).result["content"] == 1
    return answer


async def named_and_in_the_field(at: Deployment) -> Answer:
    speaker = at.speaker(SEP1364Create())
    held = await speaker.create()
    answer = await speaker.say("initialize", {**SERVES, "capabilities": {}}, sessionId=held)
    assert answer.json["sessionId"] == held
    assert answer.headers[HEADER] != held.encode()
    return answer


async def translated_and_in_the_field(at: Deployment) -> Answer:
    speaker = at.speaker(SEP1364Initialize(), stateful=True, bridge=True)
    answer = await speaker.initialize()
    assert answer.headers[HEADER] == answer.json["sessionId"].encode()
    assert (await speaker.tool("tally", answer.json["sessionId"])).result["content"] == 1
    return answer


PAIRS: list[Callable[[Deployment], Awaitable[Answer]]] = [
    echoed_and_advertised,
    echoed_and_named,
    echoed_and_translated,
    echoed_and_in_the_field,
    advertised_and_saved,
    advertised_and_named,
    advertised_and_translated,
    advertised_and_in_the_field,
    saved_and_translated,
    saved_and_in_the_field,
    named_and_translated,
    named_and_in_the_field,
    translated_and_in_the_field,
]


# --- one alone -----------------------------------------------------------------------------------


async def test_a_stream_whose_start_waits_can_be_cut() -> None:
    """The session of an `initialize` ends before the server has answered: the start goes out, and the error."""
    held: list[Session] = []

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        held.append(scope["mcp_session"])
        headers = [(b"content-type", b"text/event-stream")]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": b": hello\n\n", "more_body": True})
        middleware = client.app
        await middleware._runtime.terminator.end(held[0]._active.claims, "over")  # type: ignore[attr-defined]
        await send({"type": "http.response.body", "body": b"data: {}\n\n"})

    client = Client(sessions(app, admission="own"), modern=False)
    answer = await client.send("initialize", session=await created(client))
    assert [message["type"] for message in answer.messages] == ["http.response.start", *["http.response.body"] * 2]
    assert HEADER not in answer.headers
    assert answer.error["code"] == -32043


def test_of_sessions_that_wait_to_be_confirmed_the_oldest_go_first() -> None:
    """What is remembered of clients that never came back is bounded."""
    pending = PendingInitialized(max_waiting=1)
    pending.add("first")
    pending.add("second")
    assert [transport in pending for transport in ("first", "second")] == [False, True]
    pending.remove("second")
    assert "second" not in pending


# --- two at once ---------------------------------------------------------------------------------


@pytest.fixture(params=[False, True], ids=["alone", "observed"])
def spans(request: pytest.FixtureRequest) -> Iterator[list[Any] | None]:
    """The spans of the messages, where telemetry observes how they end."""
    with ExitStack() as stack:
        yield stack.enter_context(process_wide().recording()) if request.param else None


@pytest.mark.parametrize("sse", [False, True], ids=["json", "sse"])
@pytest.mark.parametrize("pair", PAIRS, ids=lambda pair: pair.__name__)
async def test_two_changes_of_one_response_do_not_hinder_each_other(
    pair: Callable[[Deployment], Awaitable[Answer]], sse: bool, spans: list[Any] | None
) -> None:
    """Both are there; each header is named once, and the length is that of the body that leaves."""
    answer = await pair(Deployment(sse))
    names = [name.lower() for name, _ in answer.start["headers"]]
    assert len(names) == len(set(names))
    assert answer.headers.get(b"content-length") in {None, b"%d" % len(answer.body)}
    assert answer.status == 200
    if spans is not None:
        assert spans
        assert all(span.status.is_unset for span in spans)
