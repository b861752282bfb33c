"""The rules that a server with sessions keeps: one check for each, with the clause that asks for it.

Checks run in their order, in each era, and share the sessions that earlier ones made.
Sources: the data-layer sessions draft; MCP 2026-07-28; SEP-2243.
"""

import secrets
from collections.abc import Awaitable, Callable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from itertools import count
from typing import Any, Final

import anyio
from clients import SESSION_KEY, RealClient, credentials
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
    def result(self) -> Any:
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

    @property
    def echo(self) -> Session:
        """The session in `result._meta`; empty where there is none."""
        echo: Session = ((self.result or {}).get("_meta") or {}).get(SESSION_KEY) or {}
        return echo


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
        return credentials(self.held[name])

    async def use(self, session: object, **headers: str) -> Answer:
        """Send a harmless request in a session, of a method that the server has."""
        usual = "server/discover" if self.client.modern else "ping"
        method = next((method for name, method in HARMLESS.items() if name in self.capabilities), usual)
        return await self.request(method, session=session, headers=headers)

    def hold(self, name: str, answer: Answer) -> None:
        """Hold the session in a result, which has an id of visible ASCII."""
        session_id = answer.result["session"]["sessionId"]
        assert session_id
        assert all("!" <= one <= "~" for one in session_id), session_id
        self.held[name] = answer.result["session"]

    def needs(self, extension: str) -> None:
        """Skip a check of an extension that is not offered."""
        if not (self.settings or {}).get(extension):
            raise Skipped("not offered")

    def needs_modern_era(self) -> None:
        """Skip a check of what has another meaning, or none, in the legacy era."""
        if not self.client.modern:
            raise Skipped("the legacy era has none")

    async def delete_all(self) -> None:
        for session in self.held.values():
            await self.request("sessions/delete", session=credentials(session))
        self.held.clear()


Check = Callable[[Run], Awaitable[None]]
RULES: Final[dict[str, Check]] = {}
"""Each rule by its name. A check raises `AssertionError` where it does not hold, `Skipped` where it does not apply."""


def rule(_clause: str) -> Callable[[Check], Check]:
    """Note a check, and the clause that asks for it."""

    def note(check: Check) -> Check:
        RULES[check.__name__] = check
        return check

    return note


def is_not_found(answer: Answer, session_id: str) -> None:
    """Check that an answer is the refusal of a session, and repeats its id."""
    assert (answer.code, answer.error["data"]["sessionId"]) == (NOT_FOUND, session_id), answer


def forged_id(session: Session) -> str:
    """Change one character, well before the end, where encodings may have bits that do not count."""
    session_id: str = session["sessionId"]
    place = max(0, len(session_id) - 6)
    other = "A" if session_id[place] != "A" else "B"
    return f"{session_id[:place]}{other}{session_id[place + 1 :]}"


@rule("draft: Capabilities")
async def advertised(run: Run) -> None:
    """The capabilities advertise sessions."""
    assert "sessions" in run.capabilities, run.capabilities


@rule("draft: Creating Sessions, Data Types")
async def create(run: Run) -> None:
    """A session is created, and no two share an id."""
    for name in "AB":
        run.hold(name, await run.request("sessions/create"))
    assert run.held["A"]["sessionId"] != run.held["B"]["sessionId"]


@rule("draft: Schema")
async def hint(run: Run) -> None:
    """`expiresAt` is an ISO 8601 time."""
    run.session("A")
    if (expires := run.held["A"].get("expiresAt")) is None:
        raise Skipped("the server gives none")
    datetime.fromisoformat(expires.replace("Z", "+00:00"))  # which raises where it is none


@rule("draft: Creating Sessions")
async def create_within(run: Run) -> None:
    """Creating within a session is refused."""
    answer = await run.request("sessions/create", session=run.session("A"))
    assert answer.code == INVALID_PARAMS, answer


@rule("draft: Using Sessions 2-4")
async def use(run: Run) -> None:
    """A result names the session of its request."""
    session = run.session("A")
    echo = (await run.use(session)).echo
    assert echo["sessionId"] == session["sessionId"]
    run.held["A"] |= credentials(echo)


@rule("draft: Creating Sessions")
async def state(run: Run) -> None:
    """A state that was issued is accepted."""
    session = run.session("A")
    if "state" not in session:
        raise Skipped("the server keeps no state with the client")
    answer = await run.use(session)
    assert answer.result is not None, answer


@rule("draft: Using Sessions 1")
async def without(run: Run) -> None:
    """A request without a session gets none."""
    answer = await run.use(None)
    assert not answer.echo, answer


