"""The rules that a server with sessions keeps: one check for each, and the clause that asks for it.

Checks run in the order of `RULES`, in each era, and share the sessions that earlier ones made. A check returns None
where its rule holds, else what was seen.
Sources: the data-layer sessions draft; MCP 2026-07-28; SEP-2243.
"""

from __future__ import annotations

import secrets
from collections.abc import Awaitable, Callable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from itertools import count
from typing import Any, Final

import anyio
from clients import SESSION_KEY, RealClient
from starlette.types import ASGIApp

CAPABILITIES: Final = "io.modelcontextprotocol/clientCapabilities"
NOT_FOUND: Final = -32043
INVALID_PARAMS: Final = -32602
PRINCIPAL_REQUIRED: Final = -31046
HARMLESS: Final = {"tools": "tools/list", "prompts": "prompts/list", "resources": "resources/list"}
PARALLEL: Final = 10  # requests at once
OVERSIZED: Final = 20_000  # bytes of an id

Session = dict[str, Any]


class Skipped(Exception):  # an outcome, not an error
    """A rule does not apply. The message says why."""


@dataclass(frozen=True)
class Answer:
    """What came back."""

    status: int
    message: Mapping[str, Any]  # of JSON-RPC; empty where there is none

    @property
    def result(self) -> dict[str, Any] | None:
        return self.message.get("result")

    @property
    def error(self) -> dict[str, Any]:
        return self.message.get("error") or {}

    @property
    def code(self) -> object:
        return self.error.get("code")

    @property
    def refuses(self) -> bool:
        return bool(self.error) or self.status in range(400, 500)

    def __str__(self) -> str:
        what = f"error {self.code}" if self.error else "a result" if self.result is not None else "no JSON-RPC answer"
        return f"HTTP {self.status}, {what}"


@dataclass
class Run:
    """One server in one era while it is examined."""

    client: RealClient
    capabilities: Mapping[str, Any] = field(default_factory=dict)  # the server's
    held: dict[str, Session] = field(default_factory=dict, repr=False)  # by the checks' names for them
    _ids: Iterator[int] = field(default_factory=lambda: count(1))

    @property
    def settings(self) -> dict[str, Any] | None:
        return (self.capabilities.get("experimental") or {}).get("sessions")

    async def begin(self) -> bool:
        """Connect, or return False where the server does not speak the era."""
        answer = await self.client.connect(experimental={"sessions": {}})
        self.capabilities = answer.json.get("result", {}).get("capabilities", {})
        return "result" in answer.json

    async def request(
        self,
        method: str,
        params: Mapping[str, Any] | None = None,
        *,
        session: object = None,
        envelope: bool = True,
        headers: Mapping[str, str] | None = None,
    ) -> Answer:
        """Send a request, with the modern era's envelope whole or not."""
        message = self.client.message(method, params, id=next(self._ids), session=session)
        if not envelope:
            del message["params"]["_meta"][CAPABILITIES]
        answer = await self.client.having(**(headers or {})).post(message, method=method)
        return Answer(answer.status, answer.json if answer.body else {})

    def session(self, name: str) -> Session:
        """Return a session that an earlier check made, or skip this check."""
        if name not in self.held:
            raise Skipped("no session was created")
        return self.held[name]

    async def use(self, session: object, **headers: str) -> Answer:
        """Send a harmless request in a session, of a method that the server has."""
        usual = "server/discover" if self.client.modern else "ping"
        method = next((method for name, method in HARMLESS.items() if name in self.capabilities), usual)
        return await self.request(method, session=session, headers=headers)

    def hold(self, name: str, answer: Answer) -> str | None:
        """Hold the session in a result; return what was seen where there is none."""
        if answer.result is None:
            return f"{answer}"
        session = answer.result.get("session")
        session_id = session.get("sessionId") if isinstance(session, dict) else None
        if not (isinstance(session_id, str) and session_id and all("!" <= one <= "~" for one in session_id)):
            return "no sessionId of visible ASCII in result.session"
        self.held[name] = answer.result["session"]
        return None

    async def delete_all(self) -> None:
        for session in self.held.values():
            await self.request("sessions/delete", session=_sent(session))
        self.held.clear()


