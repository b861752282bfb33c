"""A small MCP server with sessions, on a real socket, which is right but for the faults that it is made with.

It has both eras, keeps its sessions in a dictionary, and answers each request in a thread of its own.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import Any, Final

from clients import LEGACY, MODERN, SESSION_KEY

NOT_FOUND, INVALID, BROKEN, MISMATCH = -32043, -32602, -32603, -32020
OFFERS: Final = {"required": "never", "fork": True, "list": True}
VERSION_KEY, CAPABILITIES_KEY = (
    f"io.modelcontextprotocol/{name}" for name in ("protocolVersion", "clientCapabilities")
)

Reply = tuple[int, dict[str, str], bytes]
Answering = Callable[[str, Mapping[str, str], bytes], Reply]


def json_reply(message: object, status: int = 200) -> Reply:
    """A JSON body."""
    return status, {"content-type": "application/json"}, json.dumps(message).encode()


@contextmanager
def listening(answer: Answering) -> Iterator[str]:
    """The URL of a server that answers by a function of verb, headers (in lower case, with `:path`) and body."""

    class Handler(BaseHTTPRequestHandler):
        def _serve(self) -> None:
            body = self.rfile.read(int(self.headers.get("content-length", 0)))
            headers = {":path": self.path, **{name.lower(): value for name, value in self.headers.items()}}
            status, more, written = answer(self.command, headers, body)
            self.send_response(status)
            for name, value in more.items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(written)

        do_POST = do_DELETE = _serve  # noqa: N815  # as the library calls them

        def log_message(self, format: str, *args: Any) -> None:
            """Log nothing."""

    class Server(ThreadingHTTPServer):
        request_queue_size = 100  # or parallel connections wait for a second

    server = Server(("127.0.0.1", 0), Handler)
    thread = Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}/mcp"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


class Refused(Exception):
    """A request that is answered with an error."""

    def __init__(
        self, code: int, message: str = "no", data: dict[str, str] | None = None, *, status: int = 200
    ) -> None:
        super().__init__(message)
        self.status = status
        self.error = {"code": code, "message": message, **({"data": data} if data else {})}


@dataclass
class Faulty:
    """The server.

    Args:
        faults: The names of its faults, which the methods below look for.
        offers: Its settings of sessions, or None where it offers none.
    """

    faults: frozenset[str] = frozenset()
    offers: dict[str, Any] | None = field(default_factory=lambda: dict(OFFERS))
    live: dict[str, str | None] = field(default_factory=dict)  # by id: the root, for a fork
    given: list[str] = field(default_factory=list)
    shown: set[str] = field(default_factory=set)
    worn: bool = False

    def __call__(self, verb: str, headers: Mapping[str, str], body: bytes) -> Reply:
        message = json.loads(body) if body else {}
        if "id" not in message:
            return 202, {}, b""
        try:
            result = self._result(message["method"], message.get("params", {}), headers)
        except Refused as refused:
            return json_reply({"jsonrpc": "2.0", "id": message["id"], "error": refused.error}, refused.status)
        return json_reply({"jsonrpc": "2.0", "id": message["id"], "result": result})

    def _result(self, method: str, params: dict[str, Any], headers: Mapping[str, str]) -> dict[str, Any]:
        meta = params.get("_meta", {})
        modern = headers.get("mcp-protocol-version") == MODERN
        if method in {"initialize", "server/discover"}:
            return self._hello(modern)
        if modern and method.startswith("sessions/"):
            self._check_envelope(method, meta, headers)
        session = self._session(meta[SESSION_KEY], headers) if SESSION_KEY in meta else None
        if method.startswith("sessions/"):
            result: dict[str, Any] = getattr(self, method.replace("sessions/", "_"))(session, params)
            return result
        if session is not None and self._once("refused"):
            raise Refused(BROKEN)
        return {"tools": [], **self._echo(session)}

    def _hello(self, modern: bool) -> dict[str, Any]:
        self.shown.clear()
        self.worn = False
        offer: dict[str, Any] = {} if self.offers is None else {"experimental": {"sessions": self.offers}}
        if self.offers is not None and "advertised" not in self.faults:
            offer["sessions"] = {}
        return {"protocolVersion": MODERN if modern else LEGACY, "capabilities": {"tools": {}, **offer}}

    def _check_envelope(self, method: str, meta: dict[str, Any], headers: Mapping[str, str]) -> None:
        if CAPABILITIES_KEY not in meta and "envelope" not in self.faults:
            raise Refused(INVALID, status=400)
        if headers.get("mcp-method") != method and "wrong-method" not in self.faults:
            raise Refused(MISMATCH, status=400)

    def _session(self, metadata: dict[str, Any], headers: Mapping[str, str]) -> dict[str, Any]:
        session_id = metadata["sessionId"]
        if not isinstance(session_id, str) and "malformed" not in self.faults:
            raise Refused(INVALID)
        self._check_header(session_id, headers.get("mcp-session-id"))
        if "state" in metadata and self._once("state"):
            raise Refused(INVALID)
        if not self._is_live(str(session_id)) or (session_id in self.live and self.worn and self._once("worn-out")):
            raise self._not_found(session_id)
        return metadata

    def _check_header(self, session_id: object, header: str | None) -> None:
        contradicts = header not in {None, session_id} and "wrong-header" not in self.faults
        if contradicts or (header is not None and "mirrored" in self.faults):
            raise Refused(MISMATCH, status=400)

    def _is_live(self, session_id: str) -> bool:
        is_long = len(session_id) > 1000
        self.worn = self.worn or is_long
        lax = {
            "unknown": True,
            "forged": self._is_near(session_id),
            "oversized": is_long,
            "malformed": session_id == "7",
        }
        return session_id in self.live or any(lax[fault] for fault in lax if fault in self.faults)

    def _is_near(self, session_id: str) -> bool:
        return any(session_id[:9] == known[:9] for known in self.live)

    def _not_found(self, session_id: str) -> Refused:
        text = "nearly" if self._is_near(session_id) and "alike" in self.faults else "Session not found"
        return Refused(NOT_FOUND, text, None if "unnamed" in self.faults else {"sessionId": session_id})

    def _once(self, fault: str) -> bool:
        """Whether a fault shows now: at its first occasion in an era."""
        shows = fault in self.faults and fault not in self.shown
        self.shown.add(fault)
        return shows

    def _echo(self, session: dict[str, Any] | None) -> dict[str, Any]:
        if session is None:
            return {"_meta": {SESSION_KEY: {"sessionId": "?"}}} if "without" in self.faults else {}
        if "mute" in self.faults:
            return {}
        session_id = "rotated" if "use" in self.faults else session["sessionId"]
        if "parallel" in self.faults:
            session_id = next(iter(self.live))
        state = {"state": "sealed"} if self.faults & {"state", "stateful"} else {}
        return {"_meta": {SESSION_KEY: {"sessionId": session_id, **state}}}

    # --- about sessions ---

    def _create(self, session: dict[str, Any] | None, params: dict[str, Any]) -> dict[str, Any]:
        if session is not None and "create-within" not in self.faults:
            raise Refused(INVALID)
        if "full" in self.faults:
            raise Refused(-31029, status=429)
        return {"session": self._made(None)}

    def _made(self, root: str | None) -> dict[str, Any]:
        session_id = "the one" if "create" in self.faults else secrets.token_urlsafe(12)
        session_id = "always-this" if "unique" in self.faults else session_id
        self.live[session_id] = root
        self.given.append(session_id)
        made = {"sessionId": session_id, "expiresAt": "tomorrow" if "hint" in self.faults else "2026-07-28T12:00:00Z"}
        if "hintless" in self.faults:
            del made["expiresAt"]
        return made

    def _delete(self, session: dict[str, Any] | None, params: dict[str, Any]) -> dict[str, Any]:
        if session is None:
            return self._deleted_nothing()
        root = session["sessionId"]
        if "replay" not in self.faults:
            self.live.pop(root, None)
        if "survivor" in self.faults:
            self.live.clear()
        return {"deleted": True} if "delete" in self.faults else {}

    def _deleted_nothing(self) -> dict[str, Any]:
        if "delete-nothing" in self.faults:
            return {}
        raise Refused(INVALID)

    def _fork(self, session: dict[str, Any] | None, params: dict[str, Any]) -> dict[str, Any]:
        assert session is not None
        if "fork-none" in self.faults:
            return {}
        return {"session": session if "fork" in self.faults else self._made(session["sessionId"])}

    def _list(self, session: dict[str, Any] | None, params: dict[str, Any]) -> dict[str, Any]:
        if "list-anonymous" in self.faults:
            raise Refused(-31046)
        if "list-none" in self.faults:
            return {}
        return {"sessions": [{"ref": one if "listed" in self.faults else "ses_"} for one in self.live]}
