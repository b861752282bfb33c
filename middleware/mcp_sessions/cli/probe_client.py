"""One server over HTTP: bounded in requests, in time and in bytes, and never led elsewhere.

Nothing but the address that was typed is ever asked: no redirect is followed, no proxy and no cookie is used. Each
request has a connection of its own, so that several can be under way. What comes back is taken for what a stranger
wrote. Nothing here knows what a session is.

A client of one era, as far as a probe needs one: what it says, and what its server says of itself.

The legacy era begins with `initialize`, and carries whatever transport session the server names. The modern era begins
with nothing: every request carries the whole envelope, in `_meta` and in the headers.
Sources: MCP 2025-11-25 and 2026-07-28, Streamable HTTP and Lifecycle.
"""

from __future__ import annotations

import http.client
import json
import re
import ssl
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import count
from threading import Lock
from typing import Any, Final
from urllib.parse import SplitResult, urlsplit

from .._protocol.decision import CLIENT_CAPABILITIES_KEY, PROTOCOL_VERSION_KEY
from .._protocol.jsonrpc import SESSION_KEY
from .._protocol.sse import EventStream
from ..errors import ConfigurationError, MCPSessionsError

MAX_BYTES: Final = 1 << 20  # of one answer
PATIENCE: Final = 10.0  # seconds for one answer
REMEDY: Final = "the URL must be one of an MCP endpoint, as in https://host.example/mcp"
_PIECE: Final = 1 << 16


class Unanswered(MCPSessionsError):
    """There is no answer to a request. The message says why, and holds nothing that the server wrote."""


class Exhausted(MCPSessionsError):
    """The requests or the time that a probe may spend are spent."""


class Redirected(ConfigurationError):
    """The server sends its callers elsewhere, where nobody has asked to go."""


@dataclass(frozen=True)
class Answer:
    """What came back for one request.

    Args:
        status: HTTP status.
        headers: The headers, names in lower case.
        message: The JSON-RPC message that answers, or None where there is none.
    """

    status: int
    headers: Mapping[str, str]
    message: dict[str, Any] | None

    @property
    def result(self) -> dict[str, Any] | None:
        """The result of a success, or None."""
        result = None if self.message is None else self.message.get("result")
        return result if isinstance(result, dict) else None

    @property
    def error(self) -> dict[str, Any] | None:
        """The error, or None."""
        error = None if self.message is None else self.message.get("error")
        return error if isinstance(error, dict) else None

    @property
    def code(self) -> object:
        """The code of the error, or None."""
        return None if self.error is None else self.error.get("code")

    @property
    def refuses(self) -> bool:
        """Whether the request was refused, in whichever way."""
        return self.error is not None or self.status in range(400, 500)

    def __str__(self) -> str:
        """The answer in a few words, none of them the server's."""
        if self.error is not None:
            code = self.code
            what = f"error {code}" if isinstance(code, int) else "an error without a code"
        else:
            what = "a result" if self.result is not None else "no JSON-RPC answer"
        return f"HTTP {self.status}, {what}"


