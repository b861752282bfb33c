"""The observed traffic: two servers that share nothing but their keys, and three clients that call both in turn."""

from __future__ import annotations

import os
import secrets
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from .programs import ROOT, Command, ask, free_port, running

SESSION_KEY = "io.modelcontextprotocol/session"
CALLS = 4  # of each client that succeed; one more fails
ARTICLES = ("shoes", "socks", "hat")
BOUGHT, FAILED, CREATED = "POST tools/call buy: in, out", "POST tools/call buy: failed, in, out", "POST sessions/create"
TURNS = sorted([*[BOUGHT] * CALLS, FAILED, CREATED])
"""What a tool is to show of each session: a line per request, with its status and both sides of a call."""


@contextmanager
def traffic(endpoint: str, headers: list[str]) -> Iterator[set[str]]:
    """Run the servers within the block, and yield the refs of the clients' sessions after all calls."""
    ports = [free_port(), free_port()]
    folders = [str(ROOT / "tests" / folder) for folder in ("", "support", "tools")]
    paths = os.pathsep.join([*folders, *filter(None, [os.environ.get("PYTHONPATH")])])
    keys = {"MCP_SESSIONS_KEYS": secrets.token_urlsafe(32), "PYTHONPATH": paths}
    with ExitStack() as stack:
        folder = Path(stack.enter_context(TemporaryDirectory()))
        for number, port in enumerate(ports):
            program = [sys.executable, "-m", "observe.shop", str(port), f"shop-{number}", endpoint, *headers]
            command = Command(program, keys)
            stack.enter_context(running(command, f"http://127.0.0.1:{port}/mcp", folder))
        held = [call(ports[0], "sessions/create")["session"] for _ in ARTICLES]
        refs: list[set[str]] = [set() for _ in held]
        for number in range(CALLS):
            for session, names, article in zip(held, refs, ARTICLES, strict=True):
                result = call(ports[number % 2], "tools/call", session, name="buy", arguments={"article": article})
                names.add(result["content"][0]["text"])
        for session in held:
            assert call(ports[0], "tools/call", session, name="buy", arguments={"article": "air"})["isError"]
        assert [len(names) for names in refs] == [1] * len(held), "a session went by two names"
        yield set().union(*refs)


def call(port: int, method: str, session: dict[str, Any] | None = None, **params: Any) -> Any:
    """Send one request as a client of the modern era, and return its result."""
    meta: dict[str, Any] = {
        "io.modelcontextprotocol/protocolVersion": "2026-07-28",
        "io.modelcontextprotocol/clientCapabilities": {},
        "io.modelcontextprotocol/clientInfo": {"name": "observer", "version": "1"},
    }
    if session is not None:
        meta[SESSION_KEY] = {"sessionId": session["sessionId"]}
    message = {"jsonrpc": "2.0", "id": 1, "method": method, "params": {**params, "_meta": meta}}
    headers = {"accept": "application/json, text/event-stream", "mcp-protocol-version": "2026-07-28"}
    named = {"mcp-name": params["name"]} if "name" in params else {}
    answer = ask(f"http://127.0.0.1:{port}/mcp", message, {**headers, **named, "mcp-method": method})
    assert "result" in answer, answer
    return answer["result"]
