"""What holds in every dialect: one suite, run by all of them, and then what holds between each two."""

import re
from collections.abc import Mapping
from itertools import permutations
from typing import Any

import pytest
from apps import Server, sessions
from clients import INITIALIZE, Answer, Client, Clock, Header, call, credentials, http
from failing import Failing
from sep1364 import Speaker, Stateful
from starlette.types import ASGIApp

from mcp_sessions import CreateRefused, Principal, Session
from mcp_sessions._server.options import DAY
from mcp_sessions.dialects import SEP1364Create, SEP1364Initialize
from mcp_sessions.events import EndedSession
from mcp_sessions.stores._memory import MemoryStore

GONE = -32043


class Draft:
    """`_meta`, `sessions/create`, `sessions/delete`. A session is what the client holds of it."""

    options: Mapping[str, Any] = {}  # of the middleware

    def __init__(self, app: ASGIApp) -> None:
        self.client = Client(app, modern=False)
        self.speaker = Speaker(app)

    async def begin(self) -> Answer:
        return await self.client.send("sessions/create")

    def held(self, answer: Answer) -> dict[str, str]:
        return credentials(answer.result["session"])

    async def use(self, session: dict[str, str], tool: str = "whoami", *headers: Header) -> Answer:
        answer = await self.client.tool(tool, *headers, session=session)
        session |= credentials((answer.session if "result" in answer.json else None) or {})
        return answer

    async def end(self, session: dict[str, str]) -> Answer:
        return await self.client.delete(session)


def mirror(session: Mapping[str, str]) -> Header:
    return (b"mcp-session-id", session["sessionId"].encode())


class TransportHeader(Draft):
    """The header, `initialize`, HTTP DELETE."""

    async def begin(self) -> Answer:
        return await self.client.send("initialize", INITIALIZE)

    def held(self, answer: Answer) -> dict[str, str]:
        return {"sessionId": answer.headers[b"mcp-session-id"].decode()}

    async def use(self, session: dict[str, str], tool: str = "whoami", *headers: Header) -> Answer:
        return await self.client.tool(tool, mirror(session), *headers)

    async def end(self, session: dict[str, str]) -> Answer:
        return await call(self.client.app, http("DELETE", headers=[mirror(session)]))


class Bridged(TransportHeader):
    """The same in front of a server that names transport sessions of its own, which travel inside of ours."""

    options: Mapping[str, Any] = {"bridge": True}


class Alternative1(Draft):
    """The field, `sessions/create`, `sessions/delete`."""

    options: Mapping[str, Any] = {"dialects": [SEP1364Create()]}

    async def begin(self) -> Answer:
        return await self.speaker.say("sessions/create", {"capabilities": {}})

    def held(self, answer: Answer) -> dict[str, str]:
        return {"sessionId": answer.json["sessionId"]}

    async def use(self, session: dict[str, str], tool: str = "whoami", *headers: Header) -> Answer:
        return await self.speaker.tool(tool, session["sessionId"], *headers)

    async def end(self, session: dict[str, str]) -> Answer:
        return await self.speaker.say("sessions/delete", dict(session))


class Alternative2(Alternative1):
    """The field, `initialize`, `terminate`."""

    options: Mapping[str, Any] = {"dialects": [SEP1364Initialize()]}

    async def begin(self) -> Answer:
        return await self.speaker.initialize()

    async def end(self, session: dict[str, str]) -> Answer:
        return await self.speaker.say("terminate", dict(session))


async def tally(session: Session | None, arguments: dict[str, Any]) -> Any:
    assert session is not None
    session.state["n"] = session.state.get("n", 0) + 1
    return [session.state["n"], await session.data.increment("n")]


@pytest.fixture(params=[Draft, TransportHeader, Bridged, Alternative1, Alternative2])
def dialect(request: pytest.FixtureRequest) -> type[Draft]:
    kind: type[Draft] = request.param
    return kind


@pytest.fixture
def server() -> Server:
    return Server(tally=tally)


def client(dialect: type[Draft], server: Server, **options: Any) -> Draft:
    app: ASGIApp = Stateful(server) if dialect is Bridged else server
    return dialect(sessions(app, **dialect.options, **options))


async def begun(of: Draft) -> dict[str, str]:
    return of.held(await of.begin())


def said(answer: Answer) -> Any:
    return answer.result["content"]


def code(answer: Answer) -> int:
    found: int = answer.error["code"]
    return found


