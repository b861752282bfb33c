"""`leaks`: the search finds secrets in every form, and only its owner's bodies hold a session's credentials."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from apps import Server, sessions
from clients import SECRET, Answer, Client
from leaks import RECORDER

from mcp_sessions._tokens.keys import KeyRing


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


LEAKING = """
import logging, pytest, warnings
from mcp_sessions._tokens.keys import KeyRing
from mcp_sessions._tokens.jwt import Claims, Tokens

@pytest.mark.parametrize("act", {acts})
def test_leak(act):
    ring = KeyRing(["{secret}"])
    claims = Claims(kind="session", issuer="i", audience="a", jti="A" * 22, issued_at=1, expires_at=2)
    token = Tokens(issuer="i", audience="a").mint(ring, claims)
    exec(act)
"""
LEAKS = {
    "log": "logging.getLogger('mcp_sessions').info('%s', token)",
    "log of else": "logging.getLogger('else').error('session ' + token)",
    "warning": "warnings.warn(token.rsplit('.', 1)[1])",
}


def test_a_leak_fails_the_run(tmp_path: Path) -> None:
    """Though its tests pass, and in whichever process it was."""
    (tmp_path / "test_it.py").write_text(LEAKING.format(secret=SECRET, acts=[*LEAKS.values(), "ring"]), "utf-8")
    options = ["-q", "-n2", "-p", "leaks", "-p", "no:cacheprovider"]
    command = [sys.executable, "-m", "pytest", *options, "test_it.py"]
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parent)}
    run = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    assert f"{len(LEAKS) + 1} passed" in run.stdout, run.stdout + run.stderr
    assert run.returncode == 1
    assert [source for source in LEAKS if f"LEAK in {source}: " in run.stdout] == [*LEAKS]


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