@rule("draft: Using Sessions 1, 3")
async def parallel(run: Run) -> None:
    """Parallel requests get their own session."""
    sessions = [run.session(name) for name in "AB"] * (PARALLEL // 2)
    echoed: dict[int, object] = {}

    async def use(place: int, session: Session) -> None:
        echoed[place] = (await run.use(session)).echo.get("sessionId")

    async with anyio.create_task_group() as tasks:
        for place, session in enumerate(sessions):
            tasks.start_soon(use, place, session)
    assert echoed == {place: session["sessionId"] for place, session in enumerate(sessions)}


@rule("draft: Schema")
async def malformed(run: Run) -> None:
    """A `sessionId` that is not a string is refused."""
    run.session("A")  # or this says nothing of the server
    answer = await run.use({"sessionId": 7})
    assert answer.code == INVALID_PARAMS, answer


@rule("draft: Schema, Data Types (hijacking)")
async def unknown(run: Run) -> None:
    """An unknown session and a forged one are not found, with the same answer."""
    answers = []
    for session_id in (secrets.token_urlsafe(24), forged_id(run.session("A"))):
        answers.append(await run.use({"sessionId": session_id}))
        is_not_found(answers[-1], session_id)
    assert len({(one.status, one.error["message"]) for one in answers}) == 1, answers


@rule("draft: Data Types (hijacking)")
async def oversized(run: Run) -> None:
    """An id that is far too long is refused, and the server goes on."""
    session = run.session("A")
    answer = await run.use({"sessionId": "A" * OVERSIZED})
    assert answer.refuses, answer
    after = await run.use(session)
    assert after.result is not None, after


@rule("SEP-2243; MCP 2026-07-28: -32020")
async def wrong_header(run: Run) -> None:
    """A header that contradicts the body is refused."""
    answer = await run.use(run.session("A"), mcp_session_id=run.session("B")["sessionId"])
    assert answer.refuses, answer


@rule("SEP-2243")
async def mirrored(run: Run) -> None:
    """A header that repeats the body passes; in the legacy era it names the transport's session."""
    run.needs_modern_era()
    session = run.session("A")
    answer = await run.use(session, mcp_session_id=session["sessionId"])
    assert answer.result is not None, answer


@rule("MCP 2026-07-28: -32602")
async def envelope(run: Run) -> None:
    """An incomplete envelope is refused."""
    run.needs_modern_era()
    answer = await run.request("sessions/create", envelope=False)
    assert answer.refuses, answer


@rule("MCP 2026-07-28: -32020")
async def wrong_method(run: Run) -> None:
    """An `Mcp-Method` that differs from the method is refused."""
    run.needs_modern_era()
    answer = await run.request("sessions/create", headers={"mcp_method": "ping"})
    assert answer.refuses, answer


@rule("draft: Deleting Sessions")
async def delete_nothing(run: Run) -> None:
    """Deleting nothing is refused."""
    answer = await run.request("sessions/delete")
    assert answer.code == INVALID_PARAMS, answer


@rule("draft: Deleting Sessions; Schema")
async def delete(run: Run) -> None:
    """A session is deleted with an empty result, and is then found neither for use nor for another deletion."""
    session = run.session("B")
    answer = await run.request("sessions/delete", session=session)
    del run.held["B"]
    assert answer.result in ({}, {"resultType": "complete"}), answer
    is_not_found(await run.use(session), session["sessionId"])
    is_not_found(await run.request("sessions/delete", session=session), session["sessionId"])


@rule("draft: Deleting Sessions")
async def survivor(run: Run) -> None:
    """The other session survives."""
    answer = await run.use(run.session("A"))
    assert answer.result is not None, answer


@rule("extension: list")
async def listed(run: Run) -> None:
    """A list of sessions contains no id."""
    run.needs("list")
    session = run.session("A")
    answer = await run.request("sessions/list")
    if answer.code == PRINCIPAL_REQUIRED:
        raise Skipped("for callers that are authenticated")
    assert isinstance(answer.result["sessions"], list)
    assert session["sessionId"] not in str(answer.message)


@rule("extension: fork")
async def fork(run: Run) -> None:
    """A fork is a session of its own."""
    run.needs("fork")
    parent = run.session("A")
    run.hold("fork", await run.request("sessions/fork", {}, session=parent))
    assert run.held["fork"]["sessionId"] != parent["sessionId"]
    used = await run.use(run.session("fork"))
    assert used.result is not None, used


async def examine(app: ASGIApp) -> dict[tuple[str, str], Exception | None]:
    """Return what became of each rule in each era that the server speaks: None where the rule holds."""
    found: dict[tuple[str, str], Exception | None] = {}
    for era in ("legacy", "modern"):
        run = Run(RealClient(app, modern=era == "modern"))
        if await run.begin():
            for name, check in RULES.items():
                found[era, name] = await _outcome(check, run)
            await run.delete_all()
    return found


async def _outcome(check: Check, run: Run) -> Exception | None:
    if check is not advertised and "sessions" not in run.capabilities and run.settings is None:
        return Skipped("no sessions are offered")
    try:
        await check(run)
    except (AssertionError, LookupError, TypeError, ValueError, Skipped) as outcome:  # a shape that is not the draft's
        return outcome
    return None
