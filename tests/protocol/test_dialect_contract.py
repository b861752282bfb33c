"""What holds in every dialect: one suite, run by all of them, and then what holds between each two."""

from __future__ import annotations

import re
from itertools import permutations
from typing import Any

import pytest
from apps import Server, sessions
from clients import Answer, Clock
from failing import Failing
from tongues import TONGUES, Alternative1, Tongue, TransportHeader

from mcp_sessions import CreateRefused, EndedSession, Principal, SEP1364Create, SEP1364Initialize, Session
from mcp_sessions._server.options import DAY
from mcp_sessions.stores._memory import MemoryStore

GONE = -32043


async def tally(session: Session | None, arguments: dict[str, Any]) -> Any:
    assert session is not None
    session.state["n"] = session.state.get("n", 0) + 1
    return [session.state["n"], await session.data.increment("n")]


@pytest.fixture(params=TONGUES)
def dialect(request: pytest.FixtureRequest) -> type[Tongue]:
    return TONGUES[request.param]


@pytest.fixture
def server() -> Server:
    return Server(tally=tally)


def client(dialect: type[Tongue], server: Server, **options: Any) -> Tongue:
    return dialect(sessions(dialect.around(server), **dialect.options, **options))


async def begun(tongue: Tongue) -> dict[str, str]:
    return tongue.held(await tongue.begin())


def said(answer: Answer) -> Any:
    return answer.result["content"]


def code(answer: Answer) -> int:
    found: int = answer.error["code"]
    return found


class TestASession:
    async def test_has_a_name_a_state_and_data_of_its_own(self, dialect: type[Tongue], server: Server) -> None:
        """On every worker that has the keys and the store, whatever needs a session."""
        options: dict[str, Any] = {"store": MemoryStore(), "require": "always"}
        here, there = client(dialect, server, **options), client(dialect, Server(tally=tally), **options)
        one, other = await begun(here), await begun(here)
        refs = [said(await tongue.use(one)) for tongue in (here, there)] + [said(await here.use(other))]
        assert refs[0] == refs[1] != refs[2]
        assert all(ref.startswith("ses_") for ref in refs)
        turns = (here, one), (there, one), (there, other), (here, one)
        assert [said(await tongue.use(held, "tally")) for tongue, held in turns] == [[1, 1], [2, 2], [1, 1], [3, 3]]

    async def test_begins_with_what_on_create_writes(self, dialect: type[Tongue], server: Server) -> None:
        """Whether its client carries the state or the store keeps it."""

        async def fill(session: Session, params: dict[str, Any], scope: Any) -> None:
            session.state["n"] = 10
            await session.data.set("n", 20)

        tongue = client(dialect, server, on_create=fill)
        assert said(await tongue.use(await begun(tongue), "tally")) == [11, 21]

    async def test_has_an_id_as_the_specification_wants_it(self, dialect: type[Tongue], server: Server) -> None:
        """Visible ASCII, and short enough for a header; it never reaches the server in one."""
        tongue = client(dialect, server)
        session = await begun(tongue)
        assert re.fullmatch(r"[\x21-\x7e]{1,512}", session["sessionId"])
        await tongue.use(session)
        assert server.last.headers.get(b"mcp-session-id") != session["sessionId"].encode()

    async def test_may_be_recorded(self, dialect: type[Tongue], server: Server) -> None:
        clock = Clock()
        tongue = client(dialect, server, tracked=True, idle_timeout=3600, clock=clock, store=MemoryStore(clock=clock))
        session = await begun(tongue)
        clock.now += 1800
        assert said(await tongue.use(session)).startswith("ses_")
        clock.now += 3660
        assert code(await tongue.use(session)) == GONE


class TestAnEnd:
    async def test_is_for_every_worker_and_for_good(self, dialect: type[Tongue], server: Server) -> None:
        store, ended = MemoryStore(), []

        def on_end(session: EndedSession, reason: str) -> None:
            ended.append((session.ref, reason))

        here, there = client(dialect, server, store=store, on_end=on_end), client(dialect, Server(), store=store)
        session = await begun(here)
        ref = said(await there.use(session))
        assert (await here.end(session)).status == 200
        assert [code(await tongue.use(session)) for tongue in (here, there)] == [GONE, GONE]
        assert ended == [(ref, "deleted")]
        assert code(await here.end(session)) == GONE

    async def test_comes_with_time(self, dialect: type[Tongue], server: Server) -> None:
        clock = Clock()
        tongue = client(dialect, server, clock=clock)
        session = await begun(tongue)
        clock.now += 30 * DAY
        assert code(await tongue.use(session)) == GONE