@dataclass
class Wire:
    """The way to a server.

    Args:
        url: Its MCP endpoint, as somebody typed it.
        bearer: An access token for it, or None.
        requests: How many may be sent.
        seconds: How long all of it may take.
        clock: Seconds, from anywhere.

    Raises:
        ConfigurationError: The URL is none that can be asked.
    """

    url: str
    bearer: str | None = None
    requests: int = 200
    seconds: float = 60.0
    clock: Callable[[], float] = time.monotonic
    spent: int = 0
    last: Answer | None = None
    _lock: Lock = field(default_factory=Lock)

    def __post_init__(self) -> None:
        self._parts = parts_of(self.url)
        self._ends = self.clock() + self.seconds

    def post(self, body: object, headers: Mapping[str, str], *, verb: str = "POST") -> Answer:
        """Send a message, and read the answer.

        Args:
            body: The message, or None for none.
            headers: Its headers, beside those of every request.
            verb: The HTTP method.

        Raises:
            Unanswered: There is none.
            Exhausted: No more may be sent.
            Redirected: The server sends its callers elsewhere.
        """
        left = self._take()
        connection = self._connection(left)
        try:
            data = None if body is None else json.dumps(body).encode()
            self._send(connection, verb, data, headers)
            return self._read(connection.getresponse(), body, self.clock() + left)
        except (OSError, http.client.HTTPException) as error:
            raise Unanswered(_why(error)) from None
        finally:
            connection.close()

    def _send(
        self, connection: http.client.HTTPConnection, verb: str, data: bytes | None, headers: Mapping[str, str]
    ) -> None:
        try:
            connection.request(verb, self._target, data, self._headers(headers))
        except OSError:  # before the next: a certificate that is refused is a ValueError, too
            raise
        except ValueError:
            raise Unanswered("the server's words cannot stand in a header") from None

    def _take(self) -> float:
        """Spend one request; the seconds that it may take."""
        with self._lock:
            left = self._ends - self.clock()
            if not (self.spent < self.requests and left > 0):
                raise Exhausted(f"stopped after {self.spent} requests: no more may be spent (--requests, --seconds)")
            self.spent += 1
        return min(left, PATIENCE)

    @property
    def _target(self) -> str:
        query = f"?{self._parts.query}" if self._parts.query else ""
        return f"{self._parts.path or '/'}{query}"

    def _connection(self, seconds: float) -> http.client.HTTPConnection:
        host, port = self._parts.hostname or "", self._parts.port
        if self._parts.scheme == "https":
            return http.client.HTTPSConnection(host, port, timeout=seconds, context=ssl.create_default_context())
        return http.client.HTTPConnection(host, port, timeout=seconds)

    def _headers(self, headers: Mapping[str, str]) -> dict[str, str]:
        usual = {"Content-Type": "application/json", "Accept": "application/json, text/event-stream"}
        token = {} if self.bearer is None else {"Authorization": f"Bearer {self.bearer}"}
        return {**usual, **token, **headers}

    def _read(self, response: http.client.HTTPResponse, body: object, ends: float) -> Answer:
        if response.status in range(300, 400):
            raise Redirected(f"the server answers HTTP {response.status}, a redirect: type the URL that you mean")
        headers = {name.lower(): value for name, value in response.getheaders()}
        asked = body.get("id") if isinstance(body, dict) else None
        is_stream = headers.get("content-type", "").startswith("text/event-stream")
        texts = _events(self._pieces(response, ends)) if is_stream else iter([b"".join(self._pieces(response, ends))])
        messages = (message for message in map(_message, texts) if message is not None)
        answer = Answer(response.status, headers, next((one for one in messages if _answers(one, asked)), None))
        self.last = answer
        return answer

    def _pieces(self, response: http.client.HTTPResponse, ends: float) -> Iterator[bytes]:
        size = 0
        while piece := response.read1(_PIECE):
            size += len(piece)
            if size > MAX_BYTES:
                raise Unanswered(f"an answer of more than {MAX_BYTES} bytes")
            yield piece
            if not self.clock() < ends:
                raise Unanswered("an answer that does not end")


def parts_of(url: str) -> SplitResult:
    """The parts of a URL that can be asked.

    Raises:
        ConfigurationError: It is no HTTP URL, or it holds a password.
    """
    try:
        parts = urlsplit(url)
        (parts.hostname or "").encode("idna")  # as it is looked up
        is_http = parts.scheme in {"http", "https"} and bool(parts.hostname) and parts.port != 0
    except ValueError:
        raise ConfigurationError(REMEDY) from None
    if not (is_http and url.isascii() and url.isprintable() and " " not in url):
        raise ConfigurationError(REMEDY)
    if parts.username is not None or parts.fragment:
        raise ConfigurationError("the URL must hold no user, password or fragment; name an access token with --token")
    return parts


def _events(pieces: Iterator[bytes]) -> Iterator[bytes]:
    stream = EventStream(max_event_bytes=MAX_BYTES)
    for piece in pieces:
        yield from (event.data for event in stream.feed(piece) if event.data is not None)


def _message(text: bytes) -> dict[str, Any] | None:
    try:
        message = json.loads(text)
    except (ValueError, RecursionError):
        return None
    return message if isinstance(message, dict) else None


def _answers(message: dict[str, Any], asked: object) -> bool:
    """Whether a message answers a request. What could not be read as one is refused with the id null, or none."""
    is_answer = "result" in message or "error" in message
    return is_answer and (message.get("id") == asked or ("error" in message and message.get("id") is None))


def _why(error: Exception) -> str:
    if isinstance(error, TimeoutError):
        return f"no answer within {PATIENCE:g} s"
    return f"the connection failed ({type(error).__name__})"


LEGACY: Final = "2025-11-25"
MODERN: Final = "2026-07-28"
UNUSUAL: Final = "(unusual)"
CLIENT: Final = {"name": "mcp-sessions probe", "version": "1"}
KNOWS: Final[dict[str, Any]] = {"experimental": {"sessions": {}}}
_VERSION: Final = re.compile(r"20\d\d-\d\d-\d\d", re.ASCII)
_HARMLESS: Final = {"tools": "tools/list", "prompts": "prompts/list", "resources": "resources/list"}


