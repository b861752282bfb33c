"""A stateful server on several workers: any of them serves a session, and one takes over if its owner is gone."""

import asyncio
import json
import logging
import os
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import anyio
import msgspec
import pytest
from anyio.lowlevel import checkpoint
from apps import read, reply
from clients import DEADLINE, SECRET, Answer, Exchange, Header, by, call, http, lifespan, user_of
from fleet import Fleet, begun, fleet
from starlette.applications import Starlette
from starlette.authentication import AuthCredentials, AuthenticationBackend, SimpleUser
from starlette.middleware import Middleware
from starlette.middleware.authentication import AuthenticationMiddleware
from starlette.requests import HTTPConnection
from starlette.routing import Mount, Route
from starlette.types import Receive, Scope, Send
from stateful import HEADER, Stateful

from mcp_sessions import Affinity, ConfigurationError, Session, TransportSessions, add_sessions
from mcp_sessions._affinity.incoming import HOP

pytestmark = pytest.mark.parametrize("anyio_backend", ["asyncio"])  # workers reach each other on asyncio only

TOKEN = (b"authorization", b"Bearer a-secret-of-the-caller")


async def count(workers: Fleet, number: int, ours: Header, *headers: Header) -> Any:
    """Call a tool by one worker, and return how many calls the server has counted in its session."""
    return (await workers.client(number).send("tools/call", None, ours, *headers)).result["content"]


def stored_in(folder: Path) -> bytes:
    return b"".join(file.read_bytes() for file in folder.iterdir())


def exists(file: str) -> bool:
    return Path(file).exists()


def remove(file: str) -> None:
    Path(file).unlink()


def begins(server: Stateful) -> int:
    """Return how many sessions a server was asked to begin."""
    return sum(b'"initialize"' in one.body for one in server.seen)


# --- any worker serves a session --------------------------------------------------------------------


async def test_any_worker_serves_a_session(tmp_path: Path) -> None:
    async with fleet(tmp_path, 3) as workers:
        ours = await begun(workers)
        assert [await count(workers, number, ours) for number in (0, 1, 2, 1, 0)] == [1, 2, 3, 4, 5]
        assert [len(server.counts) for server in workers.servers] == [1, 0, 0]


async def test_a_forwarded_request_arrives_as_it_was_sent(tmp_path: Path) -> None:
    """With its client, path, query and headers, and with the `state` of the owner's lifespan."""
    async with fleet(tmp_path) as workers:
        ours = await begun(workers)
        workers.apps[0].services.state = {"pool": "of the owner"}
        scope = http(
            headers=[(b"content-type", b"application/json"), ours, TOKEN],
            raw_path=b"/mcp",
            query_string=b"tenant=1",
            root_path="",
            scheme="https",
            client=("192.0.2.7", 4711),
            server=("mcp.example", 443),
            http_version="2",
            state={"pool": "of the other"},
        )
        await call(workers.apps[1], dict(scope), b'{"jsonrpc":"2.0","id":1,"method":"tools/call"}')
        seen = workers.servers[0].seen[-1].scope
        carried = ("path", "raw_path", "query_string", "root_path", "scheme", "client", "server", "http_version")
        assert {name: seen[name] for name in carried} == {name: scope[name] for name in carried}
        assert dict(seen["headers"])[b"authorization"] == TOKEN[1]
        assert seen["state"]["pool"] == "of the owner"


async def test_a_large_body_is_forwarded_whole(tmp_path: Path) -> None:
    async with fleet(tmp_path) as workers:
        ours, text = await begun(workers), "x" * 1_000_000
        await workers.client(1).send("tools/call", {"text": text}, ours)
        assert workers.servers[0].seen[-1].json["params"]["text"] == text


