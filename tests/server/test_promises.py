"""Sentences of `docs/security.md` and `docs/concepts.md` on all dialects, times, and their commands."""

import logging
import os
import re
import secrets
import subprocess
import sys
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import pytest
from apps import Server, sessions
from clients import DISCOVER, SECRET, START, Client, Clock, by, call, http, user_of
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from pages import DOCS
from recorded import process_wide
from sep1364 import Speaker
from stateful import Stateful

from mcp_sessions import KeyRing, Principal, Session
from mcp_sessions._errors import SessionNotFound
from mcp_sessions._session.claims import SESSION, Claims
from mcp_sessions._tokens.jwt import Tokens
from mcp_sessions._tokens.keyfile import key_source
from mcp_sessions.dialects import SEP1364Create
from mcp_sessions.stores import MemoryStore, SQLiteStore
from mcp_sessions.telemetry import SessionMetrics

SECURITY = (DOCS / "security.md").read_text("utf-8")
ANN = by("ann")
HOUR = 3600


async def by_draft(client: Client) -> list[str]:
    """Use a session of the draft, and return its credentials."""
    held = await client.create(ANN)
    answer = await client.tool("remember", ANN, session=held, color="the-value")
    assert answer.session is not None
    forged = {"sessionId": held["sessionId"][:-4] + "AAAA"}
    await client.tool("whoami", ANN, session=forged)
    await client.tool("whoami", by("bob"), session=held)
    await client.send("sessions/delete", None, ANN, session=held)
    await client.tool("whoami", ANN, session=held)
    return [held["sessionId"], forged["sessionId"], answer.session["state"]]


async def by_header(client: Client) -> list[str]:
    """Use a session that a header names."""
    legacy = Client(client.app, modern=False)
    named = (b"mcp-session-id", (await legacy.send("initialize", None, ANN)).headers[b"mcp-session-id"])
    await legacy.tool("remember", ANN, named, color="the-value")
    await legacy.tool("whoami", by("bob"), named)
    for _ in range(2):
        await call(client.app, http("DELETE", headers=[named, ANN]))
    return [named[1].decode()]


async def by_cookie(client: Client) -> list[str]:
    """Use a session that a cookie names, and get another."""
    cookie = (await client.send(DISCOVER, None, ANN)).cookie
    await client.tool("remember", ANN, cookie, color="the-value")
    await client.tool("leave", ANN, cookie)
    renewed = (await client.tool("whoami", ANN, cookie)).cookie
    return [header[1].decode().partition("=")[2] for header in (cookie, renewed)]


async def by_field(client: Client) -> list[str]:
    """Use a session of SEP-1364."""
    held: str = (await Speaker(client.app).say("sessions/create", {"capabilities": {}}, ANN)).result["sessionId"]
    await Speaker(client.app).tool("remember", held, ANN)
    await Speaker(client.app).tool("whoami", held, by("bob"))
    return [held]


def content(folder: Path) -> bytes:
    """Return what the files of a folder hold."""
    return b"".join(path.read_bytes() for path in folder.iterdir())


USES = {"draft": by_draft, "header": by_header, "cookie": by_cookie, "field": by_field, "bridge": by_header}


