"""The session that a call goes in, how sessions begin and end, and how a connection is entered and left."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from contextvars import ContextVar
from datetime import datetime, timezone
from typing import Any

import anyio
import anyio.lowlevel
import pytest

from mcp_sessions.client import ClientError, NoAnswer, Refused, SessionMetadata, SessionNotFound, with_sessions
from mcp_sessions.client import _sessions as sessions

from .scripted import LOST, REQUIRED, Answer, Server, calling, echoing, error, losing, plain, session_of, talk

# --- which session ---


async def test_the_innermost_choice_counts() -> None:
    """`use` nests, `use(None)` chooses none, and outside of all there is the default session."""
    server = Server()
    async with talk(server) as (sessions, caller):
        await caller.ask("tools/call")
        with sessions.use(sessions.new()):
            await caller.ask("tools/call")
            with sessions.use(None) as chosen:
                assert [chosen, sessions.current] == [None, None]
                await caller.ask("tools/call")
            await caller.ask("tools/call")
        await caller.ask("tools/call")
    assert server.carried("tools/call") == ["id-1", "id-2", None, "id-2", "id-1"]


async def test_choices_on_two_servers_do_not_touch_each_other() -> None:
    """Each `use` is about its own connection; a session of one is refused by the other."""
    one, other = Server(), Server()
    here, there = with_sessions(one.transport), with_sessions(other.transport)
    async with calling(here) as mine, calling(there) as theirs:
        with here.use(here.new()) as held, there.use(None):
            assert here.current is held
            await mine.ask("tools/call")
            await theirs.ask("tools/call")
        with pytest.raises(ValueError, match="another connection"):
            there.use(held).__enter__()
        for call in (there.delete, there.fork):
            with pytest.raises(ValueError, match="another connection"):
                await call(here.new())
    assert (one.carried("tools/call"), other.carried("tools/call")) == (["id-1"], [None])


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


async def test_a_create_that_is_refused_is_the_callers_error() -> None:
    server = Server({"sessions/create": lambda _: error(-31029)})
    async with talk(server) as (_, caller):
        for _ in range(2):
            with pytest.raises(Refused, match="sessions/create was refused: -31029 no") as refusal:
                await caller.ask("tools/call")
            assert (refusal.value.method, refusal.value.code) == ("sessions/create", -31029)
        del server.rules["sessions/create"]
        assert "result" in await caller.ask("tools/call")


@pytest.mark.parametrize("session", [None, {}, {"sessionId": 7}, *({"sessionId": bad} for bad in ("", "a b", "é"))])
async def test_a_created_session_must_be_one(session: Any) -> None:
    async with talk(Server({"sessions/create": lambda _: {"result": {"session": session}}})) as (_, caller):
        with pytest.raises(NoAnswer, match="holds no session"):
            await caller.ask("tools/call")


def test_the_hint_of_expiry_is_shown_where_it_can_be_read() -> None:
    """In UTC where it names no zone."""
    hints = ["2026-04-01T01:59:00+02:00", "2026-03-31T23:59:00", "2026-03-31T23:59:00Z", "soon", None]
    times = [SessionMetadata("id-1", None, hint).expires for hint in hints]
    assert times == [datetime(2026, 3, 31, 23, 59, tzinfo=timezone.utc)] * 3 + [None] * 2


async def test_a_server_that_does_not_answer_is_not_waited_for_for_ever() -> None:
    """An answer that comes too late is dropped, and does not reach the client either."""
    server = Server(late={"sessions/create"})
    async with talk(server, timeout=0.01) as (_, caller):
        with pytest.raises(NoAnswer, match=r"sessions/create was not answered: no answer within 0.01 s"):
            await caller.ask("tools/call")
        server.go.set()
        await caller.ask("ping")
        assert caller.others == []


async def test_a_connection_that_ends_while_a_session_is_made_ends_the_wait() -> None:
    server = Server(late={"sessions/create"})

    async def hang_up_when_asked() -> None:
        await server.asked.wait()
        server.hang_up()

    async with talk(server) as (_, caller), anyio.create_task_group() as tasks:
        tasks.start_soon(hang_up_when_asked)
        with pytest.raises(NoAnswer, match="the connection is gone"):
            await caller.ask("tools/call")


async def test_a_caller_who_gives_up_takes_nothing_from_the_others() -> None:
    server = Server(late={"sessions/create"})
    async with talk(server) as (_, caller), anyio.create_task_group() as tasks:
        tasks.start_soon(caller.ask, "tools/call")
        await server.asked.wait()
        with anyio.move_on_after(0):
            await caller.ask("tools/call")
        server.go.set()
        await caller.ask("tools/call")
    assert len(server.sent("sessions/create")) == 1
    assert len(server.sent("tools/call")) == 2


# --- how one ends ---


async def test_deleting_ends_the_session_at_once() -> None:
    """One without a name is done, one with a name begins anew; one that has not begun asks the server nothing."""
    server = Server()
    async with talk(server) as (sessions, caller):
        unnamed, named = sessions.new(), sessions.open("thread")
        for held in (unnamed, named):
            with sessions.use(held):
                await caller.ask("tools/call")
            await sessions.delete(held)
        await sessions.delete(named)
        assert server.carried("sessions/delete") == ["id-1", "id-2"]
        with sessions.use(unnamed), pytest.raises(SessionNotFound):
            await caller.ask("tools/call")
        with sessions.use(named):
            await caller.ask("tools/call")
        assert (named.ended, unnamed.ended) == (False, True)


async def test_deleting_waits_for_a_session_that_is_being_made() -> None:
    """Else it would be left behind."""
    server = Server(late={"sessions/create"})
    async with talk(server) as (sessions, caller), anyio.create_task_group() as tasks:
        tasks.start_soon(caller.ask, "tools/call")
        await server.asked.wait()
        server.go.set()
        await sessions.delete(sessions.open(""))
        assert len(server.sent("sessions/delete")) == 1


@pytest.mark.parametrize("code", [LOST, -32603])
async def test_deleting_what_the_server_has_lost_is_not_an_error(code: int) -> None:
    """Any other error is one, but for the last farewell."""
    server = Server({"sessions/delete": lambda _: error(code)})
    async with talk(server) as (sessions, caller):
        await caller.ask("tools/call")
        held = sessions.open("")
        if code == LOST:
            await sessions.delete(held)
        else:
            with pytest.raises(Refused):
                await sessions.delete(held)
        assert not held.created
        await caller.ask("tools/call")
    assert server.carried("sessions/delete") == ["id-1", "id-2"]


# --- a session that the server has lost, or asks for ---


async def test_a_lost_session_is_an_error_once_and_without_its_id() -> None:
    """One with a name begins anew; one without is done."""
    server = Server({"tools/call": losing("id-1", "id-2")})
    async with talk(server) as (sessions, caller):
        held = sessions.new()
        with sessions.use(held):
            lost = await caller.ask("tools/call")
            assert lost["error"] == {"code": LOST, "message": "no", "data": {"reason": "ended"}}
            assert held.ended
            with pytest.raises(SessionNotFound, match="create another"):
                await caller.ask("tools/call")
        assert "error" in await caller.ask("tools/call")
        assert "result" in await caller.ask("tools/call")
    assert server.carried("tools/call") == ["id-1", "id-2", "id-3"]
    assert server.carried("sessions/delete") == ["id-3"]


async def test_recreating_sends_the_request_again_once() -> None:
    server = Server({"tools/call": losing("id-1", "id-2", "id-3")})
    async with talk(server, on_not_found="recreate") as (sessions, caller):
        with sessions.use(sessions.new()):
            assert (await caller.ask("tools/call", {"name": "pay"}))["error"]["code"] == LOST
            assert "result" in await caller.ask("tools/call")
    assert [message["id"] for message in server.sent("tools/call")] == [2, 2, 3, 3]
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


async def test_the_first_answer_stands_where_trying_again_fails() -> None:
    server = Server({"tools/call": losing("id-1")})
    async with talk(server, on_not_found="recreate") as (_, caller):
        await caller.ask("other")
        server.rules["sessions/create"] = lambda message: error(-32000)
        assert (await caller.ask("tools/call"))["error"]["code"] == LOST


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


_who: ContextVar[str] = ContextVar("who", default="anonymous")


async def test_a_repeated_request_is_sent_in_the_context_of_its_caller(monkeypatch: pytest.MonkeyPatch) -> None:
    """Traces and the like belong to the call, also where its request is sent a second time."""
    server = Server({"tools/call": losing("id-1")})
    seen: list[str] = []

    @asynccontextmanager
    async def transport() -> AsyncIterator[Any]:
        async with server.transport() as (read, write):
            send = write.send

            async def noting(item: Any) -> None:
                if plain(item)["method"] == "tools/call":
                    seen.append(_who.get())
                await send(item)

            monkeypatch.setattr(write, "send", noting)
            yield read, write

    async with calling(with_sessions(transport, on_not_found="recreate")) as caller:
        _who.set("ann")
        await caller.ask("tools/call")
    assert seen == ["ann", "ann"]


@pytest.mark.parametrize("on_not_found", ["raise", "recreate"])
async def test_sessions_that_the_server_lost_do_not_pile_up(on_not_found: Any) -> None:
    """A client that begins a session per conversation, on a server that forgets them, keeps none of them."""
    server = Server({"tools/call": lambda message: error(LOST, **(session_of(message) or {}))})
    async with talk(server, on_not_found=on_not_found) as (sessions, caller):
        for _ in range(3):
            with sessions.use(sessions.new()):
                await caller.ask("tools/call")
        assert sessions._router is not None
        assert not sessions._router.unnamed
    assert server.sent("sessions/delete") == []


# --- how a connection is entered and left ---


async def test_a_connection_is_left_as_it_was_entered() -> None:
    """What the block raises comes out as it is, and the transport's streams are closed before it."""
    server = Server()
    with pytest.raises(KeyError, match="mine"):
        async with with_sessions(server.transport):
            raise KeyError("mine")
    assert server.closed