def _sent(session: Session) -> Session:
    return {name: session[name] for name in ("sessionId", "state") if isinstance(session.get(name), str)}


def _echo(answer: Answer) -> Session:
    meta = (answer.result or {}).get("_meta")
    echo = meta.get(SESSION_KEY) if isinstance(meta, dict) else None
    return echo if isinstance(echo, dict) else {}


def _unless(holds: bool, answer: Answer) -> str | None:  # reads as a sentence after `return`
    return None if holds else f"{answer}"


def _unless_not_found(answer: Answer, session_id: str) -> str | None:
    if answer.code != NOT_FOUND:
        return f"{answer}"
    data = answer.error.get("data")
    named = data.get("sessionId") if isinstance(data, dict) else None
    return None if named == session_id else f"{answer}, whose data does not repeat the sessionId"


def _forged_id(session: Session) -> str:
    # One character is changed, well before the end, where encodings may have bits that do not count.
    session_id: str = session["sessionId"]
    place = max(0, len(session_id) - 6)
    other = "A" if session_id[place] != "A" else "B"
    return f"{session_id[:place]}{other}{session_id[place + 1 :]}"


async def _advertised(run: Run) -> str | None:
    if "sessions" in run.capabilities:
        return None
    found = "no word of sessions" if run.settings is None else "only experimental.sessions"
    return f"{found} in the capabilities"


async def _create(run: Run) -> str | None:
    return run.hold("A", await run.request("sessions/create")) or run.hold("B", await run.request("sessions/create"))


async def _unique(run: Run) -> str | None:
    return None if run.session("A")["sessionId"] != run.session("B")["sessionId"] else "one id twice"


async def _hint(run: Run) -> str | None:
    expires = run.session("A").get("expiresAt")
    if expires is None:
        raise Skipped("the server gives none")
    try:
        datetime.fromisoformat(str(expires).replace("Z", "+00:00"))
    except ValueError:
        return "an expiresAt that is not an ISO 8601 time"
    return None


async def _create_within(run: Run) -> str | None:
    answer = await run.request("sessions/create", session=_sent(run.session("A")))
    if answer.result is not None:
        run.hold("within", answer)
    return _unless(answer.code == INVALID_PARAMS, answer)


async def _use(run: Run) -> str | None:
    session = run.session("A")
    answer = await run.use(_sent(session))
    if answer.result is None:
        return f"{answer}"
    echo = _echo(answer)
    if echo.get("sessionId") is None:
        return "no session in result._meta"
    run.held["A"] = {**session, **_sent(echo), "sessionId": session["sessionId"]}
    return None if echo["sessionId"] == session["sessionId"] else "another sessionId in result._meta"


async def _state(run: Run) -> str | None:
    session = run.session("A")
    if "state" not in session:
        raise Skipped("the server keeps no state with the client")
    answer = await run.use(_sent(session))
    return _unless(answer.result is not None, answer)


async def _without(run: Run) -> str | None:
    return "a session in result._meta" if _echo(await run.use(None)) else None


