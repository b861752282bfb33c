"""What a probe sends to one server, and reads from it: HTTP with bounds, and a client for each era.

Only the address that was typed is asked, without redirects, proxies and cookies. Whatever comes back is untrusted.
Sources: MCP 2025-11-25 and 2026-07-28, Streamable HTTP and Lifecycle.
"""

from __future__ import annotations

import json
import re
import ssl
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from http.client import HTTPConnection, HTTPException, HTTPResponse, HTTPSConnection
from itertools import count
from queue import Empty, SimpleQueue
from socket import SHUT_RDWR
from threading import Lock, Thread
from typing import Any, Final, Literal
from urllib.parse import SplitResult, urlsplit

from .._errors import ConfigurationError, MCPSessionsError
from .._protocol.members import CLIENT_CAPABILITIES_KEY, PROTOCOL_VERSION_KEY, SESSION_KEY
from .._protocol.sse import EventStream

MAX_BYTES: Final = 1 << 20  # of one answer
PATIENCE: Final = 10.0  # seconds for one answer
LEGACY: Final = "2025-11-25"
MODERN: Final = "2026-07-28"

_PIECE: Final = 1 << 16
_NOT_AN_ENDPOINT: Final = "the URL must be that of an MCP endpoint, as in https://host.example/mcp"
_CAPABILITIES: Final[dict[str, Any]] = {"experimental": {"sessions": {}}}
_VERSION: Final = re.compile(r"20\d\d-\d\d-\d\d", re.ASCII)


class Unanswered(MCPSessionsError):
    """A request has no answer. The message says why, and holds nothing that the server wrote."""


class Exhausted(MCPSessionsError):
    """The requests or the time that a probe may spend are spent."""


@dataclass(frozen=True)
class Answer:
    status: int
    headers: Mapping[str, str] = field(repr=False)  # names in lower case
    message: Mapping[str, Any] = field(repr=False)  # of JSON-RPC; empty where there is none

    @property
    def result(self) -> dict[str, Any] | None:
        result = self.message.get("result")
        return result if isinstance(result, dict) else None

    @property
    def error(self) -> dict[str, Any] | None:
        error = self.message.get("error")
        return error if isinstance(error, dict) else None

    @property
    def code(self) -> object:
        return None if self.error is None else self.error.get("code")

    @property
    def refuses(self) -> bool:
        return self.error is not None or self.status in range(400, 500)

    def __str__(self) -> str:
        if self.error is None:
            what = "a result" if self.result is not None else "no JSON-RPC answer"
        else:
            what = f"error {self.code}" if isinstance(self.code, int) else "an error without a code"
        return f"HTTP {self.status}, {what}"


