"""The sessions of one connection: the one that each message goes in, and what its answer says of that session.

A request is repeated once, after two errors that mean that it did not run: session not found, and session required.
Source: the data-layer sessions draft, "Using Sessions" and "Schema"; MCP 2026-07-28.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from contextvars import Context, copy_context
from dataclasses import dataclass, field, replace
from typing import Any, Final, Literal, cast

import anyio
import msgspec
from anyio.abc import ObjectReceiveStream, ObjectSendStream, TaskGroup
from anyio.streams.memory import MemoryObjectReceiveStream, MemoryObjectSendStream

from .. import _errors
from .._protocol.jsonrpc import SESSION_KEY
from .._protocol.methods import CREATE, DELETE, DISCOVER, HANDSHAKES, SESSIONLESS
from . import _messages as messages
from ._session import (
    ClientError,
    ClientSession,
    NoAnswer,
    NotOffered,
    Refused,
    SessionMetadata,
    SessionNotFound,
)
from ._storage import StorageSync

OnNotFound = Literal["raise", "recreate"]

MAX_PENDING: Final = 10_000  # requests whose answers are awaited; SDK 1.x gives requests up without notice
OWN_ID: Final = "mcp-sessions-"  # how the ids of our own requests begin
CLOSED_ERRORS: Final = (anyio.BrokenResourceError, anyio.ClosedResourceError)


@dataclass(frozen=True)
class _Pending:
    """A request of the client, whose answer is awaited."""

    item: Any = field(repr=False)
    session: ClientSession | None
    session_id: str | None = field(default=None, repr=False)
    is_repeat: bool = False
    context: Context = field(default_factory=copy_context)


class SessionRouter:
    """Adds sessions to requests and removes them from results, between a transport's streams and the client's."""

    def __init__(
        self,
        streams: tuple[Any, Any],
        tasks: TaskGroup,  # where requests are repeated
        current: Callable[[], ClientSession | None],  # returns the session that the calling task chose
        storage: StorageSync,
        *,
        on_not_found: OnNotFound,
        timeout: float,  # seconds to wait for the answer to a request of our own
    ) -> None:
        self.offered: bool | None = None  # whether the server offers sessions; None until it has answered
        self.unnamed: set[ClientSession] = set()  # sessions without a name that are on the server
        self._read, self._write = streams
        self._tasks, self._current, self._storage = tasks, current, storage
        self._recreates, self._timeout = on_not_found == "recreate", timeout
        self._deliveries, deliveries = anyio.create_memory_object_stream[tuple[Context | None, Any]](0)
        self.client_reads = ClientReadStream(deliveries)
        self._extensions: dict[str, Any] = {}  # of the draft, that the server offers
        self._pending: OrderedDict[str, _Pending] = OrderedDict()
        self._own: dict[str, MemoryObjectSendStream[Any]] = {}  # where each request of our own awaits its answer
        self._own_count = 0
        self._open = True
        self._repeating: dict[str, anyio.CancelScope] = {}
        self._discovering = anyio.Lock()
        self._latest: Any = None
        self._client_info: dict[str, Any] = {}

    # --- towards the server, in the task of the caller ---

    async def send(self, item: Any) -> None:
        """Send a message of the client; raises `ClientError` where the chosen session cannot be used."""
        message = messages.body(item)
        if not (hasattr(message, "method") and hasattr(message, "id")):  # not a request
            if (cancelled := messages.cancelled_id(message)) is not None:
                self._pending.pop(cancelled, None)
                if cancelled in self._repeating:
                    self._repeating[cancelled].cancel()
            await self._write.send(item)
            return
        declares = self.offered is not False or message.method in HANDSHAKES
        self._latest = messages.declaring_sessions(item) if declares else item
        self._client_info = messages.client_info(message) or self._client_info
        about_sessions = message.method.startswith("sessions/") or SESSION_KEY in messages.meta(message)
        sessionless = about_sessions or message.method in SESSIONLESS
        await self._transmit(_Pending(self._latest, None if sessionless else self._current()))

    async def _transmit(self, request: _Pending) -> None:
        item = request.item
        if request.session is not None and await self._offers_sessions():
            metadata = await self._metadata_of(request.session)
            item = messages.in_session(item, metadata.for_request())
            request = replace(request, session_id=metadata.session_id)
        key = messages.key(messages.body(item))
        self._pending[key] = request
        if len(self._pending) > MAX_PENDING:
            self._pending.popitem(last=False)
        try:
            await self._write.send(item)
        except BaseException:
            self._pending.pop(key, None)
            raise

    async def _offers_sessions(self) -> bool:
        """Whether the server offers sessions; where the client did not ask, since it knew the version, we do."""
        if self.offered is None and messages.is_modern(messages.body(self._template())):
            async with self._discovering:
                if self.offered is None:  # another task may have asked meanwhile
                    with suppress(Refused):  # which does not say what the server offers: the next request asks again
                        result = await self._request(self._template(), DISCOVER, {})
                        self.offered, self._extensions = messages.offer(result)
        return self.offered is True

    def _template(self) -> Any:
        """Return the client's latest request, whose envelope and headers ours get."""
        if self._latest is None:
            raise NoAnswer("nothing was sent on this connection yet, so the server's protocol version is unknown")
        return self._latest

    async def _metadata_of(self, session: ClientSession) -> SessionMetadata:
        """Return what names a session, which is created where it is not yet; one of those who want that does it."""

        async def create() -> dict[str, Any]:
            params = {**session.params, "_meta": self._client_info} if self._client_info else session.params
            return await self._request(self._template(), CREATE, params)

        async with session.creating:
            return session.metadata or await self._create(session, create)

    async def _create(
        self, session: ClientSession, request: Callable[[], Awaitable[dict[str, Any]]]
    ) -> SessionMetadata:
        if session.ended:
            raise SessionNotFound("this session has ended; create another with new()")
        try:
            session.metadata = msgspec.convert((await request()).get("session"), SessionMetadata)
        except msgspec.ValidationError:
            raise NoAnswer("the answer holds no session") from None
        if session.name is None:
            self.unnamed.add(session)
        await self._storage.save(session.name, session.metadata)
        return session.metadata

    # --- towards the client, in the task that reads ---

    async def pump(self) -> None:
        """Read the transport to its end, and deliver to the client what is for it."""
        try:
            with suppress(*CLOSED_ERRORS):
                async for item in self._read:
                    context = getattr(self._read, "last_context", None)
                    if isinstance(item, Exception):
                        await self._deliver(item, context)
                    elif not self._answers_own(messages.body(item)):
                        await self._deliver(await self._received(item, context), context)
        finally:
            self._open = False
            self._deliveries.close()
            for waiting in self._own.values():
                waiting.close()

    async def _deliver(self, item: Any, context: Context | None) -> None:
        if item is not None:
            with suppress(*CLOSED_ERRORS):  # the client has left
                await self._deliveries.send((context, item))

    async def _received(self, item: Any, context: Context | None) -> Any | None:
        """Return what the client gets of a message from the server, or None if the request is sent again."""
        message = messages.body(item)
        if not messages.is_answer(message) or (request := self._pending.pop(messages.key(message), None)) is None:
            return item
        if hasattr(message, "error"):
            return await self._fail(request, item, message.error, context)
        return await self._succeed(request, item, message.result)

    async def _succeed(self, request: _Pending, item: Any, result: dict[str, Any]) -> Any:
        message = messages.body(request.item)
        if message.method in HANDSHAKES:
            self.offered, self._extensions = messages.offer(result)
            return item
        if self.offered is False:
            return item
        if request.session is not None and request.session_id is not None:
            await self._update(request.session, request.session_id, result)
        cacheable = message.method in messages.CACHEABLE and messages.is_modern(message)
        return messages.result_for_client(item, cacheable=cacheable, had_session=request.session_id is not None)

    async def _update(self, session: ClientSession, session_id: str, result: dict[str, Any]) -> None:
        if (before := session.metadata) is not None and before.session_id == session_id:
            session.metadata = before.updated(messages.members(result.get("_meta")).get(SESSION_KEY))
            if session.metadata.state != before.state:  # a hint alone is written on leaving: it moves with every call
                await self._storage.save(session.name, session.metadata)

    async def _fail(self, request: _Pending, item: Any, error: Any, context: Context | None) -> Any | None:
        session, session_id = request.session, request.session_id
        # A server that is itself a client of others may pass on that another session was not found.
        named = messages.members(error.data).get("sessionId")
        if (
            session is not None
            and session_id is not None
            and (named, error.code) == (session_id, _errors.SessionNotFound.code)
        ):
            await self._handle_not_found(session, session_id)
            item, again = messages.without_id(item), self._recreates
        else:
            again = session is not None and session_id is None and error.code == _errors.SessionRequired.code
            self.offered = True if again else self.offered  # the one error that says what the server has
        if not again or request.is_repeat:
            return item
        _ = request.context.run(self._tasks.start_soon, self._repeat, request, item, context)
        return None

    async def _handle_not_found(self, session: ClientSession, session_id: str) -> None:
        if session.id == session_id:
            session.detach(for_good=session.name is None and not self._recreates)
            self.unnamed.discard(session)
            await self._storage.save(session.name, None)

    async def _repeat(self, request: _Pending, answer: Any, context: Context | None) -> None:
        """Send a request again that the server refused before running it; its first answer stands where that fails."""
        key = messages.key(messages.body(request.item))
        with anyio.CancelScope() as self._repeating[key]:
            try:
                await self._transmit(replace(request, session_id=None, is_repeat=True))
            except (ClientError, *CLOSED_ERRORS):
                await self._deliver(answer, context)
            finally:
                del self._repeating[key]

    # --- requests of our own ---

    async def _request(
        self, template: Any, method: str, params: Mapping[str, Any], metadata: SessionMetadata | None = None
    ) -> dict[str, Any]:
        """Return the result of a request, or raise `Refused` for an error, and `NoAnswer` where none comes in time."""
        self._own_count += 1
        key = f"{OWN_ID}{self._own_count}"
        item = messages.request(template, key, method, params, None if metadata is None else metadata.for_request())
        answer, (sent, received) = None, anyio.create_memory_object_stream[Any](1)
        try:
            with sent, received, anyio.move_on_after(self._timeout if self._open else 0):
                self._own[key] = sent
                with suppress(anyio.EndOfStream, *CLOSED_ERRORS):
                    await self._write.send(item)
                    answer = await received.receive()
        finally:
            self._own.pop(key, None)
        if answer is None:
            raise NoAnswer(f"{method} was not answered: no answer within {self._timeout} s, or the connection is gone")
        if hasattr(answer, "error"):
            raise Refused(method, answer.error.code, answer.error.message)
        return cast("dict[str, Any]", answer.result)

    def _answers_own(self, message: Any) -> bool:
        """Whether a message answers a request of our own; one that comes too late is not the client's either."""
        key = messages.key(message) if messages.is_answer(message) else ""
        if (waiting := self._own.pop(key, None)) is not None:
            waiting.send_nowait(message)
        return key.startswith(OWN_ID)

    async def call_extension(
        self, extension: str, method: str, params: dict[str, Any], session: ClientSession | None
    ) -> dict[str, Any]:
        """Return the result of an extension's method, in a session, which is created if needed, or in none.

        Raises as `ClientSessions.fork`.
        """
        if not await self._offers_sessions() and self.offered is None:
            raise NoAnswer("the server has not answered yet what it offers")
        if not self._extensions.get(extension):
            raise NotOffered(f"the server does not offer {method}")
        if session is None:
            return await self._request(self._template(), method, params)
        metadata = await self._metadata_of(session)
        try:
            result = await self._request(self._template(), method, params, metadata)
        except Refused as refusal:
            if refusal.code != _errors.SessionNotFound.code:
                raise
            await self._handle_not_found(session, metadata.session_id)
            raise SessionNotFound(f"{method} was refused, since the session has ended") from None
        await self._update(session, metadata.session_id, result)
        return result

    async def fork(self, session: ClientSession, parent: ClientSession, params: dict[str, Any]) -> None:
        """Create a session as a fork of another. Raises as `ClientSessions.fork`."""
        async with session.creating:
            await self._create(session, lambda: self.call_extension("fork", messages.FORK, params, parent))

    async def delete(self, session: ClientSession) -> None:
        """End a session, here and on the server. Raises as `ClientSessions.delete`."""
        async with session.creating:
            template = self._template() if session.created else None
            metadata = session.detach(for_good=session.name is None)
        if metadata is None:
            return
        self.unnamed.discard(session)
        await self._storage.save(session.name, None)
        try:
            await self._request(template, DELETE, {}, metadata)
        except Refused as refusal:
            if refusal.code != _errors.SessionNotFound.code:
                raise

    async def leave(self, session: ClientSession) -> None:
        """Save a session that the storage keeps, and delete any other."""
        if session.name is None or not self._storage.is_persistent:
            with suppress(ClientError):
                await self.delete(session)
        elif session.metadata not in {None, self._storage.stored.get(session.name)}:
            await self._storage.save(session.name, session.metadata)


class ClientReadStream(ObjectReceiveStream[Any]):
    """What the client receives from, with the context in which the transport received: callbacks run in it."""

    def __init__(self, deliveries: MemoryObjectReceiveStream[tuple[Context | None, Any]]) -> None:
        self.last_context: Context | None = None
        self._deliveries = deliveries

    async def receive(self) -> Any:
        self.last_context, item = await self._deliveries.receive()
        return item

    async def aclose(self) -> None:
        self._deliveries.close()


class ClientWriteStream(ObjectSendStream[Any]):
    """What the client sends to, in the task that chose the session. Closing it leaves the transport open."""

    def __init__(self, send: Callable[[Any], Awaitable[None]]) -> None:
        self._send = send
        self._closed = False

    async def send(self, item: Any) -> None:
        if self._closed:
            raise anyio.ClosedResourceError
        await self._send(item)

    async def aclose(self) -> None:
        self._closed = True
