"""The session that a call goes in, how sessions begin and end, and how a connection is entered and left."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, nullcontext
from typing import Any

import anyio
import pytest

from mcp_sessions.client import ClientError, NoAnswer, Refused, SessionMetadata, SessionNotFound, with_sessions
from mcp_sessions.client import _sessions as sessions

from .scripted import LOST, REQUIRED, Answer, Server, calling, echoing, error, losing, session_of, talk

# --- which session ---


async def test_the_innermost_choice_counts() -> None:
    """`use` nests, `use(None)` chooses none, and outside of all there is the default; each is of one connection."""
    one, other = Server(), Server()
    here, there = with_sessions(one.transport), with_sessions(other.transport)
    async with calling(here) as mine, calling(there) as theirs:
        await mine.ask("tools/call")
        with here.use(here.new()) as held, there.use(None):
            await mine.ask("tools/call")
            with here.use(None) as chosen:
                assert [chosen, here.current] == [None, None]
                await mine.ask("tools/call")
            assert here.current is held
            await mine.ask("tools/call")
            await theirs.ask("tools/call")
        await mine.ask("tools/call")
        with pytest.raises(ValueError, match="another connection"):
            there.use(held).__enter__()
        for call in (there.delete, there.fork):
            with pytest.raises(ValueError, match="another connection"):
                await call(here.new())
    assert one.carried("tools/call") == ["id-1", "id-2", None, "id-2", "id-1"]
    assert other.carried("tools/call") == [None]


def test_a_name_is_one_session_and_nothing_shows_a_credential() -> None:
    sessions = with_sessions(Server().transport)
    held, named = sessions.new(), sessions.open("thread")
    assert named is sessions.open("thread")
    assert sessions.open("") is sessions.current
    assert sessions.names == []
    assert repr(sessions) == "<ClientSessions, not connected>"
    assert repr(held) == "<ClientSession unnamed, not created>"
    named.metadata = SessionMetadata("secret", "state", "2026-03-31T23:59:00Z")
    assert repr(named) == "<ClientSession 'thread', created>"
    assert (named.id, str(named.expires_at)) == ("secret", "2026-03-31 23:59:00+00:00")
    held.detach(for_good=True)
    assert repr(held) == "<ClientSession unnamed, ended>"
    assert (held.id, held.expires_at) == (None, None)


# --- how one begins ---


NO_SESSIONS: list[Any] = [None, {}, *({"sessionId": odd} for odd in (7, "", "a b", "é"))]


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        (error(-31029), "sessions/create was refused: -31029 no"),
        *(({"result": {"session": odd}}, "holds no session") for odd in NO_SESSIONS),
    ],
)
async def test_a_create_that_fails_is_the_callers_error(answer: Answer, said: str) -> None:
    server = Server({"sessions/create": lambda _: answer})
    async with talk(server) as (_, caller):
        for _ in range(2):
            with pytest.raises(ClientError, match=said) as failure:
                await caller.ask("tools/call")
            if isinstance(failure.value, Refused):
                assert (failure.value.method, failure.value.code) == ("sessions/create", -31029)
        del server.rules["sessions/create"]
        assert "result" in await caller.ask("tools/call")


async def test_a_server_that_does_not_answer_is_not_waited_for_for_ever() -> None:
    """An answer that comes too late is dropped, and does not reach the client either."""
    server = Server(late={"sessions/create"})
    async with talk(server, timeout=0.01) as (_, caller):
        with pytest.raises(NoAnswer, match=r"sessions/create was not answered: no answer within 0.01 s"):
            await caller.ask("tools/call")
        server.go.set()
        await caller.ask("ping")
        assert caller.others == []


async def test_a_session_that_is_being_made_is_made_once_and_can_be_deleted() -> None:
    """A caller who gives up takes nothing from the others, and what is deleted then is not left behind."""
    server = Server(late={"sessions/create"})
    async with talk(server) as (sessions, caller), anyio.create_task_group() as tasks:
        tasks.start_soon(caller.ask, "tools/call")
        await server.asked.wait()
        with anyio.move_on_after(0):
            await caller.ask("tools/call")
        server.go.set()
        await sessions.delete(sessions.open(""))
        assert server.carried("sessions/delete") == ["id-1"]
    assert len(server.sent("sessions/create")) == len(server.sent("tools/call")) == 1


# --- how one ends ---


@pytest.mark.parametrize("answer", [{"result": {}}, error(LOST), error(-32603)])
async def test_deleting_ends_the_session_at_once(answer: Answer) -> None:
    """One without a name is done, one with a name begins anew. That the server has lost it is no error, all else is."""
    server = Server({"sessions/delete": lambda _: answer})
    async with talk(server) as (sessions, caller):
        unnamed, named = sessions.new(), sessions.open("thread")
        for held in (unnamed, named):
            with sessions.use(held):
                await caller.ask("tools/call")
            with pytest.raises(Refused) if answer == error(-32603) else nullcontext():
                await sessions.delete(held)
            assert not held.created
        await sessions.delete(named)
        assert server.carried("sessions/delete") == ["id-1", "id-2"]
        with sessions.use(unnamed), pytest.raises(SessionNotFound):
            await caller.ask("tools/call")
        with sessions.use(named):
            await caller.ask("tools/call")
        assert (named.id, named.ended, unnamed.ended) == ("id-3", False, True)


# --- a session that the server has lost, or asks for ---


async def test_a_lost_session_is_an_error_once_and_without_its_id() -> None:
    """One with a name begins anew; one without is done, and not kept."""
    server = Server({"tools/call": losing("id-1", "id-2")})
    async with talk(server) as (sessions, caller):
        held = sessions.new()
        with sessions.use(held):
            lost = await caller.ask("tools/call")
            assert lost["error"] == {"code": LOST, "message": "no", "data": {"reason": "ended"}}
            assert held.ended
            assert sessions._router is not None
            assert not sessions._router.unnamed
            with pytest.raises(SessionNotFound, match="create another"):
                await caller.ask("tools/call")
        assert "error" in await caller.ask("tools/call")
        assert "result" in await caller.ask("tools/call")
    assert server.carried("tools/call") == ["id-1", "id-2", "id-3"]
    assert server.carried("sessions/delete") == ["id-3"]


async def test_recreating_sends_the_request_again_once() -> None:
    """Where that fails, the first answer stands."""
    server = Server({"tools/call": losing("id-1", "id-2")})
    async with talk(server, on_not_found="recreate") as (sessions, caller):
        with sessions.use(sessions.new()):
            assert (await caller.ask("tools/call", {"name": "pay"}))["error"]["code"] == LOST
            server.rules["tools/call"] = losing("id-3")
            assert "result" in await caller.ask("tools/call")
            server.rules |= {"tools/call": losing("id-4"), "sessions/create": lambda _: error(-32000)}
            assert (await caller.ask("tools/call"))["error"]["code"] == LOST
    assert [message["id"] for message in server.sent("tools/call")] == [2, 2, 3, 3, 4]
    assert server.sent("tools/call")[1]["params"]["name"] == "pay"


@pytest.mark.parametrize(
    "answer", [error(LOST), error(LOST, sessionId="another"), error(LOST, other=1), error(-32000, sessionId="id-1")]
)
async def test_an_error_about_something_else_is_left_alone(answer: Answer) -> None:
    """A server that is a client of others may pass their errors on: only one about our session is one of ours."""
    server = Server({"tools/call": lambda _: answer})
    async with talk(server, on_not_found="recreate") as (_, caller):
        for _ in range(2):
            assert (await caller.ask("tools/call"))["error"] == answer["error"]
    assert server.carried("tools/call") == ["id-1"] * 2


async def test_requests_that_lost_the_same_session_share_the_next() -> None:
    """An error that comes after the new session was made does not end that one; nor does a late result change it."""
    server = Server({"slow": losing("id-1"), "tools/call": losing("id-1")}, late={"slow"})
    async with talk(server, on_not_found="recreate") as (sessions, caller):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(caller.ask, "slow")
            await server.asked.wait()
            await caller.ask("tools/call")
            server.go.set()
        assert server.carried("slow") == ["id-1", "id-2"]
        server.rules["slow"] = echoing(state="late")
        server.go, server.asked = anyio.Event(), anyio.Event()
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(caller.ask, "slow")
            await server.asked.wait()
            held = sessions.open("")
            await sessions.delete(held)
            server.go.set()
        assert not held.created
    assert len(server.sent("sessions/create")) == 2


async def test_a_session_that_is_required_is_created() -> None:
    """Once: an error that comes again reaches the program, and so does one for a call that chose to have none."""
    server = Server(
        {
            "initialize": lambda _: {"result": {}},
            "tools/call": lambda message: echoing()(message) if session_of(message) else error(REQUIRED),
            "never": lambda _: error(REQUIRED),
        }
    )
    async with talk(server, modern=False) as (sessions, caller):
        with sessions.use(None):
            assert (await caller.ask("tools/call"))["error"]["code"] == REQUIRED
        offered = sessions.offered
        assert "result" in await caller.ask("tools/call")
        assert (offered, sessions.offered) == (False, True)
        assert (await caller.ask("never"))["error"]["code"] == REQUIRED
    assert server.carried("tools/call") == [None, None, "id-1"]


async def test_a_request_that_was_given_up_is_not_sent_again() -> None:
    """The program gave up while the session was made anew, or before: its answer goes nowhere."""
    server = Server({"tools/call": losing("id-1")})
    async with talk(server, on_not_found="recreate") as (_, caller), anyio.create_task_group() as tasks:
        await caller.ask("other")
        server.late = {"sessions/create"}
        tasks.start_soon(caller.ask, "tools/call")
        await server.asked.wait()
        for given_up in (3, 77):
            await caller.tell("notifications/cancelled", requestId=given_up)
        server.go.set()
        await caller.ask("other")
        assert len(server.sent("tools/call")) == 1
        tasks.cancel_scope.cancel()


# --- how a connection is entered and left ---


async def test_errors_come_out_as_they_are_and_leave_nothing_open() -> None:
    """Of a transport that does not open, after which others are made, and of the program's block; or it is stopped."""
    server, failures = Server(), iter([OSError("refused")])

    @asynccontextmanager
    async def opening() -> AsyncIterator[Any]:
        if (failure := next(failures, None)) is not None:
            raise failure
        async with server.transport() as streams:
            yield streams

    sessions = with_sessions(opening)
    with pytest.raises(OSError, match="refused"):
        await sessions.__aenter__()
    with pytest.raises(KeyError, match="mine"):
        async with sessions:
            raise KeyError("mine")
    assert server.closed
    with anyio.CancelScope() as scope:
        async with calling(sessions) as caller:
            await caller.ask("tools/call")
            scope.cancel()
            await anyio.sleep_forever()
    assert server.sent("sessions/delete") == []


