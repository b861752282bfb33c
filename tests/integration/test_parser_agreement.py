"""What we read in a body is what the wrapped server reads, or the body is refused.

Every body of a corpus goes to the real SDK server bare and inside the middleware. A tool records what the server read.
A body must not run a tool past the policy, or in a session that the bare server does not read in `_meta`, where inside
the middleware there is none; and it is refused for the reason that the corpus states, or answered as the bare server
does.
"""

import json
from collections.abc import Iterator
from importlib import import_module
from typing import Any, NamedTuple

import anyio
import pytest
from clients import SESSION_KEY, Answer, RealClient, lifespan
from json_corpus import GROUPS

from mcp_sessions import MCPSessionMiddleware, Telemetry, current_session
from mcp_sessions.events import RequestRefused, SessionEvent

from .servers import DEADLINE, ERAS, KEYS, SDK


class Run(NamedTuple):
    """A tool call as the server read it, and the session in which it ran."""

    tool: str
    arguments: Any
    session_id: str | None
    ref: str | None


def recording(runs: list[Run]) -> Any:
    """The real server, stateless and with JSON answers, with one tool under every name, which records its calls."""

    def keep(tool: str, arguments: Any, meta: dict[str, Any]) -> None:
        session, named = current_session(), meta.get(SESSION_KEY)
        session_id = named.get("sessionId") if isinstance(named, dict) else named
        runs.append(Run(tool, arguments, session_id, None if session is None else session.ref))

    async def call(context: Any, params: Any) -> Any:
        keep(params.name, params.arguments or {}, params.meta or {})
        return import_module("mcp_types").CallToolResult(content=[])

    async def call_of_sdk_1(name: str, arguments: dict[str, Any]) -> list[Any]:
        meta = mcp._mcp_server.request_context.meta
        keep(name, arguments, (meta and meta.model_extra) or {})
        return []

    modes = {"stateless_http": True, "json_response": True}
    if SDK == "sdk1":
        mcp = import_module("mcp.server.fastmcp").FastMCP("recorder", log_level="ERROR", **modes)
        mcp._mcp_server.call_tool(validate_input=False)(call_of_sdk_1)
        return mcp.streamable_http_app()
    return import_module("mcp.server.lowlevel").Server("recorder", on_call_tool=call).streamable_http_app(**modes)


def accepted(reply: Answer) -> bool:
    return reply.status == 202 or (reply.status == 200 and "result" in json.loads(reply.body))


def same_answer(own: Answer, ours: Answer, *, refused: bool) -> bool:
    if refused:
        return not accepted(ours)
    if own.status == 202:  # nothing ran; where we had to ask for a session, the server may refuse the question
        return ours.status in {202, 400}
    if accepted(ours) and SESSION_KEY.encode() in ours.body:  # the echo makes the bytes differ
        return accepted(own)
    return (accepted(own), accepted(ours)) == (False, False) or own.whole == ours.whole


def faults(own_runs: list[Run], our_runs: list[Run], refs: dict[str, str], *, refused: bool) -> Iterator[str]:
    if our_runs and refused:
        yield "ran, though it was refused"
    if our_runs and [run[:2] for run in our_runs] != [run[:2] for run in own_runs]:
        yield "the server read something else"
    for own, ours in zip(own_runs, our_runs, strict=False):
        if ours.ref != (None if own.session_id is None else refs.get(own.session_id, "a stranger's")):
            yield f"ran in {ours.ref}, but the server read another session"
    for run in our_runs:
        if run.session_id is not None:
            yield "the server read a session inside the middleware"
        if run.tool == "guarded" and run.ref is None:
            yield "ran past the policy"


@pytest.mark.parametrize("group", GROUPS)
@pytest.mark.parametrize("modern", ERAS)
async def test_no_body_is_read_in_two_ways(modern: bool, group: str) -> None:
    """Each runs what it runs on the bare server, in the session that it reads, or is refused as the corpus states."""
    facts: list[SessionEvent] = []
    own_runs, our_runs = list[Run](), list[Run]()
    bare, inside, telemetry = recording(own_runs), recording(our_runs), Telemetry(listen=facts.append)
    wrapped = MCPSessionMiddleware(inside, keys=KEYS, require={"tools/call": ["guarded"]}, telemetry=telemetry)
    own_client, our_client = (RealClient(app, modern=modern) for app in (bare, wrapped))
    found, given, stated = [], [], []
    with anyio.fail_after(DEADLINE):
        async with lifespan(bare), lifespan(wrapped):
            refs: dict[str, str] = {}
            for _ in range(2):
                held = await our_client.create()
                await our_client.tool("open", session=held)
                refs[held["sessionId"]] = str(our_runs.pop().ref)
            for case in GROUPS[group]:
                for name in ("open", "guarded") if modern else ("open",):
                    headers = {"mcp-method": "tools/call", "mcp-name": name} if modern else {}
                    for kept in (facts, own_runs, our_runs):
                        kept.clear()
                    own, ours = [
                        await client.having(**headers).http("POST", case.sent(*refs))
                        for client in (own_client, our_client)
                    ]
                    reasons = [fact.reason for fact in facts if isinstance(fact, RequestRefused)]
                    wrong = [*faults(own_runs, our_runs, refs, refused=bool(reasons))]
                    if not same_answer(own, ours, refused=bool(reasons)):
                        wrong.append("passed, but with another answer")
                    found += [(case.name, fault) for fault in wrong]
                    given.append((case.name, reasons))
                    # In the modern era an incomplete envelope comes first.
                    incomplete = case.refused == "required" and modern and "envelope_incomplete" in reasons
                    expected = "envelope_incomplete" if incomplete else case.refused
                    stated.append((case.name, [] if expected is None else [expected]))
    assert found == []
    assert given == stated