@dataclass
class Speech:
    """One era, spoken to one server.

    Args:
        wire: The way to it.
        modern: Which era.
        version: The protocol's version that is spoken.
        capabilities: What the server says of itself.
        transport: The transport session that it named, or None.
        names_transport: Whether it names one to clients that do not know sessions, and to those alone.
        unusual: Whether the server names a version that is none; it is neither repeated nor shown.
    """

    wire: Wire
    modern: bool
    version: str
    capabilities: Mapping[str, Any] = field(default_factory=dict)
    transport: str | None = None
    names_transport: bool = False
    unusual: bool = False
    _ids: Any = field(default_factory=lambda: count(1))

    @property
    def era(self) -> str:
        """Its name."""
        return "modern" if self.modern else "legacy"

    @property
    def shown(self) -> str:
        """The version for people, which is never anything else that a server wrote."""
        return UNUSUAL if self.unusual else self.version

    @property
    def harmless(self) -> str:
        """A method that the server has and that changes nothing."""
        usual = "server/discover" if self.modern else "ping"
        return next((method for name, method in _HARMLESS.items() if name in self.capabilities), usual)

    @property
    def settings(self) -> dict[str, Any] | None:
        """What the server says of sessions under `experimental`, or None where it says nothing there."""
        experimental = self.capabilities.get("experimental")
        said = experimental.get("sessions") if isinstance(experimental, dict) else None
        return said if isinstance(said, dict) else None

    def ask(
        self,
        method: str,
        params: Mapping[str, Any] | None = None,
        *,
        session: object = None,
        headers: Mapping[str, str] | None = None,
        envelope: bool = True,
    ) -> Answer:
        """Send a request.

        Args:
            method: What is asked.
            params: `params` without `_meta`.
            session: What stands as the session in `_meta`; None for nothing.
            headers: Headers beside, or instead of, the era's own.
            envelope: Whether the modern era's envelope is whole.

        Raises:
            Unanswered: There is no answer.
            Exhausted: No more may be sent.
        """
        meta: dict[str, Any] = {}
        if self.modern:
            meta[PROTOCOL_VERSION_KEY] = self.version
        if self.modern and envelope:
            meta[CLIENT_CAPABILITIES_KEY] = KNOWS
        if session is not None:
            meta[SESSION_KEY] = session
        said = {**(params or {}), **({"_meta": meta} if meta else {})}
        body = {"jsonrpc": "2.0", "id": next(self._ids), "method": method, **({"params": said} if said else {})}
        return self.wire.post(body, {**self.headers(method), **(headers or {})})

    def headers(self, method: str) -> dict[str, str]:
        """The era's own headers for a method."""
        about = {"Mcp-Method": method} if self.modern else {}
        named = {} if self.transport is None else {"Mcp-Session-Id": self.transport}
        return {"MCP-Protocol-Version": self.version, **about, **named}


def modern(wire: Wire) -> Speech | None:
    """The modern era, or None where the server does not speak it."""
    speech = Speech(wire, modern=True, version=MODERN)
    result = speech.ask("server/discover").result
    if result is None or not isinstance(result.get("capabilities"), dict):
        return None
    speech.capabilities = result["capabilities"]
    return speech


def legacy(wire: Wire) -> Speech | None:
    """The legacy era, shaken hands in, or None where the server does not speak it."""
    speech = Speech(wire, modern=False, version=LEGACY)
    answer = speech.ask("initialize", _hello(KNOWS))
    if answer.result is None or not isinstance(answer.result.get("capabilities"), dict):
        return None
    speech.capabilities = answer.result["capabilities"]
    named = answer.result.get("protocolVersion", LEGACY)
    speech.unusual = not (isinstance(named, str) and _VERSION.fullmatch(named))
    speech.version = LEGACY if speech.unusual else named
    speech.transport = answer.headers.get("mcp-session-id")
    speech.names_transport = speech.transport is None and _names_transport(speech)
    wire.post({"jsonrpc": "2.0", "method": "notifications/initialized"}, speech.headers(""))
    return speech


def _hello(capabilities: dict[str, Any]) -> dict[str, Any]:
    return {"protocolVersion": LEGACY, "capabilities": capabilities, "clientInfo": CLIENT}


def _names_transport(speech: Speech) -> bool:
    """Whether a client that knows nothing of sessions is given one in the header; it is ended at once."""
    named = speech.ask("initialize", _hello({})).headers.get("mcp-session-id")
    if named is None:
        return False
    speech.wire.post(None, {**speech.headers(""), "Mcp-Session-Id": named}, verb="DELETE")
    return True