async def test_sessions_are_connected_once_at_a_time() -> None:
    """And again later: what has no name is done by then, and what has one begins anew."""
    server = Server()
    sessions = with_sessions(server.transport)
    async with calling(sessions) as caller:
        assert sessions.offered is True
        assert repr(sessions) == "<ClientSessions, connected>"
        with pytest.raises(ClientError, match="connected already"):
            await sessions.__aenter__()
        unnamed = sessions.new()
        with sessions.use(unnamed):
            await caller.ask("tools/call")
    assert unnamed.ended
    async with calling(sessions) as caller:
        await caller.ask("tools/call")
    assert len(server.sent("sessions/delete")) == 2


async def test_a_transport_of_one_use_is_used_once() -> None:
    """Its further members, of which SDK 1.x gives one, are passed on; its streams are closed for the client alone."""
    server = Server()

    @asynccontextmanager
    async def three() -> AsyncIterator[Any]:
        async with server.transport() as streams:
            yield (*streams, "more")

    sessions = with_sessions(three())
    async with sessions as (read, write, more):
        assert (more, sessions.offered) == ("more", None)
        await write.aclose()
        with pytest.raises(anyio.ClosedResourceError):
            await write.send(None)
        await read.aclose()
        with pytest.raises(anyio.ClosedResourceError):
            await read.receive()
        await server.push(ValueError("unread"))
    with pytest.raises(ClientError, match="a function can return one"):
        await sessions.__aenter__()