async def test_a_stream_is_forwarded_until_its_client_leaves(tmp_path: Path) -> None:
    async with fleet(tmp_path) as workers:
        ours, answer = await begun(workers), Exchange()
        with anyio.fail_after(DEADLINE):
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(answer.run, workers.apps[1], http("GET", headers=[ours]), b"")
                await workers.servers[0].listening.wait()
                assert "notifications/message" in await answer.next_event()
                tasks.cancel_scope.cancel()


async def test_deleting_on_another_worker_ends_the_session(tmp_path: Path) -> None:
    async with fleet(tmp_path) as workers:
        ours = await begun(workers)
        assert (await call(workers.apps[1], http("DELETE", headers=[ours]))).status == 200
        assert workers.servers[0].counts == {}
        assert (await workers.client(0).send("tools/call", None, ours)).status == 404


async def test_state_is_that_of_the_session_everywhere(tmp_path: Path) -> None:
    async with fleet(tmp_path) as workers:
        ours = await begun(workers)
        await count(workers, 1, ours)
        session: Session = workers.servers[0].seen[-1].scope["mcp_session"]
        await session.data.set("cart", ["tea"])
        await count(workers, 1, ours)
        assert await workers.servers[0].seen[-1].scope["mcp_session"].data.get("cart") == ["tea"]


async def test_one_process_alone_has_no_affinity(tmp_path: Path) -> None:
    async with fleet(tmp_path, affinity="off") as workers:
        assert workers.apps[0].affinity is None
        assert await count(workers, 0, await begun(workers)) == 1


# --- takeover --------------------------------------------------------------------------------------


