"""What a principal is shown of its own sessions."""

from __future__ import annotations

from typing import Any

import pytest
from apps import Server, sessions
from clients import SECRET, SESSION_KEY, Client, Clock

from mcp_sessions._server import methods
from mcp_sessions.stores._memory import MemoryStore

NEW = "the secret that signs from now on, at least 32 bytes"


class Deployment:
    """A server with tracked sessions, and clients that are whoever they say."""

    def __init__(self) -> None:
        self.clock = Clock()
        self.options = {"tracked": True, "lifetime": 3600, "clock": self.clock, "store": MemoryStore(clock=self.clock)}

    def client(self, who: str | None = "alice", *, modern: bool = True, **options: Any) -> Client:
        """Somebody's client, on a worker of its own."""
        app = sessions(Server(), principal=lambda scope: scope.get("who"), **self.options, **options)
        return Client(app, modern=modern, who=who)


async def refs(client: Client) -> list[str]:
    shown: list[str] = []
    params: dict[str, str] = {}
    while True:
        page = (await client.send("sessions/list", params)).result
        shown += [session["ref"] for session in page["sessions"]]
        if "nextCursor" not in page:
            return shown
        params = {"cursor": page["nextCursor"]}


async def ref_of(client: Client, session: Any) -> str:
    return str((await client.tool(session=session)).result["content"])


@pytest.mark.parametrize("modern", [False, True])
async def test_sessions_are_shown_by_public_names_and_times(modern: bool) -> None:
    """Oldest first; when it was made, last seen and will end; never an id."""
    deployment = Deployment()
    alice = deployment.client(modern=modern)
    one = await alice.create()
    deployment.clock.now += 90
    other = await alice.create()
    ref = await ref_of(alice, one)
    answer = await alice.send("sessions/list")
    assert answer.result.get("resultType") == ("complete" if modern else None)
    shown = answer.result["sessions"]
    assert shown[0] == {
        "ref": ref,
        "createdAt": "2027-01-15T08:00:00Z",
        "lastSeenAt": "2027-01-15T08:01:30Z",
        "expiresAt": "2027-01-15T09:00:00Z",
    }
    assert shown[1]["ref"] == await ref_of(alice, other)
    assert b"sessionId" not in answer.body
    assert one["sessionId"].encode() not in answer.body


async def test_everybody_is_shown_their_own() -> None:
    """Whichever worker is asked, and under whichever key they were signed; servers of other audiences have others."""
    deployment = Deployment()
    alice, bob, rolled = deployment.client(), deployment.client("bob"), deployment.client(keys=[NEW, SECRET])
    bank = deployment.client(audience="bank")
    mine, theirs = await ref_of(alice, await alice.create()), await ref_of(bob, await bob.create())
    newer, banked = await ref_of(rolled, await rolled.create()), await ref_of(bank, await bank.create())
    assert await refs(alice) == [mine]
    assert sorted(await refs(rolled)) == sorted([mine, newer])
    assert [await refs(client) for client in (bob, bank, deployment.client("carol"))] == [[theirs], [banked], []]


async def test_the_session_that_asks_is_marked_and_echoed() -> None:
    alice = Deployment().client()
    own, other = await alice.create(), await alice.create()
    answer = await alice.send("sessions/list", session=own)
    by_ref = {shown["ref"]: shown.get("current") for shown in answer.result["sessions"]}
    assert by_ref == {await ref_of(alice, own): True, await ref_of(alice, other): None}
    assert answer.result["_meta"][SESSION_KEY]["sessionId"] == own["sessionId"]


async def test_lists_come_in_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each begins where the last one ended, also where that session has gone and a new one has come."""
    monkeypatch.setattr(methods, "PAGE", 2)
    deployment = Deployment()
    alice = deployment.client()
    made = []
    for _ in range(5):
        made.append(await alice.create())
        deployment.clock.now += 1
    names = [await ref_of(alice, session) for session in made]
    assert await refs(alice) == names
    first = (await alice.send("sessions/list")).result
    await alice.delete(made[1])
    rest = (await alice.send("sessions/list", {"cursor": first["nextCursor"]})).result
    assert [session["ref"] for session in rest["sessions"]] == names[2:4]
    foreign = await deployment.client("bob").send("sessions/list", {"cursor": first["nextCursor"]})
    assert foreign.result["sessions"] == []


@pytest.mark.parametrize("cursor", [7, "", "next", "MQ", "MSBz=", "LTEgc2Vz", ["MSBz"], True, "MSBz\u00e9", "_w"])
async def test_a_cursor_is_one_that_was_given_out(cursor: object) -> None:
    alice = Deployment().client()
    assert (await alice.send("sessions/list", {"cursor": cursor})).error["code"] == -32602
    assert "sessions" in (await alice.send("sessions/list", {"cursor": "MSBz"})).result