async def _parallel(run: Run) -> str | None:
    sessions = [_sent(run.session(name)) for name in "AB"] * (PARALLEL // 2)
    echoes: dict[int, Session] = {}

    async def use(place: int, session: Session) -> None:
        echoes[place] = _echo(await run.use(session))

    async with anyio.create_task_group() as tasks:
        for place, session in enumerate(sessions):
            tasks.start_soon(use, place, session)
    wrong = sum(echoes[place].get("sessionId") != one["sessionId"] for place, one in enumerate(sessions))
    return None if wrong == 0 else f"{wrong} of {PARALLEL} answers without their own session"


async def _malformed(run: Run) -> str | None:
    run.session("A")  # or this says nothing of the server
    answer = await run.use({"sessionId": 7})
    return _unless(answer.code == INVALID_PARAMS, answer)


async def _not_found(run: Run, make_id: Callable[[Session], str]) -> str | None:
    session_id = make_id(run.session("A"))
    return _unless_not_found(await run.use({"sessionId": session_id}), session_id)


async def _alike(run: Run) -> str | None:
    ids = (secrets.token_urlsafe(24), _forged_id(run.session("A")))
    unknown, forged = [await run.use({"sessionId": session_id}) for session_id in ids]
    words = [(one.status, one.code, one.error.get("message")) for one in (unknown, forged)]
    return None if words[0] == words[1] else f"{unknown} for an unknown one; {forged} for a forged one"


async def _oversized(run: Run) -> str | None:
    session = run.session("A")
    answer = await run.use({"sessionId": "A" * OVERSIZED})
    if not answer.refuses:
        return f"{answer}"
    after = await run.use(_sent(session))  # the server goes on
    return None if after.result is not None else f"refused, and then {after}"


async def _wrong_header(run: Run) -> str | None:
    answer = await run.use(_sent(run.session("A")), mcp_session_id=run.session("B")["sessionId"])
    return _unless(answer.refuses, answer)


async def _mirrored(run: Run) -> str | None:
    if not run.client.modern:
        raise Skipped("in the legacy era the header names the transport's session")
    session = run.session("A")
    answer = await run.use(_sent(session), mcp_session_id=session["sessionId"])
    return _unless(answer.result is not None, answer)


async def _strange_create(run: Run, **options: Any) -> str | None:
    if not run.client.modern:
        raise Skipped("the legacy era has none")
    answer = await run.request("sessions/create", **options)
    if answer.result is not None:
        run.hold("strange", answer)
    return _unless(answer.refuses, answer)


async def _delete_nothing(run: Run) -> str | None:
    answer = await run.request("sessions/delete")
    return _unless(answer.code == INVALID_PARAMS, answer)


async def _delete(run: Run) -> str | None:
    answer = await run.request("sessions/delete", session=_sent(run.session("B")))
    run.held["gone"] = run.held.pop("B")
    return _unless(answer.result in ({}, {"resultType": "complete"}), answer)


async def _replay(run: Run) -> str | None:
    session = run.session("gone")
    return _unless_not_found(await run.use(_sent(session)), session["sessionId"])


async def _delete_again(run: Run) -> str | None:
    session = run.held.pop("gone", None)
    if session is None:
        raise Skipped("no session was deleted")
    return _unless_not_found(await run.request("sessions/delete", session=_sent(session)), session["sessionId"])


async def _survivor(run: Run) -> str | None:
    answer = await run.use(_sent(run.session("A")))
    return _unless(answer.result is not None, answer)


def _need(run: Run, extension: str) -> None:
    if not (run.settings or {}).get(extension):
        raise Skipped("not offered")


async def _listed(run: Run) -> str | None:
    _need(run, "list")
    session = run.session("A")
    answer = await run.request("sessions/list")
    if answer.code == PRINCIPAL_REQUIRED:
        raise Skipped("for callers that are authenticated")
    if not isinstance((answer.result or {}).get("sessions"), list):
        return f"{answer}"
    return None if session["sessionId"] not in str(answer.message) else "a sessionId in the list"


async def _fork(run: Run) -> str | None:
    _need(run, "fork")
    parent = run.session("A")
    answer = await run.request("sessions/fork", {}, session=_sent(parent))
    if (failure := run.hold("fork", answer)) is not None:
        return failure
    if run.held["fork"]["sessionId"] == parent["sessionId"]:
        return "the parent's own id"
    used = await run.use(_sent(run.held["fork"]))
    return _unless(used.result is not None, used)


@dataclass(frozen=True)
class Rule:
    """One thing that has to hold."""

    name: str
    says: str
    clause: str  # that asks for it
    check: Callable[[Run], Awaitable[str | None]]
    needs_sessions: bool = True  # does not apply to a server that offers none


RULES: Final = (
    Rule("advertised", "the capabilities advertise sessions", "draft: Capabilities", _advertised, needs_sessions=False),
    Rule("create", "a session is created; its id is visible ASCII", "draft: Creating Sessions, Data Types", _create),
    Rule("unique", "no two sessions share an id", "draft: Data Types", _unique),
    Rule("hint", "expiresAt is an ISO 8601 time", "draft: Schema", _hint),
    Rule("create-within", "creating within a session is refused, -32602", "draft: Creating Sessions", _create_within),
    Rule("use", "a result names the session of its request", "draft: Using Sessions 2-4", _use),
    Rule("state", "a state that was issued is accepted", "draft: Creating Sessions", _state),
    Rule(
        "without",
        "a request without a session gets none",
        "draft: Using Sessions 1",
        _without,
    ),
    Rule("parallel", "parallel requests get their own session", "draft: Using Sessions 1, 3", _parallel),
    Rule("malformed", "a sessionId that is not a string is refused, -32602", "draft: Schema", _malformed),
    Rule(
        "unknown",
        "an unknown session is not found, -32043",
        "draft: Schema",
        lambda run: _not_found(run, lambda _: secrets.token_urlsafe(24)),
    ),
    Rule(
        "forged",
        "a forged session is not found, -32043",
        "draft: Schema, Data Types",
        lambda run: _not_found(run, _forged_id),
    ),
    Rule("alike", "unknown and forged ids get the same answer", "draft: Data Types (hijacking)", _alike),
    Rule("oversized", "an id that is far too long is refused", "draft: Data Types (hijacking)", _oversized),
    Rule(
        "wrong-header",
        "a header that contradicts the body is refused",
        "SEP-2243; MCP 2026-07-28: -32020",
        _wrong_header,
    ),
    Rule("mirrored", "a header that repeats the body passes", "SEP-2243", _mirrored),
    Rule(
        "envelope",
        "an incomplete envelope is refused",
        "MCP 2026-07-28: -32602",
        lambda run: _strange_create(run, envelope=False),
    ),
    Rule(
        "wrong-method",
        "an Mcp-Method that differs from the method is refused",
        "MCP 2026-07-28: -32020",
        lambda run: _strange_create(run, headers={"mcp_method": "ping"}),
    ),
    Rule("delete-nothing", "deleting nothing is refused, -32602", "draft: Deleting Sessions", _delete_nothing),
    Rule("delete", "a session is deleted; the result is empty", "draft: Deleting Sessions", _delete),
    Rule("replay", "a deleted session is not found, -32043", "draft: Schema", _replay),
    Rule("delete-again", "a deleted session cannot be deleted again", "draft: Schema", _delete_again),
    Rule("survivor", "the other session survives", "draft: Deleting Sessions", _survivor),
    Rule("listed", "a list of sessions contains no id", "extension: list", _listed),
    Rule("fork", "a fork is a session of its own", "extension: fork", _fork),
)


async def examine(app: ASGIApp) -> dict[tuple[str, str], str | Skipped | None]:
    """Return what was seen of each rule in each era that the server speaks: None where the rule holds."""
    found: dict[tuple[str, str], str | Skipped | None] = {}
    for era in ("legacy", "modern"):
        run = Run(RealClient(app, modern=era == "modern"))
        if await run.begin():
            found |= {(era, rule.name): await _try(rule, run) for rule in RULES}
            await run.delete_all()
    return found


async def _try(rule: Rule, run: Run) -> str | Skipped | None:
    if rule.needs_sessions and "sessions" not in run.capabilities and run.settings is None:
        return Skipped("no sessions are offered")
    try:
        return await rule.check(run)
    except Skipped as reason:
        return reason