async def test_another_worker_takes_over_a_session(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Its id, state and data stay, and its server gets `initialize` and `notifications/initialized` again."""
    caplog.set_level(logging.INFO, "mcp_sessions")
    async with fleet(tmp_path, 3) as workers:
        ours = await begun(workers)
        assert await count(workers, 1, ours) == 1
        await workers.servers[0].seen[-1].scope["mcp_session"].data.set("cart", ["tea"])
        workers.kill(0)
        assert [await count(workers, number, ours) for number in (1, 2, 1)] == [1, 2, 3]
        assert await workers.servers[1].seen[-1].scope["mcp_session"].data.get("cart") == ["tea"]
        methods = [one.json["method"] for one in workers.servers[1].seen]
        assert methods[:2] == ["initialize", "notifications/initialized"]
        sent, replayed = (server.seen[0].json["params"] for server in workers.servers[:2])
        assert replayed == {name: value for name, value in sent.items() if name != "_meta"}
        assert caplog.text.count("took over session") == 1
        assert "created" not in caplog.text.partition("took over session")[2]


async def test_a_session_is_taken_over_again_and_again(tmp_path: Path) -> None:
    async with fleet(tmp_path, 4) as workers:
        ours = await begun(workers)
        for number in range(3):
            assert await count(workers, number, ours) == 1
            workers.kill(number)
        assert await count(workers, 3, ours) == 1


async def test_parallel_requests_take_a_session_over_once(tmp_path: Path) -> None:
    """On two workers; the server's sessions that nobody uses are ended."""
    async with fleet(tmp_path, 3) as workers:
        ours, answers = await begun(workers), list[Any]()
        workers.kill(0)

        async def call_by(number: int) -> None:
            answers.append(await count(workers, number, ours))

        async with anyio.create_task_group() as tasks:
            for number in (1, 2, 1, 2, 1, 2):
                tasks.start_soon(call_by, number)
        assert sorted(answers) == [1, 2, 3, 4, 5, 6]
        assert sum(begins(workers.servers[number]) for number in (1, 2)) == 1


async def test_a_request_is_forwarded_again_with_its_body(tmp_path: Path) -> None:
    """To a worker that has refused it, because it was about to take the session over."""
    async with fleet(tmp_path, 3) as workers:
        ours, answers, refused = await begun(workers), list[Any](), anyio.Event()
        workers.kill(0)
        found, taker = workers.affinity(1).find(http(headers=[ours])), workers.affinity(2).owners
        assert found is not None
        taking = await taker.claim(found.claims, taker.known(found.claims, found.upstream))
        assert taking is not None

        async def owns_nothing_yet(*_: object) -> None:
            del taker.owned  # this function
            refused.set()

        vars(taker)["owned"] = owns_nothing_yet

        async def calling() -> None:
            answers.append(await count(workers, 1, ours))

        with anyio.fail_after(DEADLINE):
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(calling)
                await refused.wait()
                workers.servers[2].counts["taken"] = 0
                await taker.commit(found.claims, taking, "taken")
        assert answers == [1]


async def test_a_late_answer_to_a_dead_owners_question_is_dropped(tmp_path: Path) -> None:
    """The new owner asks another question under the same number, which that answer must not confirm."""
    async with fleet(tmp_path, server=Asking) as workers:
        ours = await begun(workers)
        first = (await workers.client(1).send("tools/call", None, ours)).events[0]["id"]
        workers.kill(0)
        second = (await workers.client(1).send("tools/call", None, ours)).events[0]["id"]
        assert (first, second) == ("e0:1", "e1:1")
        for question, seen in ((first, []), (second, [1])):
            answer = {"jsonrpc": "2.0", "id": question, "result": {"action": "accept"}}
            headers = [(b"content-type", b"application/json"), ours]
            assert (await call(workers.apps[1], http(headers=headers), json.dumps(answer).encode())).status == 202
            assert workers.servers[1].answers == seen


class Asking(Stateful):
    """A server whose tool asks its client, always with the number 1, and which keeps the answers."""

    def __init__(self, number: int) -> None:
        super().__init__(names=f"server-{number}-")
        self.answers: list[Any] = []

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        body = await read(receive) if scope["method"] == "POST" else b""
        message = json.loads(body or b"{}")
        own = dict(scope["headers"]).get(HEADER)
        if "method" not in message and message:
            self.answers.append(message["id"])
        if message.get("method") != "tools/call":
            await super().__call__(scope, _again(body, receive), send)
            return
        question = {"jsonrpc": "2.0", "id": 1, "method": "elicitation/create", "params": {}}
        answer = {"jsonrpc": "2.0", "id": message["id"], "result": {}}
        events = b"".join(b"data: %b\n\n" % json.dumps(one).encode() for one in (question, answer))
        await reply(send, events, media_type=b"text/event-stream", named=own)


def _again(body: bytes, receive: Receive) -> Receive:
    messages = [{"type": "http.request", "body": body}]

    async def receive_again() -> Any:
        return messages.pop() if messages else await receive()

    return receive_again


async def test_no_credential_is_stored_for_a_takeover(tmp_path: Path) -> None:
    """The replayed `initialize` has the headers of the request that makes it necessary."""
    async with fleet(tmp_path, principal=user_of) as workers:
        ours = HEADER, (await workers.client(0).send("initialize", None, TOKEN)).headers[HEADER]
        workers.kill(0)
        await count(workers, 1, ours, (b"authorization", b"Bearer renewed"))
        replayed = workers.servers[1].seen[0]
        assert replayed.json["method"] == "initialize"
        assert replayed.headers[b"authorization"] == b"Bearer renewed"
        assert replayed.scope["mcp_sessions.replay"] is True
        stored = stored_in(tmp_path)
        assert not any(secret in stored for secret in (TOKEN[1], ours[1], b"renewed"))


async def test_another_user_cannot_make_a_worker_take_over(tmp_path: Path) -> None:
    async with fleet(tmp_path, principal=user_of) as workers:
        ours = HEADER, (await workers.client(0).send("initialize", None, by("ann"))).headers[HEADER]
        workers.kill(0)
        assert (await workers.client(1).send("tools/call", None, ours, by("eve"))).status == 404
        assert begins(workers.servers[1]) == 0
        assert await count(workers, 1, ours, by("ann")) == 1


@pytest.mark.parametrize("status", [401, 403, 429])
async def test_a_refused_replay_is_passed_on(tmp_path: Path, status: int) -> None:
    """Its session stays as it was, so that the caller can come back with what was missing."""
    async with fleet(tmp_path, server=Guarded, principal=user_of) as workers:
        ours = HEADER, (await workers.client(0).send("initialize", None, TOKEN)).headers[HEADER]
        workers.kill(0)
        workers.servers[1].status = status
        answer = await workers.client(1).send("tools/call", None, ours)
        assert (answer.status, answer.body) == (status, b"guarded")
        assert await count(workers, 1, ours, TOKEN) == 1


class Guarded(Stateful):
    """A server that serves nobody without a token."""

    status = 401

    def __init__(self, number: int) -> None:
        super().__init__(names=f"server-{number}-")

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if TOKEN[0] in dict(scope["headers"]):
            await super().__call__(scope, receive, send)
        else:
            await reply(send, b"guarded", status=self.status, media_type=b"text/plain")


async def test_a_server_that_fails_to_begin_again_is_tried_again(tmp_path: Path) -> None:
    """With 503, never 404: clients would give the session up."""
    async with fleet(tmp_path, server=Failing) as workers:
        ours = await begun(workers)
        workers.kill(0)
        workers.servers[1].fails = True
        answer = await workers.client(1).send("tools/call", None, ours)
        assert (answer.status, answer.headers[b"retry-after"], answer.json["id"]) == (503, b"5", 1)
        workers.servers[1].fails = False
        assert await count(workers, 1, ours) == 1


class Failing(Stateful):
    """A server that may be broken."""

    fails = False

    def __init__(self, number: int) -> None:
        super().__init__(names=f"server-{number}-")

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        body = await read(receive)
        if self.fails and b'"initialize"' in body:
            await reply(send, b"{}", status=500)
        else:
            await super().__call__(scope, _again(body, receive), send)


async def test_another_protocol_version_ends_the_session(tmp_path: Path) -> None:
    """With 404, so that its client initializes again; nothing is left at the server."""
    async with fleet(tmp_path) as workers:
        ours = await begun(workers)
        workers.kill(0)
        workers.servers[1].version = {"protocolVersion": "2025-06-18"}
        answer = await workers.client(1).send("tools/call", None, ours)
        assert (answer.status, answer.error["code"]) == (404, -32043)
        assert begins(workers.servers[1]) == 1
        assert [one.scope["method"] for one in workers.servers[1].seen].count("DELETE") == 1


async def test_deleting_a_session_of_a_dead_owner_replays_nothing(tmp_path: Path) -> None:
    async with fleet(tmp_path) as workers:
        ours = await begun(workers)
        workers.kill(0)
        assert (await call(workers.apps[1], http("DELETE", headers=[ours]))).status == 200
        assert [one.scope["method"] for one in workers.servers[1].seen] == ["DELETE"]
        assert (await workers.client(1).send("tools/call", None, ours)).status == 404
        assert begins(workers.servers[1]) == 0


async def test_log_level_and_subscriptions_are_restored(tmp_path: Path) -> None:
    async with fleet(tmp_path) as workers:
        ours, client = await begun(workers), workers.client(1)
        for method, params in (
            ("logging/setLevel", {"level": "debug"}),
            ("logging/setLevel", {"level": "warning"}),
            ("resources/subscribe", {"uri": "file:///a"}),
            ("resources/subscribe", {"uri": "file:///b"}),
            ("resources/unsubscribe", {"uri": "file:///a"}),
        ):
            await client.send(method, params, ours)
        workers.kill(0)
        await count(workers, 1, ours)
        restored = [(one.json["method"], one.json.get("params")) for one in workers.servers[1].seen[2:4]]
        assert restored == [
            ("logging/setLevel", {"level": "warning"}),
            ("resources/subscribe", {"uri": "file:///b"}),
        ]


async def test_an_initialize_too_large_to_keep_is_not_taken_over(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with fleet(tmp_path) as workers:
        params = {"clientInfo": {"name": "x" * 70_000}}
        ours = HEADER, (await workers.client(0).send("initialize", params)).headers[HEADER]
        assert "too large to be kept" in caplog.text
        workers.kill(0)
        assert (await workers.client(1).send("tools/call", None, ours)).status == 404


async def test_a_server_that_forgot_its_session_gets_it_again(tmp_path: Path) -> None:
    """Servers end idle sessions; the client does not notice."""
    async with fleet(tmp_path) as workers:
        ours, server = await begun(workers), workers.servers[0]
        for _ in range(3):
            server.counts.clear()
            assert await count(workers, 1, ours) == 1
        server.counts.clear()
        assert (await workers.client(1).send("tools/call", None, ours)).status == 404  # it forgets every time


# --- calls in flight -------------------------------------------------------------------------------


@pytest.mark.parametrize("sse", [False, True])
async def test_a_call_in_flight_is_answered_with_its_loss(tmp_path: Path, sse: bool) -> None:
    """It may or may not have run, so it is not run again."""
    async with fleet(tmp_path, server=lambda number: Hanging(number, sse=sse)) as workers:
        ours, answers = await begun(workers), list[Answer]()

        async def calling() -> None:
            answers.append(await workers.client(1).send("tools/call", None, ours, id="a call"))

        with anyio.fail_after(DEADLINE):
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(calling)
                await workers.servers[0].called.wait()
                workers.kill(0)
        (answer,) = answers
        assert answer.status == 200
        assert answer.json["id"] == "a call"
        assert (answer.error["code"], answer.error["data"]) == (-32603, {"reason": "owner_lost"})
        assert [one["method"] for one in answer.events[:-1]] == (["notifications/message"] if sse else [])
        assert not workers.servers[1].called.is_set()


class Hanging(Stateful):
    """A server whose tool never answers: as an event stream, it has sent half of its second event."""

    def __init__(self, number: int, *, sse: bool) -> None:
        super().__init__(names=f"server-{number}-")
        self.streams, self.called, self.calls = sse, anyio.Event(), 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        body = await read(receive) if scope["method"] == "POST" else b""
        if b"tools/call" not in body:
            await super().__call__(scope, _again(body, receive), send)
            return
        if self.streams:
            headers = [(b"content-type", b"text/event-stream"), (HEADER, dict(scope["headers"])[HEADER])]
            await send({"type": "http.response.start", "status": 200, "headers": headers})
            event = b'data: {"jsonrpc":"2.0","method":"notifications/message"}\n\ndata: {"half'
            await send({"type": "http.response.body", "body": event, "more_body": True})
        self.calls += 1
        self.called.set()
        await anyio.sleep_forever()


# --- leaving ---------------------------------------------------------------------------------------


async def test_a_leaving_worker_hands_its_sessions_over(tmp_path: Path) -> None:
    """Its streams end at once; a session whose call is under way stays until that is done."""
    async with fleet(tmp_path, server=Gated) as workers:
        ours, idle, stream = await begun(workers), await begun(workers), Exchange()
        answers = list[Any]()

        async def calling() -> None:
            answers.append(await count(workers, 1, ours))

        with anyio.fail_after(DEADLINE):
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(stream.run, workers.apps[0], http("GET", headers=[idle]), b"")
                await workers.servers[0].listening.wait()
                tasks.start_soon(calling)
                await workers.servers[0].called.wait()
                workers.affinity(0)._leave()
                await stream.ended()
                assert (await workers.client(1).send("ping", None, idle)).result == {}
                assert [len(server.counts) for server in workers.servers] == [2, 1]
                assert (await workers.client(1).send("ping", None, ours)).result == {}
                workers.servers[0].gate.set()
        assert answers == [1]
        assert [len(server.counts) for server in workers.servers] == [2, 1]
        workers.servers[1].gate.set()
        assert await count(workers, 1, ours) == 1


class Gated(Stateful):
    """A server whose tool answers once a gate is open."""

    def __init__(self, number: int) -> None:
        super().__init__(names=f"server-{number}-")
        self.called, self.gate = anyio.Event(), anyio.Event()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        body = await read(receive) if scope["method"] == "POST" else b""
        if b"tools/call" in body:
            self.called.set()
            await self.gate.wait()
        await super().__call__(scope, _again(body, receive), send)


async def test_calls_that_outlast_the_leave_are_lost(tmp_path: Path) -> None:
    async with fleet(tmp_path, server=lambda number: Hanging(number, sse=False)) as workers:
        ours, answers = await begun(workers), list[Answer]()

        async def calling(number: int) -> None:
            answers.append(await workers.client(number).send("tools/call", None, ours))

        with anyio.fail_after(DEADLINE):
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(calling, 0)
                tasks.start_soon(calling, 1)
                while workers.servers[0].calls < 2:
                    await checkpoint()
                workers.affinity(0)._drain = 0  # type: ignore[misc]
                workers.affinity(0)._leave()
        assert [answer.error["data"] for answer in answers] == [{"reason": "owner_lost"}] * 2


# --- what must not be --------------------------------------------------------------------------------


async def test_a_request_that_hopped_never_hops_again(tmp_path: Path) -> None:
    """The mark is in the scope, where no client can put it; the middleware then serves or refuses it itself."""
    async with fleet(tmp_path) as workers:
        ours = await begun(workers)
        headers = [(b"content-type", b"application/json"), ours]
        body = b'{"jsonrpc":"2.0","id":1,"method":"tools/call"}'
        answer = await call(workers.apps[1], {**http(headers=headers), HOP: True}, body)
        assert answer.status == 503
        assert len(workers.servers[0].seen) == 1
        assert workers.servers[1].seen[-1].json["method"] == "ping"  # whether the caller is admitted


async def test_a_session_of_an_owner_elsewhere_is_left_to_it(tmp_path: Path) -> None:
    """The folder of its socket is another one, and it has no address: nothing proves that it is gone."""
    async with fleet(tmp_path) as workers:
        ours = await begun(workers)
        workers.kill(0)
        affinity = workers.affinity(0)
        affinity.workers._row.directory = "another folder"
        await affinity.workers._renew()
        answer = await workers.client(1).send("tools/call", None, ours)
        assert (answer.status, answer.headers[b"retry-after"]) == (503, b"5")
        assert workers.servers[1].counts == {}


async def test_an_owner_whose_row_has_ended_is_gone(tmp_path: Path) -> None:
    async with fleet(tmp_path) as workers:
        ours = await begun(workers)
        workers.kill(0)
        affinity = workers.affinity(0)
        affinity.workers._row.directory = "another folder"
        await affinity.workers._write(None)
        assert await count(workers, 1, ours) == 1


async def test_a_worker_whose_lease_lapsed_writes_nothing_more(tmp_path: Path) -> None:
    """As one that was stopped, and goes on after another has taken over: one counter, not two."""
    async with fleet(tmp_path) as workers:
        ours = await begun(workers)
        await count(workers, 0, ours)
        old: Session = workers.servers[0].seen[-1].scope["mcp_session"]
        workers.kill(0)
        await count(workers, 1, ours)
        new: Session = workers.servers[1].seen[-1].scope["mcp_session"]
        await new.data.set("n", 1)
        workers.affinity(0).workers._held_until = 0.0
        with pytest.raises(ValueError, match="another worker has taken the session over"):
            await old.data.increment("n")
        assert await new.data.get("n") == 1
        assert await count(workers, 0, ours) == 2  # which the new owner has counted


async def test_the_old_owner_forwards_to_the_new_one(tmp_path: Path) -> None:
    async with fleet(tmp_path) as workers:
        ours = await begun(workers)
        workers.kill(0)
        assert await count(workers, 1, ours) == 1
        workers.affinity(0).workers._held_until = 0.0
        assert await count(workers, 0, ours) == 2
        assert sum(workers.servers[0].counts.values()) == 0


async def test_nothing_is_sent_to_a_process_that_cannot_prove_itself(tmp_path: Path) -> None:
    """As one that has got the address of a worker that is gone."""
    async with fleet(tmp_path) as workers:
        ours, received = await begun(workers), bytearray()
        workers.kill(0)
        place = workers.affinity(1).workers.socket_of(workers.affinity(0).workers.name)
        remove(place)

        async def impostor(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            received.extend(await reader.read(1000))
            writer.write(bytes(48))
            received.extend(await reader.read(1000))
            writer.close()

        server = await asyncio.start_unix_server(impostor, place)
        with anyio.move_on_after(1):
            await workers.client(1).send("tools/call", None, ours, TOKEN)
        server.close()
        assert received.startswith(b"mcp-hop1")
        assert len(received) % 32 == 0  # each greeting
        assert begins(workers.servers[1]) == 0  # nothing proves that the owner is gone


async def test_nothing_is_served_to_a_process_without_the_keys(tmp_path: Path) -> None:
    async with fleet(tmp_path) as workers:
        ours = await begun(workers)
        name = workers.affinity(0).workers.name
        reader, writer = await asyncio.open_unix_connection(workers.affinity(0).workers.socket_of(name))
        kid = workers.apps[0]._runtime.ring(0).signing.kid.encode()
        writer.write(b"mcp-hop1" + kid + bytes(16))
        await reader.readexactly(48)
        scope = {**http(headers=[ours]), "extensions": None}
        frame = msgspec.msgpack.encode({"type": "request", "ref": "", "scope": scope})
        writer.write(bytes(32) + len(frame).to_bytes(4, "big") + frame)
        assert await reader.read() == b""
        writer.close()
        assert len(workers.servers[0].seen) == 1


async def test_frames_between_machines_are_sealed(tmp_path: Path) -> None:
    """The worker is reached by its address if its socket is not in the same folder."""
    async with fleet(tmp_path, affinity=Affinity(address="127.0.0.1")) as workers:
        ours, passed = await begun(workers), bytearray()
        there = workers.affinity(0).workers
        address = there._row.address
        assert address is not None

        async def wire(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            far_reader, far_writer = await asyncio.open_connection(*address)

            async def copy(source: asyncio.StreamReader, target: asyncio.StreamWriter) -> None:
                while part := await source.read(65536):
                    passed.extend(part)
                    target.write(part)
                target.close()

            await asyncio.gather(copy(reader, far_writer), copy(far_reader, writer))

        server = await asyncio.start_server(wire, "127.0.0.1", 0)
        there._row.address = ("127.0.0.1", server.sockets[0].getsockname()[1])
        there._row.directory = "another folder"
        await there._renew()
        remove(there.socket_of(there.name))
        assert [await count(workers, 1, ours, TOKEN) for _ in range(2)] == [1, 2]
        server.close()
        assert len(passed) > 1000
        assert not any(text in passed for text in (ours[1], TOKEN[1], b"tools/call", b"content"))


async def test_an_address_of_another_machine_is_refused_at_the_start(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="cannot be used on this machine"):
        async with fleet(tmp_path, affinity=Affinity(address="192.0.2.1")):
            pass


@pytest.mark.parametrize("mode", [0o755, 0o770, 0o701])
async def test_a_folder_that_others_can_enter_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mode: int
) -> None:
    """They could put a socket there."""
    with TemporaryDirectory() as short:  # a longer path would not do for a socket
        monkeypatch.setattr("tempfile.tempdir", short)
        folder = Path(short) / f"mcp-sessions-{os.geteuid()}"
        folder.mkdir()
        folder.chmod(mode)
        with pytest.raises(ConfigurationError, match="mode 0700"):
            async with fleet(tmp_path):
                pass


async def test_sockets_of_dead_workers_are_removed_by_the_next(tmp_path: Path) -> None:
    """A lock shows that their process is gone; those of the living stay."""
    async with fleet(tmp_path) as workers:
        dead, alive = (workers.affinity(number).workers for number in (0, 1))
        assert dead._lock is not None
        os.close(dead._lock)
        dead._lock = None
        async with fleet(tmp_path, 1):
            assert [exists(one.socket_of(one.name)) for one in (dead, alive)] == [False, True]


# --- applications that authenticate ------------------------------------------------------------------


class Bearer(AuthenticationBackend):
    """Authenticates who sends a bearer token, as the user of that name, and counts how often."""

    def __init__(self) -> None:
        self.checked = 0

    async def authenticate(self, conn: HTTPConnection) -> tuple[AuthCredentials, SimpleUser] | None:
        self.checked += 1
        name = conn.headers.get("authorization", "").removeprefix("Bearer ")
        return (AuthCredentials(), SimpleUser(name)) if name else None


@dataclass
class Application:
    """A worker with an application that authenticates, where sessions were added to the route of its server."""

    server: Stateful
    bearer: Bearer
    app: Starlette

    @classmethod
    def make(cls, folder: Path, number: int) -> "Application":
        server, bearer = Stateful(names=f"server-{number}-", version={"protocolVersion": "2025-11-25"}), Bearer()
        authentication = Middleware(AuthenticationMiddleware, backend=bearer)
        app = Starlette(routes=[Mount("/api", Starlette(routes=[Route("/mcp", server)]))], middleware=[authentication])
        transport, store = TransportSessions(bridge=True), f"sqlite:{folder}/sessions.db"
        add_sessions(app, path="/api/mcp", keys=SECRET, store=store, transport=transport)
        return cls(server, bearer, app)

    async def call(self, method: str, ours: Header | None, user: str) -> Answer:
        headers = [(b"content-type", b"application/json"), (b"authorization", b"Bearer " + user.encode())]
        body = json.dumps({"jsonrpc": "2.0", "id": 1, "method": method, "params": {}}).encode()
        return await call(self.app, http(path="/api/mcp", headers=[*headers, *([ours] if ours else [])]), body)


async def test_the_owner_authenticates_a_forwarded_request(tmp_path: Path) -> None:
    """It enters outside of all middleware, and only there is its caller known."""
    async with AsyncExitStack() as stack:
        workers = [Application.make(tmp_path, number) for number in range(2)]
        for worker in workers:
            await stack.enter_async_context(lifespan(worker.app))
        ours = HEADER, (await workers[0].call("initialize", None, "ann")).headers[HEADER]
        checked = [worker.bearer.checked for worker in workers]
        assert (await workers[1].call("tools/call", ours, "ann")).result["content"] == 1
        assert [worker.bearer.checked for worker in workers] == [checked[0] + 1, checked[1]]
        assert (await workers[1].call("tools/call", ours, "eve")).status == 404


async def test_authentication_outside_keeps_a_session_on_its_worker(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The owner could not repeat it, and the log names the remedy."""
    async with fleet(tmp_path, principal=user_of) as workers:
        ours = await begun(workers)
        answer = await call(
            workers.apps[1],
            {**http(headers=[(b"content-type", b"application/json"), ours]), "user": SimpleUser("ann")},
            b'{"jsonrpc":"2.0","id":1,"method":"tools/call"}',
        )
        assert answer.status == 503
        assert "use add_sessions(app, ...) with the outermost application" in caplog.text
        assert len(workers.servers[0].seen) == 1