@dataclass
class Wire:
    """HTTP to one server, with bounds on requests, time and bytes."""

    url: str  # of the MCP endpoint, as it was typed
    bearer: str | None = field(default=None, repr=False)  # an access token for it
    requests: int = 200  # at most
    seconds: float = 60.0  # for the whole probe
    clock: Callable[[], float] = time.monotonic
    spent: int = 0
    last: Answer | None = None
    _lock: Lock = field(default_factory=Lock)

    def __post_init__(self) -> None:
        self._parts = _parts_of(self.url)  # or ConfigurationError
        self._deadline = self.clock() + self.seconds

    def send(self, message: Mapping[str, Any] | None, headers: Mapping[str, str], *, verb: str = "POST") -> Answer:
        """Send a message, with these headers beside those of every request, and read the answer.

        Raises `Unanswered`, `Exhausted`, or `ConfigurationError` where the server redirects.
        """
        seconds = self._spend()
        address = (self._parts.hostname or "", self._parts.port)
        if self._parts.scheme == "https":
            context = ssl.create_default_context()
            connection: HTTPConnection = HTTPSConnection(*address, timeout=seconds, context=context)
        else:
            connection = HTTPConnection(*address, timeout=seconds)
        body = None if message is None else json.dumps(message).encode()
        usual = {"Content-Type": "application/json", "Accept": "application/json, text/event-stream"}
        token = {} if self.bearer is None else {"Authorization": f"Bearer {self.bearer}"}
        target = (self._parts.path or "/") + (f"?{self._parts.query}" if self._parts.query else "")
        deadline = self.clock() + seconds

        def exchange() -> Answer:
            try:
                connection.request(verb, target, body, {**usual, **token, **headers})
            except OSError:  # before the next: a certificate that is refused is a ValueError, too
                raise
            except ValueError:
                raise Unanswered("the server's text cannot be sent in a header") from None
            with connection.getresponse() as response:
                return self._read(response, (message or {}).get("id"), deadline)

        try:
            self.last = answer = _within(seconds, exchange, connection)
        except TimeoutError:
            raise Unanswered(f"no answer within {PATIENCE:g} s") from None
        except (OSError, HTTPException) as error:
            raise Unanswered(f"the connection failed ({type(error).__name__})") from None
        return answer

    def _spend(self) -> float:
        with self._lock:
            left = self._deadline - self.clock()
            if not (self.spent < self.requests and left > 0):
                raise Exhausted(f"stopped after {self.spent} requests, at the limit (--requests, --seconds)")
            self.spent += 1
        return min(left, PATIENCE)

    def _read(self, response: HTTPResponse, request_id: object, deadline: float) -> Answer:
        if response.status in range(300, 400):
            raise ConfigurationError(
                f"the server answers HTTP {response.status}, a redirect: give the URL of the endpoint"
            )
        headers = {name.lower(): value for name, value in response.getheaders()}
        pieces = self._pieces(response, deadline)
        is_stream = headers.get("content-type", "").startswith("text/event-stream")
        texts = _events(pieces) if is_stream else iter([b"".join(pieces)])
        answers = (message for message in map(_parsed, texts) if _answers(message, request_id))
        return Answer(response.status, headers, next(answers, {}))

    def _pieces(self, response: HTTPResponse, deadline: float) -> Iterator[bytes]:
        size = 0
        while piece := response.read1(_PIECE):
            size += len(piece)
            if size > MAX_BYTES:
                raise Unanswered(f"an answer of more than {MAX_BYTES} bytes")
            yield piece
            if not self.clock() < deadline:
                raise Unanswered("an answer that does not end")


def _within(seconds: float, exchange: Callable[[], Answer], connection: HTTPConnection) -> Answer:
    """Return what an exchange does, or raise `TimeoutError`: a socket's own timeout begins anew with every byte."""
    outcome: SimpleQueue[Answer | BaseException] = SimpleQueue()

    def run() -> None:
        found: Answer | BaseException
        try:
            found = exchange()
        except BaseException as error:  # noqa: BLE001  # raised again below
            found = error
        connection.close()
        outcome.put(found)

    Thread(target=run, daemon=True).start()
    try:
        found = outcome.get(timeout=seconds)
    except Empty:
        with suppress(OSError, AttributeError):  # there may be no socket yet
            connection.sock.shutdown(SHUT_RDWR)
        raise TimeoutError from None
    if isinstance(found, BaseException):
        raise found
    return found


def _parts_of(url: str) -> SplitResult:
    try:
        parts = urlsplit(url)
        (parts.hostname or "").encode("idna")  # as it is looked up
        is_http = parts.scheme in {"http", "https"} and bool(parts.hostname) and parts.port != 0
    except ValueError:
        raise ConfigurationError(_NOT_AN_ENDPOINT) from None
    if not (is_http and url.isascii() and url.isprintable() and " " not in url):
        raise ConfigurationError(_NOT_AN_ENDPOINT)
    if parts.username is not None or parts.fragment:
        raise ConfigurationError("the URL must have no user, password or fragment; name an access token with --token")
    return parts


def _events(pieces: Iterator[bytes]) -> Iterator[bytes]:
    stream = EventStream(max_event_bytes=MAX_BYTES)
    for piece in pieces:
        yield from (event.data for event in stream.feed(piece) if event.data is not None)


