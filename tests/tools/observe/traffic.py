"""The observed traffic: two replicas of four kinds of server, and a client of each kind that calls both in turn."""

from __future__ import annotations

import json
import os
import secrets
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from subprocess import PIPE
from tempfile import TemporaryFile
from typing import Any

from .programs import PATIENCE, ask, module

SESSION_KEY = "io.modelcontextprotocol/session"
USERS = ("alice", "bob", "carol", "dave", "erin")
ONE_TRACE = (
    "one trace a session"  # the server whose sessions are one trace each, and so one turn, that of their creation
)
BASKET = ("hat", "socks", "shoes", "scarf", "air")  # each client's; of air there is none


@dataclass
class Visit:
    """A client of one kind of server, its session, and what a tool is to show of it."""

    urls: list[str]  # of the replicas
    user: str
    session: dict[str, Any] = field(default_factory=dict)
    ref: str = ""
    turns: list[str] = field(default_factory=list)

    def run(self) -> None:
        """Create a session, and call the replicas in turns."""
        self.session = self.send("sessions/create")["session"]
        self.turns.append(turn("POST sessions/create", "sessions/create", "success"))
        for number, article in enumerate(BASKET):
            self.buy(article, number)

    def buy(self, article: str, number: int = 0, user: str | None = None) -> None:
        """Call a tool, which answers with the ref of the session; a refusal is not an answer of the tool."""
        given = {"article": article}
        result = self.send("tools/call", number, user, name="buy", arguments=given)
        answer = json.dumps(result) if "content" in result else "refused: token_principal"
        failed = result.get("isError", True)
        self.turns.append(turn("POST tools/call buy", json.dumps(given), answer, failed=failed))
        if not failed:
            text = result["content"][0]["text"]
            assert self.ref in ("", text), "a session went by two names"
            self.ref = text

    def end(self) -> None:
        """Delete the session."""
        self.send("sessions/delete")
        self.turns.append(turn("POST sessions/delete", "sessions/delete", "success"))

    def send(self, method: str, number: int = 0, user: str | None = None, **params: Any) -> Any:
        """Send one request as a client of the modern era, and return its result, or its error."""
        meta: dict[str, Any] = {
            "io.modelcontextprotocol/protocolVersion": "2026-07-28",
            "io.modelcontextprotocol/clientCapabilities": {},
            "io.modelcontextprotocol/clientInfo": {"name": "observer", "version": "1"},
        }
        if self.session:
            meta[SESSION_KEY] = {"sessionId": self.session["sessionId"]}
        message = {"jsonrpc": "2.0", "id": 1, "method": method, "params": {**params, "_meta": meta}}
        headers = {"accept": "application/json, text/event-stream", "mcp-protocol-version": "2026-07-28"}
        named = {"mcp-name": params["name"]} if "name" in params else {}
        url = self.urls[number % len(self.urls)]
        answer = ask(url, message, {**headers, **named, "mcp-method": method, "x-user": user or self.user})
        return answer.get("result", answer.get("error"))


def turn(name: str, given: str | None, answer: str | None, *, failed: bool = False) -> str:
    """Return a request in a line: its name and status, and both sides, of a call the article and the answer's text."""
    sides = [shown(given, "article"), shown(answer, "content", 0, "text")]
    return ": ".join([name, *["failed"] * failed, *filter(None, sides)])


def shown(side: str | None, *path: str | int) -> str | None:
    """Return a member of a side that is a JSON object, or the side's text, which some tools quote."""
    try:
        found = json.loads(side or "")
    except ValueError:
        return side
    for step in path if isinstance(found, dict) else ():
        found = found[step]
    return str(found)


def traffic(endpoint: str, headers: list[str]) -> list[Visit]:
    """Let a client of each kind call both replicas, and return the visits once all spans are sent."""
    keys = {"MCP_SESSIONS_KEYS": secrets.token_urlsafe(32)}
    with replica("replica-0", endpoint, headers, keys) as first, replica("replica-1", endpoint, headers, keys) as other:
        visits = {kind: Visit([first[kind], other[kind]], user) for kind, user in zip(first, USERS, strict=True)}
        for visit in visits.values():
            visit.run()
        visits[ONE_TRACE].turns = [turn("sessions/create", "sessions/create", "success")]
        stolen, *_, ended = visits.values()
        stolen.buy("piano")
        stolen.buy("hat", user="mallory")
        ended.end()
    return list(visits.values())


@contextmanager
def replica(name: str, endpoint: str, headers: list[str], environment: dict[str, str]) -> Iterator[dict[str, str]]:
    """Run a replica of the shop within the block, and yield the URL of each kind of server."""
    shop = module(sys.executable, "shop", name, endpoint, *headers)
    environment = {**os.environ, **environment, **shop.environment}
    with (
        TemporaryFile("w+") as log,
        subprocess.Popen(shop.line, env=environment, stdin=PIPE, stdout=PIPE, stderr=log, text=True) as process,
    ):
        assert process.stdout is not None
        started = process.stdout.readline()
        if not started:
            log.seek(0)
            raise SystemExit(f"{name} did not start:\n{log.read()[-4000:]}")
        yield json.loads(started)
        process.communicate(timeout=PATIENCE)
        assert process.returncode == 0
