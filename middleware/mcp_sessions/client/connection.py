"""The messages of one connection: the session that each goes in, and what its answer says of that session.

A session is created in a task of its own when the first request needs it, so that a caller who gives up takes nothing
from the others who wait for it. Only two errors lead to a second try, once, and both mean that the server has not begun
to run the request: the session was not found, or one was required.
Source: the data-layer sessions draft, "Using Sessions" and "Schema"; MCP 2026-07-28; the SDK's stream protocols.
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
from anyio.streams.memory import MemoryObjectReceiveStream

from .._protocol.jsonrpc import SESSION_KEY
from . import messages
from .jar import JarSync
from .session import ClientError, Creation, HeldSession, Metadata, NoAnswer, NotOffered, Refused, SessionLost

OnLost = Literal["raise", "recreate"]

MAX_PENDING: Final = 10_000  # requests whose answers are awaited; SDK 1.x gives requests up without notice
OWN_ID: Final = "mcp-sessions-"  # how the ids of our own requests begin
GONE: Final = (anyio.BrokenResourceError, anyio.ClosedResourceError)


@dataclass(frozen=True)
class Rules:
    """How a connection deals with lost and missing sessions; the fields are options of `with_sessions`."""

    on_lost: OnLost
    lost_code: int
    required_code: int


@dataclass(frozen=True)
class _Pending:
    """A request of the client, whose answer is awaited."""

    item: Any
    held: HeldSession | None
    session_id: str | None = None
    is_repeat: bool = False
    context: Context = field(default_factory=copy_context)


@dataclass(eq=False)
class SessionRouter:
    """Puts sessions into requests and takes them out of results."""

    connection: Connection
    tasks: TaskGroup  # where sessions are created and requests repeated
    current: Callable[[], HeldSession | None]  # the session that the calling task has chosen
    jar: JarSync
    rules: Rules
    offered: bool | None = None  # whether the server offers sessions; None until it has answered
    extensions: dict[str, Any] = field(default_factory=dict)  # of the draft, that the server offers
    _pending: OrderedDict[str, _Pending] = field(default_factory=OrderedDict)
    _repeating: dict[str, anyio.CancelScope] = field(default_factory=dict)
    _discovering: anyio.Lock = field(default_factory=anyio.Lock)
    _latest: Any = None
    _client_info: dict[str, Any] = field(default_factory=dict)

    # --- towards the server, in the task of the caller ---

    async def send(self, item: Any) -> None:
        """Send a message of the client; raises `ClientError` where the chosen session cannot be used."""
        message = messages.body(item)
        if not messages.is_request(message):
            if (cancelled := messages.cancelled_id(message)) is not None:
                self._pending.pop(cancelled, None)
                if cancelled in self._repeating:
                    self._repeating[cancelled].cancel()
            await self.connection.write.send(item)
            return
        self._latest = item if self.offered is False else messages.declaring_sessions(item)
        self._client_info = messages.client_info(message) or self._client_info
        held = self.current() if messages.goes_in_session(message) else None
        await self._transmit(_Pending(self._latest, held))

    async def _transmit(self, request: _Pending) -> None:
        item = request.item
        if request.held is not None and await self._offers_sessions():
            metadata = await self._metadata_of(request.held)
            item = messages.in_session(item, metadata.for_request())
            request = replace(request, session_id=metadata.session_id)
        key = messages.key(messages.body(item))
        self._pending[key] = request
        if len(self._pending) > MAX_PENDING:
            self._pending.popitem(last=False)
        try:
            await self.connection.write.send(item)
        except BaseException:
            self._pending.pop(key, None)
            raise

    async def _offers_sessions(self) -> bool:
        """Whether the server offers sessions; a client that knew the server beforehand does not ask, so we do."""
        if self.offered is None and messages.is_modern(messages.body(self._pattern())):
            async with self._discovering:
                if self.offered is None:  # another task may have asked meanwhile
                    try:
                        result = await self.connection.request(self._pattern(), messages.DISCOVER, {})
                        self.offered, self.extensions = messages.offer(result)
                    except Refused:
                        self.offered = False
        return self.offered is True

    def _pattern(self) -> Any:
        """Return the client's latest request, whose envelope and headers ours have."""
        if self._latest is None:
            raise NoAnswer("nothing was sent on this connection yet, so it is not known how to speak to the server")
        return self._latest

    async def _metadata_of(self, held: HeldSession) -> Metadata:
        """Return what a request in a session carries; the session is created where it has not begun."""
        if held.ended:
            raise SessionLost("this session has ended; begin another with new()")
        if held.metadata is not None:
            return held.metadata
        if (creation := held.creation) is None:
            creation = held.creation = Creation()
            self.tasks.start_soon(self._create, held, creation)
        await creation.done.wait()
        if isinstance(creation.outcome, ClientError):
            raise creation.outcome
        return creation.outcome

    async def _create(self, held: HeldSession, creation: Creation) -> None:
        try:
            params = {**held.params, "_meta": self._client_info} if self._client_info else held.params
            result = await self.connection.request(self._pattern(), messages.CREATE, params)
            creation.outcome = await self.begin(held, messages.CREATE, result)
        except ClientError as error:
            creation.outcome = error
        finally:
            held.creation = None
            creation.done.set()

    async def begin(self, held: HeldSession, method: str, result: dict[str, Any]) -> Metadata:
        """Let a handle hold the session in a result, or raise `NoAnswer` where that holds none."""
        try:
            metadata = held.metadata = msgspec.convert(result.get("session"), Metadata)
        except msgspec.ValidationError:
            raise NoAnswer(f"the answer to {method} holds no session") from None
        await self.jar.save_new(held)
        return metadata

    # --- towards the client, in the task that reads ---

    async def receive(self, item: Any, context: Context | None) -> Any | None:
        """Return what the client gets of a message from the server, or None where the request is sent again."""
        message = messages.body(item)
        if not messages.is_answer(message) or (request := self._pending.pop(messages.key(message), None)) is None:
            return item
        if hasattr(message, "error"):
            return await self._fail(request, item, message.error, context)
        return await self._succeed(request, item, message.result)

    async def _succeed(self, request: _Pending, item: Any, result: dict[str, Any]) -> Any:
        message = messages.body(request.item)
        if message.method in messages.HANDSHAKE_METHODS:
            self.offered, self.extensions = messages.offer(result)
            return item
        if self.offered is False:
            return item
        if request.held is not None and request.session_id is not None:
            await self._update(request.held, request.session_id, result)
        cacheable = message.method in messages.CACHEABLE and messages.is_modern(message)
        return messages.result_for_client(item, cacheable=cacheable, had_session=request.session_id is not None)

    async def _update(self, held: HeldSession, session_id: str, result: dict[str, Any]) -> None:
        """Take over what a result says of the session that its request carried."""
        if held.metadata is not None and held.id == session_id:
            metadata = held.metadata.updated((result.get("_meta") or {}).get(SESSION_KEY))
            if metadata != held.metadata:
                held.metadata = metadata
                await self.jar.update(held, metadata)

    async def _fail(self, request: _Pending, item: Any, error: Any, context: Context | None) -> Any | None:
        held, session_id = request.held, request.session_id
        # A server that is itself a client of others may pass on that another session was not found.
        named = error.data.get("sessionId") if isinstance(error.data, dict) else None
        if held is not None and session_id == named is not None and error.code == self.rules.lost_code:
            await self._lose(held, named)
            item, again = messages.without_id(item), self.rules.on_lost == "recreate"
        else:
            again = held is not None and session_id is None and error.code == self.rules.required_code
            self.offered = self.offered or again
        if not again or request.is_repeat:
            return item
        _ = request.context.run(self.tasks.start_soon, self._repeat, request, item, context)
        return None

    async def _lose(self, held: HeldSession, session_id: str) -> None:
        if held.id == session_id:
            held.forget(for_good=held.name is None and self.rules.on_lost == "raise")
        await self.jar.drop(held, session_id)

    async def _repeat(self, request: _Pending, answer: Any, context: Context | None) -> None:
        """Send a request again that the server refused before running it; its first answer stands where that fails."""
        key = messages.key(messages.body(request.item))
        with anyio.CancelScope() as self._repeating[key]:
            try:
                await self._transmit(replace(request, session_id=None, is_repeat=True))
            except (ClientError, *GONE):
                await self.connection.deliver(answer, context)
            finally:
                del self._repeating[key]

    # --- requests of our own ---

    async def ask(self, extension: str, method: str, params: dict[str, Any], held: HeldSession | None) -> Any:
        """Send a request about sessions, and return its result. Raises as `ClientSessions.fork`.

        Args:
            extension: What the server must offer for it.
            method: The method.
            params: `params` without `_meta`.
            held: The session that it is about, created where it has not begun, or None.
        """
        if not (await self._offers_sessions() and self.extensions.get(extension)):
            raise NotOffered(f"the server does not offer {method}")
        if held is None:
            return await self.connection.request(self._pattern(), method, params)
        metadata = await self._metadata_of(held)
        try:
            result = await self.connection.request(self._pattern(), method, params, metadata)
        except Refused as refusal:
            if refusal.code != self.rules.lost_code:
                raise
            await self._lose(held, metadata.session_id)
            raise SessionLost(f"{method} was refused, since the session has ended") from None
        await self._update(held, metadata.session_id, result)
        return result

    async def delete(self, held: HeldSession, *, descendants: bool = False) -> None:
        """End a session, here and on the server. Raises as `ClientSessions.delete`."""
        if held.creation is not None:
            await held.creation.done.wait()
        if descendants and not self.extensions.get("descendants"):
            raise NotOffered("the server does not end descendants")
        pattern = self._pattern() if held.begun else None
        metadata = await self.forget(held)
        if metadata is None:
            return
        params = {"descendants": True} if descendants else {}
        try:
            await self.connection.request(pattern, messages.DELETE, params, metadata)
        except Refused as refusal:
            if refusal.code != self.rules.lost_code:
                raise

    async def forget(self, held: HeldSession) -> Metadata | None:
        """Hold a session no longer, here and in the jar, and return what was held."""
        metadata = held.forget(for_good=held.name is None)
        if metadata is not None:
            await self.jar.drop(held, metadata.session_id)
        return metadata

    async def leave(self, held: HeldSession) -> None:
        """Save a session that the jar keeps, and delete any other."""
        if not self.jar.is_persistent(held):
            with suppress(ClientError):
                await self.delete(held)
            return
        if held.creation is not None:
            await held.creation.done.wait()
        await self.jar.save(held)