async def test_streams_are_closed_for_the_client_before_the_transport_is() -> None:
    """So that sessions can be ended when the client has gone."""
    server = Server()
    sessions = with_sessions(server.transport)
    async with sessions as (read, write):
        await write.aclose()
        with pytest.raises(anyio.ClosedResourceError):
            await write.send(None)
        await read.aclose()
        with pytest.raises(anyio.ClosedResourceError):
            await read.receive()
        assert sessions.offered is None
        await server.push(ValueError("unread"))


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
    with pytest.raises(NoAnswer, match="not connected"):
        await sessions.delete(sessions.open(""))
    async with calling(sessions) as caller:
        await caller.ask("tools/call")
    assert len(server.sent("sessions/delete")) == 2


async def test_a_transport_of_one_use_is_used_once() -> None:
    """Its further members, of which SDK 1.x gives one, are passed on."""

    @asynccontextmanager
    async def three() -> AsyncIterator[Any]:
        async with Server().transport() as streams:
            yield (*streams, "more")

    sessions = with_sessions(three())
    async with sessions as streams:
        assert streams[2] == "more"
    with pytest.raises(ClientError, match="a function can return one"):
        await sessions.__aenter__()


async def test_a_transport_that_fails_to_open_leaves_nothing_open() -> None:
    tries = iter([OSError("refused"), None])

    @asynccontextmanager
    async def opening() -> AsyncIterator[Any]:
        if (failure := next(tries)) is not None:
            raise failure
        async with Server().transport() as streams:
            yield streams

    sessions = with_sessions(opening)
    with pytest.raises(OSError, match="refused"):
        await sessions.__aenter__()
    async with calling(sessions):
        pass


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


@pytest.mark.parametrize("by", ["the server", "the program"])
async def test_a_connection_that_is_gone_is_left_at_once(by: str) -> None:
    """Also by a program that is being stopped."""
    server = Server()
    with anyio.CancelScope() as scope:
        async with talk(server) as (_, caller):
            await caller.ask("tools/call")
            if by == "the server":
                server.hang_up()
            else:
                scope.cancel()
                await anyio.lowlevel.checkpoint()
    assert server.sent("sessions/delete") == []