@pytest.mark.parametrize("anyio_backend", ["asyncio"])
@pytest.mark.parametrize("dialect", USES)
async def test_no_record_and_no_store_holds_a_credential(
    dialect: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Neither logs at any level, spans, metrics nor the files of a store; nor the id of the server's own session."""
    caplog.set_level(logging.DEBUG)
    reader, store = InMemoryMetricReader(), SQLiteStore(tmp_path / "sessions.db")
    server: Any = Stateful(names="the-server-s-own-") if dialect == "bridge" else Server()
    options = {"dialects": [SEP1364Create()]} if dialect == "field" else {"bridge": dialect == "bridge"}
    metrics = SessionMetrics(MeterProvider([reader]))
    app = sessions(server, store=store, tracked=True, principal=user_of, metrics=metrics, **options)
    with process_wide().recording() as spans:
        credentials = [*await USES[dialect](Client(app)), SECRET, "the-server-s-own-"]
    kept = content(tmp_path)
    await store.close()
    written = [*map(repr, (vars(record) for record in caplog.records)), caplog.text]
    written += [span.to_json() for span in spans]
    measured = reader.get_metrics_data()
    assert measured is not None
    written.append(measured.to_json())
    assert b"ses_" in kept
    assert spans
    for secret in credentials:
        assert len(secret) > 8
        assert secret.encode() not in kept
        assert not [text for text in written if secret in text]


@pytest.mark.parametrize("name", ["io.modelcontextprotocol/conversationId", "openai/session", "vscode.conversationId"])
async def test_a_hosts_conversation_id_selects_no_data(name: str) -> None:
    """And satisfies no policy: it is a label that anyone can send."""
    meta = {"_meta": {name: "chat-1", "baggage": "session.id=chat-1"}}
    client = Client(sessions(Server()))
    held = await client.create()
    await client.tool("remember", session=held, color="red")
    params = {"name": "whoami", "arguments": {}, **meta}
    assert (await client.send("tools/call", params)).result["content"] == "nobody"
    strict = Client(sessions(Server(), require="always"))
    assert (await strict.send("tools/call", params)).error["code"] == -31044


@pytest.mark.parametrize("anyio_backend", ["asyncio"])
@pytest.mark.parametrize(("tracked", "lives"), [(True, False), (False, True)])
async def test_a_long_call_counts_as_idle_time_in_a_tracked_session(tracked: bool, lives: bool) -> None:
    """It is counted from the beginning of the call; where the client carries the state, from the answer."""
    clock = Clock()

    async def work(session: Session | None, arguments: dict[str, Any]) -> str:
        clock.now += 5 * HOUR
        return "done"

    client = Client(sessions(Server(work=work), clock=clock, idle_timeout=6 * HOUR, tracked=tracked))
    answer = await client.tool("work", session=await client.create())
    clock.now += 2 * HOUR
    assert ("result" in (await client.tool(session=answer.session)).json) is lives


@pytest.mark.parametrize("anyio_backend", ["asyncio"])
@pytest.mark.parametrize(("seconds", "same"), [(24 * HOUR - 1, True), (24 * HOUR + 120, False)])
async def test_a_session_of_a_principal_lives_a_day_without_a_request(seconds: int, same: bool) -> None:
    clock = Clock()
    client = Client(sessions(Server(), clock=clock, principal=user_of, **{"transport.per_user": True}))
    first = (await client.tool("whoami", ANN)).result["content"]
    clock.now += seconds
    assert ((await client.tool("whoami", ANN)).result["content"] == first) is same


# --- what the pages say is not prevented ---


async def test_replayed_request_runs_again() -> None:
    server = Server()
    client = Client(sessions(server))
    held = await client.create()
    assert [(await client.tool("count", session=held)).result["content"] for _ in range(2)] == [1, 1]


async def test_last_state_that_a_client_keeps_wins() -> None:
    """Two calls from one state make two states; the client keeps one, and an older one can come back."""
    client = Client(sessions(Server()))
    held = await client.create()
    red, blue = [await client.tool("remember", session=held, **{color: 1}) for color in ("red", "blue")]
    assert red.session is not None
    assert [answer.result["content"] for answer in (red, blue)] == [{"red": 1}, {"blue": 1}]
    assert (await client.tool("remember", session=red.session)).result["content"] == {"red": 1}


async def test_deleted_session_works_after_memory_is_lost() -> None:
    client = Client(sessions(Server(), store=MemoryStore(clock=Clock())))
    held = await client.create()
    await client.delete(held)
    assert "error" in (await client.tool(session=held)).json
    restarted = Client(sessions(Server(), store=MemoryStore(clock=Clock())))
    assert "result" in (await restarted.tool(session=held)).json


async def test_running_tool_is_not_interrupted() -> None:
    """Its session ends meanwhile, and it runs to its end."""
    begun, ended, done = anyio.Event(), anyio.Event(), list[str]()

    async def work(session: Session | None, arguments: dict[str, Any]) -> None:
        begun.set()
        await ended.wait()
        done.append("done")

    client = Client(sessions(Server(work=work)))
    held = await client.create()
    with anyio.fail_after(30):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(partial(client.tool, "work", session=held))
            await begun.wait()
            await client.delete(held)
            ended.set()
    assert done == ["done"]


def commands(heading: str) -> list[str]:
    """Return the commands of the console block, or of the text in a line, after a heading of the page."""
    part = SECURITY.partition(f"\n{heading}\n")[2]
    return [line[2:] for line in part.partition("```console\n")[2].partition("```")[0].splitlines()]


def run(command: str, folder: Path) -> None:
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    environment = {**os.environ, "PATH": path}
    subprocess.run(["bash", "-ec", command], cwd=folder, env=environment, check=True, timeout=60)


def test_the_page_s_commands_rotate_keys(tmp_path: Path) -> None:
    """In each phase every worker verifies what any worker of this phase or its neighbours signs; then the old ends."""
    folder = tmp_path / "keys-of-a-server"
    folder.mkdir(mode=0o700)
    (keygen,) = commands("## Keys")
    run(keygen, folder)
    tokens = Tokens(issuer="i", audience="a")

    def ring() -> KeyRing:
        return key_source(f"file:{folder / 'keys'}")(0)

    def mint(ring: KeyRing) -> str:
        of: dict[str, Any] = {"issuer": "i", "audience": "a", "jti": secrets.token_urlsafe(16), "kind": SESSION}
        return tokens.mint(ring, Claims(issued_at=START, expires_at=START + 60, **of))

    def verifies(ring: KeyRing, token: str) -> bool:
        try:
            tokens.verify(ring, token, now=START + 1, principal=None, kind=SESSION)
        except SessionNotFound:
            return False
        return True

    rings = [ring()]
    for command in commands("### Rotation"):
        run(command, folder)
        rings.append(ring())
    before, _, one, two, three = rings
    of = {name: mint(each) for name, each in {"before": before, "one": one, "two": two, "three": three}.items()}
    assert before.signing.kid == one.signing.kid != two.signing.kid == three.signing.kid
    assert verifies(one, of["two"])
    assert verifies(two, of["one"])
    assert not verifies(three, of["before"])
    assert verifies(three, of["two"])
    assert {path.name: path.stat().st_mode & 0o777 for path in folder.iterdir()} == {"keys": 0o600}


def test_the_page_s_command_replaces_a_compromised_key(tmp_path: Path) -> None:
    folder = tmp_path / "keys-of-a-server"
    folder.mkdir(mode=0o700)
    run(commands("## Keys")[0], folder)
    before = key_source(f"file:{folder / 'keys'}")(0)
    (command,) = re.findall(r"`(cp -p keys new && .*)`", SECURITY)
    run(command, folder)
    after = key_source(f"file:{folder / 'keys'}")(0)
    assert {key.kid for key in before}.isdisjoint({key.kid for key in after})
    assert before.subjects(Principal(subject="ann")) != after.subjects(Principal(subject="ann"))