# --- the streams ---


class Connection:
    """A transport's pair of streams, and the client's pair in its place, with our own requests between them.

    The transport stays open when the client closes its pair: sessions are still to be ended then.

    Args:
        read: The transport's stream of messages from the server.
        write: The transport's stream of messages to the server.
        timeout: Seconds to wait for the answer to a request of our own.
    """

    def __init__(self, read: Any, write: Any, *, timeout: float) -> None:
        self.write = write
        self._read = read
        self._timeout = timeout
        self._deliveries, deliveries = anyio.create_memory_object_stream[tuple[Context | None, Any]](0)
        self.client_reads = ClientReadStream(deliveries)
        self._answered: dict[str, anyio.Event] = {}
        self._answers: dict[str, Any] = {}
        self._count = 0
        self._open = True

    async def pump(self, incoming: Callable[[Any, Context | None], Awaitable[Any]]) -> None:
        """Read the transport to its end, and deliver what `incoming` returns for each message and its context."""
        try:
            with suppress(*GONE):
                async for item in self._read:
                    context = getattr(self._read, "last_context", None)
                    if isinstance(item, Exception):
                        await self.deliver(item, context)
                    elif not self._answers_own(messages.body(item)):
                        await self.deliver(await incoming(item, context), context)
        finally:
            self._open = False
            self._deliveries.close()
            for answered in self._answered.values():
                answered.set()

    def _answers_own(self, message: Any) -> bool:
        """Whether a message answers a request of our own; one that comes too late is not the client's either."""
        key = messages.key(message) if messages.is_answer(message) else ""
        if key in self._answered:
            self._answers[key] = message
            self._answered[key].set()
        return key.startswith(OWN_ID)

    async def deliver(self, item: Any, context: Context | None) -> None:
        """Give the client something to read, if there is anything and the client has not gone."""
        if item is not None:
            with suppress(*GONE):
                await self._deliveries.send((context, item))

    async def request(
        self, pattern: Any, method: str, params: Mapping[str, Any], metadata: Metadata | None = None
    ) -> dict[str, Any]:
        """Send a request of our own with the envelope of `pattern`, one of the client's, and return its result.

        Raises:
            Refused: The answer is an error.
            NoAnswer: There is none in time, or the connection is gone.
        """
        self._count += 1
        key = f"{OWN_ID}{self._count}"
        answered = self._answered[key] = anyio.Event()
        session = None if metadata is None else metadata.for_request()
        try:
            with anyio.move_on_after(self._timeout if self._open else 0), suppress(*GONE):
                await self.write.send(messages.request(pattern, key, method, params, session))
                await answered.wait()
        finally:
            del self._answered[key]
            answer = self._answers.pop(key, None)
        if answer is None:
            raise NoAnswer(f"{method} was not answered: no answer within {self._timeout} s, or the connection is gone")
        if hasattr(answer, "error"):
            raise Refused(method, answer.error.code, answer.error.message)
        return cast("dict[str, Any]", answer.result)

    async def close(self) -> None:
        """Close every stream."""
        self._deliveries.close()
        await self.client_reads.aclose()
        await self.write.aclose()
        await self._read.aclose()


class ClientReadStream(ObjectReceiveStream[Any]):
    """What the client receives from.

    The context in which the transport received the last message is kept, as callbacks run in it.
    """

    def __init__(self, deliveries: MemoryObjectReceiveStream[tuple[Context | None, Any]]) -> None:
        self.last_context: Context | None = None
        self._deliveries = deliveries

    async def receive(self) -> Any:
        self.last_context, item = await self._deliveries.receive()
        return item

    async def aclose(self) -> None:
        self._deliveries.close()


class ClientWriteStream(ObjectSendStream[Any]):
    """What the client sends to. The session is chosen in the task that sends."""

    def __init__(self, send: Callable[[Any], Awaitable[None]]) -> None:
        self._send = send
        self._closed = False

    async def send(self, item: Any) -> None:
        if self._closed:
            raise anyio.ClosedResourceError
        await self._send(item)

    async def aclose(self) -> None:
        self._closed = True