class TestARefusal:
    async def test_meets_what_was_never_minted(self, dialect: type[Tongue], server: Server) -> None:
        tongue = client(dialect, server)
        forged = (await begun(tongue))["sessionId"].rpartition(".")[0] + ".AAAA"
        assert code(await tongue.use({"sessionId": forged})) == GONE
        assert "tools/call" not in server.methods

    async def test_meets_somebody_else_s(self, dialect: type[Tongue], server: Server) -> None:
        who = "alice"
        tongue = client(dialect, server, principal=lambda scope: Principal(subject=who))
        session = await begun(tongue)
        who = "bob"
        assert code(await tongue.use(session)) == GONE
        assert code(await tongue.end(session)) == GONE

    async def test_meets_another_server_s(self, dialect: type[Tongue], server: Server) -> None:
        session = await begun(client(dialect, server, audience="one"))
        assert code(await client(dialect, server, audience="other").use(session)) == GONE

    async def test_is_not_certain_where_the_store_is_out_of_reach(self, dialect: type[Tongue], server: Server) -> None:
        """Clients take "not found" as final, so it is never said then."""
        tongue = client(dialect, server, store=Failing("status"))
        session = await begun(tongue)
        assert ((answer := await tongue.use(session)).status, code(answer)) == (503, -32603)
        assert ((answer := await tongue.end(session)).status, code(answer)) == (503, -32603)

    async def test_may_be_the_application_s(self, dialect: type[Tongue], server: Server) -> None:
        """No session is begun; where a client did not ask for one, it goes on without."""

        def refuse(session: Session, params: dict[str, Any], scope: Any) -> None:
            raise CreateRefused("not today")

        answer = await client(dialect, server, on_create=refuse).begin()
        if dialect is TONGUES["transport"]:
            assert b"mcp-session-id" not in answer.headers
            assert "result" in answer.json
        else:
            assert answer.error == {"code": -31045, "message": "not today"}


BOTH = {"dialects": [SEP1364Create(), SEP1364Initialize()]}


ON_ONE_SERVER = [name for name in TONGUES if name != "bridge"]
IN_HEADER = "transport", "alternative 2"  # the header and the field are two names of one session
IN_FIELD = "alternative 1", "alternative 2"


@pytest.mark.parametrize(("made", "used"), list(permutations(ON_ONE_SERVER, 2)))
async def test_a_session_is_used_in_the_way_in_which_it_was_named(made: str, used: str, server: Server) -> None:
    """Its state is kept in one place alone. What a header named may be repeated by a field, which it mirrors."""
    app = sessions(server, **BOTH)
    session = await begun(TONGUES[made](app))
    answer = await TONGUES[used](app).use(session)
    if (used in IN_FIELD and made in {*IN_FIELD, *IN_HEADER}) or (made in IN_HEADER and used in IN_HEADER):
        assert said(answer).startswith("ses_")
    else:
        assert code(answer) in {GONE, -32020}


async def test_metadata_goes_before_a_transport_session(server: Server) -> None:
    """Both live side by side; one that is dead is told of."""
    app = sessions(server)
    drafted, header = Tongue(app), TransportHeader(app)
    session, transport = await begun(drafted), await begun(header)
    mirror = (b"mcp-session-id", transport["sessionId"].encode())
    ref = said(await drafted.use(session))
    assert said(await drafted.use(session, "whoami", mirror)) == ref != said(await header.use(transport))
    await header.end(transport)
    assert (await drafted.use(session, "whoami", mirror)).status == 404


async def test_the_field_goes_before_a_header_that_says_the_same(server: Server) -> None:
    first = Alternative1(sessions(server, **BOTH))
    session = await begun(first)
    assert said(await first.use(session)).startswith("ses_")
    doubled = await first.use(session, "whoami", (b"mcp-session-id", session["sessionId"].encode()))
    assert (doubled.status, code(doubled)) == (400, -32600)
