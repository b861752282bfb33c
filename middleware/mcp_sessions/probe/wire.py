"""One server over HTTP: bounded in requests, in time and in bytes, and never led elsewhere.

Nothing but the address that was typed is ever asked: no redirect is followed, no proxy and no cookie is used. Each
request has a connection of its own, so that several can be under way. What comes back is taken for what a stranger
wrote. Nothing here knows what a session is.
"""

from __future__ import annotations

import http.client
import json
import ssl
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from threading import Lock
from typing import Any, Final
from urllib.parse import SplitResult, urlsplit

from ..errors import ConfigurationError, MCPSessionsError
from ..sse import EventStream

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