async def test_a_session_has_a_name_a_state_and_data_of_its_own(dialect: type[Draft], server: Server) -> None:
    """On every worker that has the keys and the store, whatever needs a session; it begins with what a hook writes."""

    async def fill(session: Session, params: dict[str, Any], scope: Any) -> None:
        session.state["n"] = 10
        await session.data.set("n", 20)

    options: dict[str, Any] = {"store": MemoryStore(), "require": "always", "on_create": fill}
    here, there = client(dialect, server, **options), client(dialect, Server(tally=tally), **options)
    one, other = await begun(here), await begun(here)
    assert re.fullmatch(r"[\x21-\x7e]{1,512}", one["sessionId"])  # short enough for a header
    refs = [said(await worker.use(one)) for worker in (here, there)] + [said(await here.use(other))]
    assert refs[0] == refs[1] != refs[2]
    assert all(ref.startswith("ses_") for ref in refs)
    assert server.last.headers.get(b"mcp-session-id") != other["sessionId"].encode()
    turns = (here, one), (there, one), (there, other), (here, one)
    tallied = [said(await worker.use(held, "tally")) for worker, held in turns]
    assert tallied == [[11, 21], [12, 22], [11, 21], [13, 23]]


async def test_an_end_is_for_every_worker_and_for_good(dialect: type[Draft], server: Server) -> None:
    store, ended = MemoryStore(), []

    def on_end(session: EndedSession, reason: str) -> None:
        ended.append((session.ref, reason))

    here, there = client(dialect, server, store=store, on_end=on_end), client(dialect, Server(), store=store)
    session = await begun(here)
    ref = said(await there.use(session))
    assert (await here.end(session)).status == 200
    assert [code(await worker.use(session)) for worker in (here, there)] == [GONE, GONE]
    assert ended == [(ref, "deleted")]
    assert code(await here.end(session)) == GONE


async def test_what_is_not_a_live_session_of_the_caller_s_is_not_found(dialect: type[Draft], server: Server) -> None:
    """One that was never minted, somebody else's, another server's, and one whose time is over."""
    who, clock = "alice", Clock()
    options: dict[str, Any] = {"principal": lambda scope: Principal(subject=who), "clock": clock}
    user = client(dialect, server, **options)
    session = await begun(user)
    assert code(await user.use({"sessionId": session["sessionId"].rpartition(".")[0] + ".AAAA"})) == GONE
    assert code(await client(dialect, server, audience="other", **options).use(session)) == GONE
    who = "bob"
    assert code(await user.use(session)) == GONE
    assert code(await user.end(session)) == GONE
    who = "alice"
    clock.now += 30 * DAY
    assert code(await user.use(session)) == GONE
    assert not any(b"tools/call" in seen.body for seen in server.seen)


async def test_not_found_is_never_said_while_the_store_is_out_of_reach(dialect: type[Draft], server: Server) -> None:
    """Clients take it as final."""
    user = client(dialect, server, store=Failing("look_up"))
    session = await begun(user)
    for answer in (await user.use(session), await user.end(session)):
        assert (answer.status, code(answer)) == (503, -32603)


async def test_the_application_may_refuse_to_begin_one(dialect: type[Draft], server: Server) -> None:
    """Where a client did not ask for one, it goes on without."""

    def refuse(session: Session, params: dict[str, Any], scope: Any) -> None:
        raise CreateRefused("not today")

    answer = await client(dialect, server, on_create=refuse).begin()
    if dialect is TransportHeader:
        assert b"mcp-session-id" not in answer.headers
        assert "result" in answer.json
    else:
        assert answer.error == {"code": -31045, "message": "not today"}


BOTH = {"dialects": [SEP1364Create(), SEP1364Initialize()]}
IN_HEADER: tuple[type[Draft], ...] = TransportHeader, Alternative2  # header and field are two names of one session
IN_FIELD = Alternative1, Alternative2


@pytest.mark.parametrize(("made", "used"), [*permutations([Draft, TransportHeader, *IN_FIELD], 2)])
async def test_a_session_is_used_in_the_way_in_which_it_was_named(
    made: type[Draft], used: type[Draft], server: Server
) -> None:
    """Its state is kept in one place alone. What a header named may be repeated by a field, which it mirrors."""
    app = sessions(server, **BOTH)
    answer = await used(app).use(await begun(made(app)))
    if (used in IN_FIELD and made in {*IN_FIELD, *IN_HEADER}) or (made in IN_HEADER and used in IN_HEADER):
        assert said(answer).startswith("ses_")
    else:
        assert code(answer) in {GONE, -32020}


async def test_metadata_goes_before_a_transport_session(server: Server) -> None:
    """Both live side by side; one that is dead is told of."""
    app = sessions(server)
    drafted, header = Draft(app), TransportHeader(app)
    session, transport = await begun(drafted), await begun(header)
    ref = said(await drafted.use(session))
    assert said(await drafted.use(session, "whoami", mirror(transport))) == ref != said(await header.use(transport))
    await header.end(transport)
    assert (await drafted.use(session, "whoami", mirror(transport))).status == 404