def _parsed(text: bytes) -> dict[str, Any]:
    try:
        message = json.loads(text)
    except (ValueError, RecursionError):
        return {}
    return message if isinstance(message, dict) else {}


def _answers(message: dict[str, Any], request_id: object) -> bool:
    # What could not be read as a request is refused with the id null, or without an id.
    if message.get("id") == request_id:
        return "result" in message or "error" in message
    return "error" in message and message.get("id") is None


@dataclass
class ProbeClient:
    """A client of one server in one era."""

    wire: Wire
    era: Literal["legacy", "modern"]
    version: str  # of the protocol, as it is spoken
    shown_version: str  # for people: a date, or `(unusual)`, and nothing else that the server wrote
    capabilities: Mapping[str, Any] = field(default_factory=dict)  # the server's
    transport: str | None = field(default=None, repr=False)  # the transport session that the server named
    names_transport: bool = False  # to clients that do not know sessions, and to those alone
    _ids: Iterator[int] = field(default_factory=lambda: count(1))

    @property
    def settings(self) -> dict[str, Any] | None:
        experimental = self.capabilities.get("experimental")
        settings = experimental.get("sessions") if isinstance(experimental, dict) else None
        return settings if isinstance(settings, dict) else None

    def request(
        self,
        method: str,
        params: Mapping[str, Any] | None = None,
        *,
        session: object = None,
        headers: Mapping[str, str] | None = None,
        envelope: bool = True,
    ) -> Answer:
        """Send a request, with `_meta` and the era's headers added, and the modern era's envelope whole or not."""
        meta: dict[str, Any] = {}
        if self.era == "modern":
            meta[PROTOCOL_VERSION_KEY] = self.version
        if self.era == "modern" and envelope:
            meta[CLIENT_CAPABILITIES_KEY] = _CAPABILITIES
        if session is not None:
            meta[SESSION_KEY] = session
        params = {**(params or {}), **({"_meta": meta} if meta else {})}
        message = {"jsonrpc": "2.0", "id": next(self._ids), "method": method, **({"params": params} if params else {})}
        return self.wire.send(message, {**self.headers(method), **(headers or {})})

    def greet(self, method: str, params: Mapping[str, Any] | None = None) -> Answer | None:
        """Send the era's first request, and take the server's capabilities from the answer; None where it has none."""
        answer = self.request(method, params)
        capabilities = (answer.result or {}).get("capabilities")
        if not isinstance(capabilities, dict):
            return None
        self.capabilities = capabilities
        return answer

    def headers(self, method: str) -> dict[str, str]:
        about = {"Mcp-Method": method} if self.era == "modern" else {}
        named = {} if self.transport is None else {"Mcp-Session-Id": self.transport}
        return {"MCP-Protocol-Version": self.version, **about, **named}


def connect_modern(wire: Wire) -> ProbeClient | None:
    client = ProbeClient(wire, "modern", MODERN, MODERN)
    return None if client.greet("server/discover") is None else client


def connect_legacy(wire: Wire) -> ProbeClient | None:
    client = ProbeClient(wire, "legacy", LEGACY, LEGACY)
    info = {"name": "mcp-sessions probe", "version": "1"}
    params = {"protocolVersion": LEGACY, "capabilities": _CAPABILITIES, "clientInfo": info}
    answer = client.greet("initialize", params)
    if answer is None:
        return None
    version = (answer.result or {}).get("protocolVersion", LEGACY)
    if isinstance(version, str) and _VERSION.fullmatch(version):
        client.version = client.shown_version = version
    else:
        client.shown_version = "(unusual)"  # neither repeated nor shown
    client.transport = answer.headers.get("mcp-session-id")
    if client.transport is None:  # is there one for a client that does not know sessions? It is ended at once
        named = client.request("initialize", {**params, "capabilities": {}}).headers.get("mcp-session-id")
        if named is not None:
            client.names_transport = True
            wire.send(None, {**client.headers(""), "Mcp-Session-Id": named}, verb="DELETE")
    wire.send({"jsonrpc": "2.0", "method": "notifications/initialized"}, client.headers(""))
    return client
