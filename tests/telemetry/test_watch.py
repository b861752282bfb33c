"""`Watch` writes what happens to a feed, and costs nothing without a reader."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from apps import Server, sessions
from clients import START, Client, call, http
from reading import Reader

from mcp_sessions import ConfigurationError, MCPSessionMiddleware, Session


def watched(folder: Path, server: Server | None = None, **options: Any) -> MCPSessionMiddleware:
    app = sessions(server or Server(), watch=str(folder), spans="off", **options)
    app.services.started()
    return app


async def events(app: MCPSessionMiddleware, reader: Reader) -> list[dict[str, Any]]:
    """What a reader is sent until the server stops."""
    await app.services.stopping()
    return reader.rest()


async def test_a_session_s_life_is_sent_in_its_order(tmp_path: Path) -> None:
    """Created, called, refused, ended: by its ref, also afterwards; times and outcomes, and nothing that is secret."""
    app = watched(tmp_path)
    client, reader = Client(app), Reader(tmp_path)
    held = await client.create()
    ref = (await client.tool(session=held)).result["content"]
    await client.tool(session={"sessionId": held["sessionId"][:-8] + "AAAAAAAA"})
    await client.delete(held)
    await client.tool(session=held)
    seen = await events(app, reader)
    assert held["sessionId"] not in json.dumps(seen)
    assert {event["worker"] for event in seen} == {reader.worker}
    assert {event["at"] for event in seen} == {START}
    assert all(event.pop("seconds", 0) >= 0 for event in seen)
    found = [(one["event"], one["ref"], one.get("name"), one.get("error"), one.get("reason")) for one in seen]
    assert found == [
        ("created", ref, None, None, None),
        ("began", ref, "tools/call whoami", None, None),
        ("call", ref, "tools/call whoami", None, None),
        ("began", None, "tools/call whoami", None, None),
        ("call", None, "tools/call whoami", "-32043", "token_signature"),
        ("ended", ref, None, None, "deleted"),
        ("began", ref, "tools/call whoami", None, None),
        ("call", ref, "tools/call whoami", "-32043", "ended"),
    ]
    assert [event["call"] for event in seen[1:5]] == [f"{reader.worker}/{number}" for number in (2, 2, 3, 3)]


async def test_a_stolen_id_is_seen_in_the_session_that_it_belongs_to(tmp_path: Path) -> None:
    """With that session's client; only the caller is another."""
    callers = iter(["alice", "alice", "mallory"])
    app = watched(tmp_path, principal=lambda scope: next(callers))
    client, reader = Client(app), Reader(tmp_path)
    named = {"_meta": {"io.modelcontextprotocol/clientInfo": {"name": "shop", "version": "2"}}}
    held = (await client.send("sessions/create", named)).result["session"]
    for _ in range(2):
        await client.tool(session=held)
    *_, own, _, stolen = await events(app, reader)
    assert (own["ref"], own["client"], own.get("reason")) == (stolen["ref"], stolen["client"], None)
    assert (stolen["client"], stolen["reason"]) == ("shop 2", "token_principal")


async def test_a_later_reader_is_sent_what_lives_and_what_runs(tmp_path: Path) -> None:
    """Sessions with their clients and last errors, what happened before, and the call that is being handled."""
    seen: list[dict[str, Any]] = []

    async def look(session: Session | None, arguments: dict[str, Any]) -> str:
        reader = Reader(tmp_path)
        seen[:] = [reader.next() for _ in range(arguments["events"])]
        reader.leave()
        raise LookupError

    app = watched(tmp_path, Server(look=look))
    client = Client(app)
    named = {"_meta": {"io.modelcontextprotocol/clientInfo": {"name": "shop", "version": "2"}}}
    held = {**(await client.send("sessions/create", named)).result["session"]}
    del held["expiresAt"]
    for number in (3, 4):
        with pytest.raises(LookupError):
            await client.tool("look", session=held, events=number)
    found = [(one["event"], one.get("client"), one.get("error")) for one in seen]
    assert found == [
        ("session", "shop 2", "LookupError"),
        ("created", None, None),
        ("call", "shop 2", "LookupError"),
        ("began", "shop 2", None),
    ]
    assert len({event["ref"] for event in seen}) == 1
    await app.services.stopping()


async def test_a_session_from_elsewhere_is_known_from_its_first_request(tmp_path: Path) -> None:
    """As after a restart: with its times, from its id."""
    held = await Client(sessions(Server())).create()
    app = watched(tmp_path)
    reader = Reader(tmp_path)
    await Client(app).tool(session=held)
    seen = await events(app, reader)
    assert [event["event"] for event in seen] == ["session", "began", "call"]
    assert (seen[0]["created_at"], seen[0]["expires_at"]) == (START, START + 7 * 24 * 3600)


async def test_a_creation_that_fails_is_sent_as_a_call(tmp_path: Path) -> None:
    app = watched(tmp_path, create_limit=1)
    client, reader = Client(app), Reader(tmp_path)
    await client.create()
    await client.send("sessions/create")
    assert [event["event"] for event in await events(app, reader)] == ["created", "call"]


async def test_a_body_that_is_not_a_message_is_sent_when_it_is_refused(tmp_path: Path) -> None:
    app = watched(tmp_path)
    reader = Reader(tmp_path)
    await call(app, http(), b"[")
    assert [(event["event"], event["ref"]) for event in await events(app, reader)] == [("refused", None)]


async def test_a_posted_response_is_not_a_call(tmp_path: Path) -> None:
    app = watched(tmp_path)
    client, reader = Client(app), Reader(tmp_path)
    await client.post({"jsonrpc": "2.0", "id": 1, "result": {}}, method="")
    assert [event["event"] for event in await events(app, reader)] == []


async def test_without_a_directory_requests_are_served_all_the_same(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The log says once why nobody can watch, here that its path is too long for a socket."""
    folder = tmp_path / ("long" * 30)
    client = Client(watched(folder))
    held = await client.create()
    assert len({(await client.tool(session=held)).result["content"] for _ in range(3)}) == 1
    (line,) = (record.message for record in caplog.records if "watched" in record.message)
    assert line.startswith(f"this worker cannot be watched at {folder}: AF_UNIX path too long")


@pytest.mark.parametrize("watch", ["", 7, True])
def test_it_needs_the_path_of_a_directory(watch: Any) -> None:
    with pytest.raises(ConfigurationError, match=r"watch=.* must be the path of a directory"):
        sessions(Server(), watch=watch)
