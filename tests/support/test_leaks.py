"""`leaks` listens wherever secrets are made or could leave; only its owner's bodies hold a session's credentials."""

from __future__ import annotations

import pytest
from apps import Server, sessions
from clients import SECRET, Answer, Client
from leaks import RECORDER

from mcp_sessions import KeyRing


async def test_every_credential_and_text_is_recorded() -> None:
    """Session ids, states and keys are recorded wherever they are made, as are log lines and the `repr` of objects."""
    client = Client(sessions(Server()))
    held = (await client.tool("remember", session=await client.create(), a=1)).session
    assert held is not None
    assert {held["sessionId"].rsplit(".", 1)[1], held["state"].rsplit(".", 1)[1], SECRET} <= RECORDER.secrets
    await client.delete(held)
    await client.tool(session=held)
    signing = KeyRing([SECRET]).signing.signing
    assert signing.hex() in RECORDER.secrets
    sources = set(RECORDER.texts.values())
    assert {"log", "repr of claims", "repr of a key", "repr of a session", "repr of a message"} <= sources
    assert RECORDER.texts["<SessionMetadata>"] == "repr of what is named"


# --- two users -----------------------------------------------------------------------------------


@pytest.mark.parametrize("modern", [False, True])
@pytest.mark.parametrize("sse", [False, True])
async def test_no_body_but_the_owner_s_holds_a_session(modern: bool, sse: bool) -> None:
    """Whatever two users do with their sessions and each other's `ref`, each sees only their own credentials."""
    server = Server(sse=sse)
    app = sessions(server, principal=lambda scope: scope["user_name"], idle_timeout=60)
    users = {name: Client(app, modern=modern, user_name=name) for name in ("alice", "bob")}
    bodies: dict[str, list[bytes]] = {name: [] for name in users}
    secrets: dict[str, set[bytes]] = {name: set() for name in users}

    def keep(name: str, answer: Answer) -> Answer:
        bodies[name].append(answer.body + repr(answer.start).encode())
        found = answer.result if "result" in answer.json else {}
        for held in (found.get("session"), found.get("_meta", {}).get("io.modelcontextprotocol/session")):
            secrets[name] |= {held[key].rsplit(".", 1)[1].encode() for key in ("sessionId", "state") if held}
        return answer

    for name, client in users.items():
        session = keep(name, await client.send("sessions/create")).result["session"]
        held = {key: session[key] for key in ("sessionId", "state")}
        ref = keep(name, await client.tool(session=held)).result["content"]
        for method in ("tools/list", "ping", "initialize", "no/such"):
            keep(name, await client.send(method, session=held))
            keep(name, await client.send(method))
        for other, peer in users.items():
            keep(other, await peer.tool(session={"sessionId": ref}))
            keep(other, await peer.delete({"sessionId": ref}))
        keep(name, await client.delete(held))
        keep(name, await client.tool(session=held))
    for name, others in (("alice", "bob"), ("bob", "alice")):
        assert len(secrets[name]) >= 2
        assert not [secret for secret in secrets[name] for body in bodies[others] if secret in body]
        assert [secret for secret in secrets[name] for body in bodies[name] if secret in body]
