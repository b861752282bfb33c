"""What the log says once: why a handler got no session, and that a session's state is in another process."""

from __future__ import annotations

import logging
import os
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import anyio
import pytest
from apps import Server, sessions
from clients import DISCOVER, INITIALIZE, Client, Header, call, http

from mcp_sessions import TransportSessions, current_session
from mcp_sessions._server import current, logs

CLIENT_INFO = "io.modelcontextprotocol/clientInfo"
CAPABILITIES = "io.modelcontextprotocol/clientCapabilities"
JAR: Header = (b"cookie", b"mcp-session-ktef5ium=shared")
NAMED: dict[str, Any] = {"_meta": {CLIENT_INFO: {"name": "shop", "version": "2"}}}


@pytest.fixture(autouse=True)
def warned(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing was warned of before."""
    monkeypatch.setattr(logs, "_warned", set())


def lines(caplog: pytest.LogCaptureFixture, part: str = "has no session: ") -> list[str]:
    texts = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
    return [text for text in texts if part in text]


def asking(*, modern: bool = True, **options: Any) -> Client:
    return Client(sessions(Server(), **options), modern=modern)


@pytest.mark.parametrize(
    ("modern", "options", "headers", "words"),
    [
        (True, {}, [], ["sessions/create"]),
        (True, {}, [], ["keeps no cookies", "with_sessions", 'era="legacy"']),
        (True, {}, [(b"sec-fetch-site", b"cross-site")], ["page of another site", "with_sessions"]),
        (True, {"transport": "off"}, [], ["cookies are off", 'transport="auto"']),
        (True, {"keys": None}, [], ["keys die", 'keys="env:MCP_SESSIONS_KEYS"']),
        (True, {}, [JAR], ["cookie jar", 'cookie="shared"']),
        (False, {}, [], ["no Mcp-Session-Id", "with_sessions"]),
        (False, {}, [(b"mcp-session-id", b"theirs")], ["of its own", "stateless_http=True", "bridge=True"]),
        (False, {"transport": "off"}, [], ["header are off", 'transport="auto"']),
        (False, {"transport": TransportSessions(header=False, bridge=True)}, [], ["no Mcp-Session-Id"]),
    ],
)
async def test_the_log_says_who_has_no_session_and_why_and_what_mends_it(
    modern: bool, options: dict[str, Any], headers: list[Header], words: list[str], caplog: pytest.LogCaptureFixture
) -> None:
    capable: Any = {"experimental": {"sessions": {}}} if "sessions/create" in words else {}
    client = asking(modern=modern, **options)
    for _ in range(2):
        body = client.message("tools/call", {**(NAMED if modern else {}), "name": "asks", "arguments": {}})
        body["params"]["_meta"][CAPABILITIES] = capable
        answer = await client.post(body, (b"user-agent", b"agent/1"), *headers)
        assert answer.result["content"] is True
    (line,) = lines(caplog)
    assert line.startswith("'shop 2' " if modern else "'agent/1' ")
    assert all(word in line for word in words)


async def app_that_asks(scope: Any, receive: Any, send: Any) -> None:
    current_session()
    await Server()(scope, receive, send)


async def test_a_list_and_a_batch_have_none_by_design(caplog: pytest.LogCaptureFixture) -> None:
    client = Client(sessions(app_that_asks))
    await client.send("tools/list", session=await client.create())
    caplog.clear()
    await client.send("tools/list", session=await client.create())
    assert lines(caplog) == []  # the first one was said
    await Client(client.app, modern=False).post([client.message("ping")])
    assert ["batch" in line for line in lines(caplog)] == [True]


async def test_what_is_in_no_session_is_blamed_on_nobody(caplog: pytest.LogCaptureFixture) -> None:
    """A gateway asks in whatever it forwards: handshakes, our questions, notifications, replies, pings and streams."""
    app = sessions(app_that_asks)
    for modern in (True, False):
        client = Client(app, modern=modern)
        await client.send(DISCOVER if modern else "initialize", INITIALIZE)
        await client.create()
        await client.delete({"sessionId": "unknown"})
        await client.send("ping")
        await client.send("notifications/initialized", id=None)
        await client.post({"jsonrpc": "2.0", "id": 1, "result": {}})
        for method in ("GET", "DELETE"):
            await call(app, http(method))
    assert lines(caplog) == []


def refused_text(scope: Any) -> str:
    return str(current.session_required(scope))


async def test_where_no_middleware_saw_the_request(caplog: pytest.LogCaptureFixture) -> None:
    """Each place has its own reason and remedy: another path, another thread, and what is in no request at all."""
    for _ in range(2):
        assert "did not see the request as an MCP message; wrap" in refused_text({})
        assert "or this runs outside of any; wrap the application, and set path=" in refused_text(None)
        assert "outside of any" in await anyio.to_thread.run_sync(refused_text, None)
        with ThreadPoolExecutor(1) as pool:
            assert "lacks the context of the request; start it with anyio" in pool.submit(refused_text, None).result()
    assert [line.split(" has ")[0] for line in lines(caplog)] == ["a request", "a handler", "a handler"]


async def test_the_error_of_a_handler_has_the_same_reason_and_remedy(caplog: pytest.LogCaptureFixture) -> None:
    """A client's author sees what the operator sees; in a handshake, what any client may do."""

    async def app(scope: Any, receive: Any, send: Any) -> None:
        texts.append(refused_text(None))
        await Server()(scope, receive, send)

    texts: list[str] = []
    client = Client(sessions(app), modern=True)
    await client.tool("whoami")
    await client.send(DISCOVER)
    (line,) = lines(caplog)
    assert texts == [f"Session required: {line.partition('no session: ')[2]}", current.NEEDED]


async def test_each_reason_is_one_line_and_nothing_that_a_client_sends_is_kept(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Clients choose what they call themselves: the first one's name is in the line, cut, and in nothing else."""
    client = asking()
    for n in range(20):
        info = {"name": f"{n} " + "x" * 1000, "version": ""}
        await client.send("tools/call", {"name": "asks", "_meta": {CLIENT_INFO: info}}, (b"user-agent", b"%d" % n))
    (line,) = lines(caplog)
    assert len(line) < 300
    assert not any("x" * 10 in reason for reason in logs._warned)


async def cookie_session(client: Client) -> Header:
    return (await client.send(DISCOVER)).cookie


Begin = Callable[[Client], Awaitable[Header]]
ERAS: list[tuple[Begin, bool]] = [(Client.initialize, False), (cookie_session, True)]


async def refused_twice(client: Client, named: Header) -> None:
    for _ in range(2):
        answer = await client.tool("asks", named)
        assert (answer.status, answer.error["code"]) == (200 if client.modern else 404, -32043)


@pytest.mark.parametrize(("begin", "modern"), ERAS)
async def test_a_session_of_another_process_is_refused_and_never_empty(
    begin: Begin, modern: bool, caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    """Its state is in that process's memory: another worker's, or from before a restart. The log names `store=`."""
    caplog.set_level("INFO", "mcp_sessions")
    one, other, kept = asking(modern=modern), asking(modern=modern), asking(modern=modern, store=f"sqlite:{tmp_path}/s")
    named = await begin(one)
    assert (await one.tool("asks", named)).result["content"] is True
    for client in (other, kept):
        await refused_twice(client, named)
    await refused_twice(other, await begin(kept))
    assert "begun_in_another_process" in caplog.text
    assert len(lines(caplog, "refusing a session that another process began")) == 1


@pytest.mark.parametrize(("begin", "modern"), ERAS)
async def test_a_worker_that_is_forked_off_is_another_process(
    begin: Begin, modern: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As with Gunicorn's `--preload`, where workers begin with the same memory."""
    client = asking(modern=modern)
    named = await begin(client)
    monkeypatch.setattr(os, "getpid", lambda: 1)
    await refused_twice(client, named)