@pytest.mark.parametrize("answers", ["never", "while the transport closes"])
async def test_leaving_does_not_wait_for_a_server_that_does_not_answer(
    answers: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Deleting is a courtesy, and bounded; under load the answer comes when the transport is closing."""
    monkeypatch.setattr(sessions, "LEAVE_TIMEOUT", 0.01)
    server = Server(late={"sessions/delete"})

    @asynccontextmanager
    async def slow_to_close() -> AsyncIterator[Any]:
        async with server.transport() as streams:
            yield streams
            if answers != "never":
                server.go.set()
            await anyio.wait_all_tasks_blocked()

    async with calling(with_sessions(slow_to_close)) as caller:
        await caller.ask("tools/call")
    assert server.closed


async def test_a_connection_that_is_gone_is_not_waited_for() -> None:
    """Neither by a call, which gets its error as it would without us, nor on leaving."""
    server = Server()

    async def hang_up_when_asked() -> None:
        await server.asked.wait()
        server.hang_up()

    async with talk(server) as (sessions, caller), anyio.create_task_group() as tasks:
        await caller.ask("tools/call")
        server.late = {"sessions/create"}
        tasks.start_soon(hang_up_when_asked)
        with sessions.use(sessions.new()), pytest.raises(NoAnswer, match="the connection is gone"):
            await caller.ask("tools/call")
        with pytest.raises((anyio.BrokenResourceError, anyio.ClosedResourceError)):
            await caller.ask("tools/call")
    assert server.sent("sessions/delete") == []
