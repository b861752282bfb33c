"""What we read in a body is what the wrapped server reads, or the body is refused.

Every body of a corpus goes to the real SDK server bare and inside the middleware. A tool records
what the server read. A body must not run a tool past the policy, or in a session that the server does not read in
`_meta`; and what the server accepts is accepted, except for an explained list of refusals.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from importlib import import_module
from typing import Any, Final

import anyio
import pytest
from clients import SESSION_KEY, Answer, RealClient, lifespan
from json_corpus import CASES, EXPLAINED, GROUPS, Case

from mcp_sessions import MCPSessionMiddleware, RequestRefused, SessionEvent, Telemetry, current_session
from mcp_sessions._errors import Refusal
from mcp_sessions._protocol import decision, jsonrpc

from .servers import DEADLINE, FRAMEWORKS, KEYS

SDK: Final = FRAMEWORKS[0]
ERAS: Final = {"sdk1": ["legacy"], "sdk2": ["legacy", "modern"]}[SDK]
POLICY: Final = {"tools/call": ["guarded"]}


every_era = pytest.mark.parametrize("era", ERAS)


@dataclass(frozen=True)
class Run:
    """A tool call as the server read it, and the session in which it ran."""

    tool: str
    arguments: str
    session_id: str | None
    ref: str | None

    @property
    def read(self) -> tuple[str, str, str | None]:
        return self.tool, self.arguments, self.session_id


def written(value: Any) -> str:
    """Write a JSON value as text without recursion, which deep values would exhaust."""
    found, rest = [], [value]
    while rest:
        item = rest.pop()
        if isinstance(item, dict):
            found.append(f"object {list(item)}")
            rest += item.values()
        elif isinstance(item, list):
            found.append(f"array {len(item)}")
            rest += item
        else:
            found.append(repr(item))
    return " ".join(found)


@dataclass
class Recorder:
    """The real server with one tool under every name, which records its calls."""

    runs: list[Run] = field(default_factory=list)

    def keep(self, tool: str, arguments: Any, meta: dict[str, Any]) -> None:
        session = current_session()
        named = meta.get(SESSION_KEY)
        session_id = named.get("sessionId") if isinstance(named, dict) else named
        self.runs.append(Run(tool, written(arguments), session_id, None if session is None else session.ref))

    def take(self) -> list[Run]:
        taken, self.runs = self.runs, []
        return taken

    def app(self) -> Any:
        """Return the server as a stateless ASGI application with JSON answers."""
        return {"sdk1": self._sdk1, "sdk2": self._sdk2}[SDK]()

    def _sdk2(self) -> Any:
        types = import_module("mcp_types")

        async def call(context: Any, params: Any) -> Any:
            self.keep(params.name, params.arguments or {}, params.meta or {})
            return types.CallToolResult(content=[])

        server = import_module("mcp.server.lowlevel").Server("recorder", on_call_tool=call)
        return server.streamable_http_app(stateless_http=True, json_response=True)

    def _sdk1(self) -> Any:
        mcp = import_module("mcp.server.fastmcp").FastMCP(
            "recorder", stateless_http=True, json_response=True, log_level="ERROR"
        )
        server = mcp._mcp_server

        async def call(name: str, arguments: dict[str, Any]) -> list[Any]:
            meta = server.request_context.meta
            self.keep(name, arguments, (meta and meta.model_extra) or {})
            return []

        server.call_tool(validate_input=False)(call)
        return mcp.streamable_http_app()


@dataclass(frozen=True)
class Outcome:
    """What became of one body, bare and wrapped."""

    own: Answer
    own_runs: list[Run]
    ours: Answer
    our_runs: list[Run]
    reasons: list[str]
    refs: dict[str, str]

    def faults(self) -> list[str]:
        return [
            *(f"ran in {run.ref}, but the server read another session" for run in self.our_runs if self._strays(run)),
            *("ran past the policy" for run in self.our_runs if run.tool == "guarded" and run.ref is None),
            *(["ran, though it was refused"] if self.our_runs and self.reasons else []),
            *(["the server read something else"] if self.our_runs and not self._same_runs() else []),
            *([f"refused for {self.reasons}, unexplained"] if accepted(self.own) and not self._explained() else []),
            *(["passed, but with another answer"] if not self._same_answer() else []),
        ]

    def _strays(self, run: Run) -> bool:
        return run.ref != (None if run.session_id is None else self.refs.get(run.session_id, "a stranger's"))

    def _same_runs(self) -> bool:
        return [run.read for run in self.our_runs] == [run.read for run in self.own_runs]

    def _explained(self) -> bool:
        return EXPLAINED.keys() >= {kind(reason) for reason in self.reasons}

    def _same_answer(self) -> bool:
        if self.reasons:
            return not accepted(self.ours)
        if self.own.status == 202:  # nothing ran; where we had to ask for a session, the server may refuse the question
            return self.ours.status in {202, 400}
        if accepted(self.ours) and SESSION_KEY.encode() in self.ours.body:  # the echo makes the bytes differ
            return accepted(self.own)
        return (accepted(self.own), accepted(self.ours)) == (False, False) or self.own.whole == self.ours.whole


def kind(reason: str) -> str:
    """Return the reason as the table of explanations has it."""
    family = reason.partition("_")[0]
    return family if family in {"token", "state"} else reason


def accepted(reply: Answer) -> bool:
    return reply.status == 202 or (reply.status == 200 and "result" in json.loads(reply.body))


@dataclass
class Pair:
    """The server, bare and inside the middleware."""

    modern: bool
    bare: Recorder = field(default_factory=Recorder)
    inside: Recorder = field(default_factory=Recorder)
    facts: list[SessionEvent] = field(default_factory=list)
    refs: dict[str, str] = field(default_factory=dict)

    @asynccontextmanager
    async def up(self) -> AsyncIterator[Pair]:
        """Serve both within the block, with two sessions on the wrapped one."""
        bare = self.bare.app()
        wrapped = MCPSessionMiddleware(
            self.inside.app(), keys=KEYS, require=POLICY, telemetry=Telemetry(listen=self.facts.append)
        )
        self._own, self._ours = (RealClient(app, modern=self.modern) for app in (bare, wrapped))
        with anyio.fail_after(DEADLINE):
            async with lifespan(bare), lifespan(wrapped):
                for _ in range(2):
                    held = await self._ours.create()
                    await self._ours.send("tools/call", {"name": "open"}, session=held)
                    (run,) = self.inside.take()
                    assert run.ref is not None
                    self.refs[held["sessionId"]] = run.ref
                yield self

    async def send(self, body: bytes, name: str) -> Outcome:
        """Send one body to both, with the headers of a modern call of that tool."""
        headers = {"mcp-method": "tools/call", "mcp-name": name} if self.modern else {}
        self.facts.clear()
        own = await self._own.having(**headers).http("POST", body)
        ours = await self._ours.having(**headers).http("POST", body)
        reasons = [fact.reason for fact in self.facts if isinstance(fact, RequestRefused)]
        return Outcome(own, self.bare.take(), ours, self.inside.take(), reasons, self.refs)

    async def judged(self, body: bytes) -> list[tuple[Outcome, list[str]]]:
        """Return the outcome and the faults of a body under each of the headers."""
        outcomes = [await self.send(body, name) for name in (["open", "guarded"] if self.modern else ["open"])]
        return [(outcome, outcome.faults()) for outcome in outcomes]


# --- the corpus ----------------------------------------------------------------------------------


def expected(case: Case, outcome: Outcome, *, modern: bool) -> list[str]:
    """Return the reason for which a body is refused; in the modern era an incomplete envelope comes first."""
    if case.refused == "required" and modern and "envelope_incomplete" in outcome.reasons:
        return ["envelope_incomplete"]
    return [] if case.refused is None else [case.refused]


@pytest.mark.parametrize("group", GROUPS)
@every_era
async def test_no_body_is_read_in_two_ways(era: str, group: str) -> None:
    """Each runs what it runs on the bare server, in the session that it reads, or is refused as the corpus states."""
    found, given, stated = [], [], []
    async with Pair(era == "modern").up() as pair:
        for case in GROUPS[group]:
            for outcome, faults in await pair.judged(case.sent(*pair.refs)):
                found += [(case.name, fault) for fault in (*faults, *misread(case.sent(*pair.refs), outcome))]
                given.append((case.name, outcome.reasons))
                stated.append((case.name, expected(case, outcome, modern=pair.modern)))
    assert found == []
    assert given == stated


def misread(body: bytes, outcome: Outcome) -> list[str]:
    """Return how our reading of the calls that ran differs from the server's."""
    faults = []
    for run in outcome.our_runs:
        message = jsonrpc.parse(body)
        assert isinstance(message, jsonrpc.Message)
        named = decision.requested_session(message, None)
        read = [message.method, None if named is None else named.session_id, json.loads(message.id or b"")]
        ran = ["tools/call", run.session_id, json.loads(outcome.ours.body)["id"]]
        try:
            read.append(message.target())
            ran.append(run.tool)
        except Refusal as refusal:  # the name was not read, since the call has its session
            assert refusal.reason == "lone_surrogate"
        faults += [
            f"{ours!r}, and the server {theirs!r}" for ours, theirs in zip(read, ran, strict=True) if ours != theirs
        ]
    return faults


def test_every_explanation_is_needed() -> None:
    """The corpus has a body for each explained refusal, so the list cannot grow unnoticed."""
    assert EXPLAINED.keys() <= {kind(case.refused) for case in CASES if case.refused is not None}
