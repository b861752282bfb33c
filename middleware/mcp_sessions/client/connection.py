"""What becomes of each message of one connection: which session it goes in, and what its answer says of that session.

A session is created in a task of its own when the first request needs it, so that a caller who gives up takes nothing
from the others who wait for the same one. Only two errors are ever followed by a second try, once, and both say that
the server has not begun to run the request: the session was not found, or one was required.
Source: the data-layer sessions draft, "Using Sessions" and "Schema"; MCP 2026-07-28 for the envelope.

One connection: the transport's streams on one side, the client's on the other, and our own requests between them.

A task reads the transport and delivers to the client; answers to our own requests stay here. Nothing here knows what a
session is. The transport is never closed here: that is for who opened it.

The pair of streams that the client gets in place of the transport's own.

What the client sends is handed over in the task that sends it, so that the session chosen there is the one that counts.
What it receives keeps the context that the transport noted with it. Closing them does not close the transport: sessions
are still to be ended when the client has gone.
Source: the stream protocols of the official SDK.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from contextvars import Context, copy_context
from dataclasses import dataclass, field, replace
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, Literal

import anyio
import msgspec
from anyio.abc import TaskGroup
from anyio.streams.memory import MemoryObjectReceiveStream

from .._protocol.jsonrpc import SESSION_KEY
from . import messages
from .jar import Keeper
from .session import ClientError, HeldSession, Metadata, NoAnswer, NotOffered, Refused, SessionLost, created

if TYPE_CHECKING:
    from typing_extensions import Self

OnLost = Literal["raise", "recreate"]
HANDSHAKES: Final = frozenset((messages.INITIALIZE, messages.DISCOVER))
MAX_UNDER_WAY: Final = 10_000  # requests whose answers are waited for; older ones were given up without a word


@dataclass(frozen=True)
class Rules:
    """How a connection deals with sessions.

    Args:
        on_lost: What to do where the server has lost a session.
        lost_code: The error code that says so.
        required_code: The error code that asks for a session.
    """

    on_lost: OnLost
    lost_code: int
    required_code: int


@dataclass(frozen=True)
class _Sent:
    """A request that was sent, as the client wrote it."""

    item: Any
    chosen: HeldSession | None
    session_id: str | None = None
    again: bool = False
    context: Context = field(default_factory=copy_context)


class Carrier:
    """Puts sessions into requests and takes them out of results.

    Args:
        link: The connection.
        tasks: Where the sessions are created and requests sent again.
        chosen: The session that the calling task speaks in, or None for none.
        keeper: Keeps sessions between connections.
        rules: What to do about errors.
    """

    def __init__(
        self, link: Link, tasks: TaskGroup, chosen: Callable[[], HeldSession | None], keeper: Keeper, rules: Rules
    ) -> None:
        self._link = link
        self._tasks = tasks
        self._chosen = chosen
        self._keeper = keeper
        self._rules = rules
        self._under_way: OrderedDict[str, _Sent] = OrderedDict()
        self._repeating: dict[str, anyio.CancelScope] = {}
        self._asking = anyio.Lock()
        self._pattern: Any = None
        self._introduction: dict[str, Any] = {}
        self.offered: bool | None = None
        """Whether the server offers sessions; None until it has said so."""
        self.settings: dict[str, Any] = {}
        """What it says of them: the extensions that it offers."""

    # --- towards the server, in the task of the caller ---

    async def send(self, item: Any) -> None:
        """Send what the client sends.

        Raises:
            SessionLost: The chosen session has ended.
            Refused: The server refused to create the session.
            NoAnswer: The server did not answer when the session was to be created.
        """
        message = messages.body(item)
        if not messages.is_request(message):
            self._notice(message)
            await self._link.write(item)
            return
        declared = item if self.offered is False else messages.declaring(item)
        self._pattern = declared
        self._introduction = messages.introduction(message) or self._introduction
        chosen = self._chosen() if _speaks_of_none(message) else None
        await self._transmit(_Sent(declared, chosen))

    def _notice(self, message: Any) -> None:
        """See whether a request was given up."""
        if hasattr(message, "method") and (given_up := messages.cancelled(message)) is not None:
            self._under_way.pop(given_up, None)
            if (repeating := self._repeating.get(given_up)) is not None:
                repeating.cancel()

    async def _transmit(self, sent: _Sent) -> None:
        metadata = await self._session_for(sent)
        name = messages.key(messages.body(sent.item))
        self._under_way[name] = replace(sent, session_id=None if metadata is None else metadata.session_id)
        if len(self._under_way) > MAX_UNDER_WAY:
            self._under_way.popitem(last=False)
        try:
            await self._link.write(sent.item if metadata is None else messages.in_session(sent.item, metadata.sent()))
        except BaseException:
            self._under_way.pop(name, None)
            raise

    async def _session_for(self, sent: _Sent) -> Metadata | None:
        if sent.chosen is None or not await self._offers(sent.item):
            return None
        sent.chosen.check()
        return sent.chosen.metadata or await self._created(sent.chosen, sent.item)

    async def _offers(self, item: Any) -> bool:
        """Whether the server offers sessions; a client that was told of the server before never asks, so we do."""
        if self.offered is None and messages.is_modern(messages.body(item)):
            async with self._asking:
                self.offered = await self._discover(item)
        return self.offered is True

    async def _discover(self, pattern: Any) -> bool:
        if self.offered is not None:  # somebody else asked meanwhile
            return self.offered
        try:
            result = await self._link.request(pattern, messages.DISCOVER, {})
        except Refused:
            return False
        self.settings = messages.settings(result)
        return messages.offers_sessions(result)

    async def _created(self, held: HeldSession, pattern: Any) -> Metadata:
        creation = held.creation
        if creation is None:
            creation = held.begin_creation()
            self._tasks.start_soon(self._create, held, pattern)
        await creation.done.wait()
        if isinstance(creation.outcome, ClientError):
            raise creation.outcome
        return creation.outcome

    async def _create(self, held: HeldSession, pattern: Any) -> None:
        outcome: Metadata | ClientError = NoAnswer("the connection was left before the session was created")
        try:
            params = {**held.params, "_meta": self._introduction} if self._introduction else held.params
            outcome = created(await self._link.request(pattern, messages.CREATE, params))
            held.hold(outcome)
            await self._keeper.keep(held)
        except msgspec.ValidationError:
            outcome = NoAnswer("the answer to sessions/create holds no session")
        except ClientError as error:
            outcome = error
        finally:
            held.end_creation(outcome)

    # --- towards the client, in the task that reads ---

    async def receive(self, item: Any, context: Context | None) -> Any | None:
        """What the client is to have of a message from the server, or None where it is to wait."""
        message = messages.body(item)
        if not messages.is_answer(message):
            return item
        sent = self._under_way.pop(messages.key(message), None)
        if sent is None:
            return item
        if hasattr(message, "error"):
            return await self._failed(sent, item, message.error, context)
        return await self._succeeded(sent, item, message.result)

    async def _succeeded(self, sent: _Sent, item: Any, result: dict[str, Any]) -> Any:
        method = messages.body(sent.item).method
        if method in HANDSHAKES:
            self.offered, self.settings = messages.offers_sessions(result), messages.settings(result)
            return item
        if self.offered is False:
            return item
        if sent.session_id is not None and sent.chosen is not None:
            await self._learn(sent.chosen, sent.session_id, result)
        modern = messages.is_modern(messages.body(sent.item))
        return messages.success(item, method if modern else "", carried=sent.session_id is not None)

    async def _learn(self, held: HeldSession, session_id: str, result: dict[str, Any]) -> None:
        """Take over what a result says of the session that its request carried."""
        if held.metadata is not None and held.id == session_id:
            learned = held.metadata.learned((result.get("_meta") or {}).get(SESSION_KEY))
            if learned != held.metadata:
                held.hold(learned)
                await self._keeper.update(held)

    async def _failed(self, sent: _Sent, item: Any, error: Any, context: Context | None) -> Any | None:
        if sent.chosen is not None and sent.session_id is not None and self._is_lost(sent, error):
            await self._lose(sent.chosen, sent.session_id)
            item = messages.without_id(item)
            again = self._rules.on_lost == "recreate"
        else:
            again = sent.chosen is not None and sent.session_id is None and error.code == self._rules.required_code
            self.offered = self.offered or again
        if not again or sent.again:
            return item
        _ = sent.context.run(self._tasks.start_soon, self._repeat, sent, item, context)
        return None

    def _is_lost(self, sent: _Sent, error: Any) -> bool:
        # A server that is itself a client of others may pass on that another session was not found.
        named = error.data.get("sessionId") if isinstance(error.data, dict) else None
        return error.code == self._rules.lost_code and named == sent.session_id

    async def _lose(self, held: HeldSession, session_id: str) -> None:
        if held.id == session_id:
            held.let_go(for_good=held.name is None and self._rules.on_lost == "raise")
        await self._keeper.drop(held, session_id)

    async def _repeat(self, sent: _Sent, answer: Any, context: Context | None) -> None:
        """Send a request again that the server refused before running it; its first answer stands where that fails."""
        name = messages.key(messages.body(sent.item))
        with anyio.CancelScope() as scope:
            self._repeating[name] = scope
            try:
                await self._transmit(replace(sent, again=True))
            except (ClientError, *GONE):
                await self._link.deliver(answer, context)
            finally:
                del self._repeating[name]

    # --- requests of our own ---

    async def ask(self, extension: str, method: str, params: dict[str, Any], held: HeldSession | None) -> Any:
        """Send a request about sessions.

        Args:
            extension: What the server must offer for it.
            method: What is asked.
            params: `params` without `_meta`.
            held: The session that it is about, which is created where it has not begun, or None.

        Returns:
            The result.

        Raises:
            NotOffered: The server does not offer it.
            SessionLost: The session has ended.
            Refused: The server refused.
            NoAnswer: It did not answer, or nothing was sent on this connection yet.
        """
        pattern = self._latest()
        if not (await self._offers(pattern) and self.settings.get(extension)):
            raise NotOffered(f"the server does not offer {method}")
        if held is None:
            return await self._link.request(pattern, method, params)
        held.check()
        metadata = held.metadata or await self._created(held, pattern)
        try:
            result = await self._link.request(pattern, method, params, metadata.sent())
        except Refused as refusal:
            if refusal.code != self._rules.lost_code:
                raise
            await self._lose(held, metadata.session_id)
            raise SessionLost(f"{method} was refused, since the session has ended") from None
        await self._learn(held, metadata.session_id, result)
        return result

    def _latest(self) -> Any:
        """A request of the client, whose envelope and headers ours have."""
        if self._pattern is None:
            raise NoAnswer("nothing was sent on this connection yet, so it is not known how to speak to the server")
        return self._pattern

    async def take_on(self, held: HeldSession, result: dict[str, Any]) -> None:
        """Hold the session in a result.

        Raises:
            NoAnswer: There is none.
        """
        try:
            held.hold(created(result))
        except msgspec.ValidationError:
            raise NoAnswer("the answer holds no session") from None
        await self._keeper.keep(held)

    async def let_go(self, held: HeldSession) -> None:
        """Hold a session no longer that has ended."""
        metadata = held.let_go(for_good=held.name is None)
        if metadata is not None:
            await self._keeper.drop(held, metadata.session_id)

    # --- endings ---

    async def keep(self, held: HeldSession) -> None:
        """Leave a session as it is, with all that is known of it written down."""
        if held.creation is not None:
            await held.creation.done.wait()
        await self._keeper.write(held)

    async def delete(self, held: HeldSession, *, descendants: bool = False) -> None:
        """End a session, here and on the server.

        Args:
            held: The session.
            descendants: Whether to end its forks, too.

        Raises:
            NotOffered: The server does not end forks.
            Refused: The server refused, and not because it knows the session no more.
            NoAnswer: The server did not answer.
        """
        if held.creation is not None:
            await held.creation.done.wait()
        if descendants and not self.settings.get("descendants"):
            raise NotOffered("the server does not end descendants")
        pattern = self._latest() if held.begun else None
        metadata = held.let_go(for_good=held.name is None)
        if metadata is None:
            return
        await self._keeper.drop(held, metadata.session_id)
        try:
            await self._link.request(
                pattern, messages.DELETE, {"descendants": True} if descendants else {}, metadata.sent()
            )
        except Refused as refusal:
            if refusal.code != self._rules.lost_code:
                raise

    async def delete_quietly(self, held: HeldSession) -> None:
        """End a session, and ask no more of it."""
        with suppress(ClientError):
            await self.delete(held)


def _speaks_of_none(message: Any) -> bool:
    """Whether a request goes in the chosen session: it is no handshake, and its sender does not see to that itself."""
    about_sessions = message.method.startswith("sessions/") or SESSION_KEY in messages.meta(message)
    return not about_sessions and message.method not in HANDSHAKES and message.method != "ping"


Incoming = Callable[[Any, Context | None], Awaitable[Any]]
Outgoing = Callable[[Any], Awaitable[None]]

OURS: Final = "mcp-sessions-"  # how the ids of our own requests begin
GONE: Final = (anyio.BrokenResourceError, anyio.ClosedResourceError)


@dataclass
class _Awaited:
    """A request of our own, and its answer once that is there."""

    arrived: anyio.Event = field(default_factory=anyio.Event)
    message: Any = None


class Link:
    """A transport's stream pair with a client's.

    Args:
        read: The transport's stream of messages from the server.
        write: The transport's stream of messages to the server.
        timeout: Seconds to wait for the answer to a request of our own.
    """

    def __init__(self, read: Any, write: Any, *, timeout: float) -> None:
        self._read = read
        self._write = write
        self._timeout = timeout
        self._deliveries, deliveries = anyio.create_memory_object_stream[Delivery](0)
        self._reading = Reading(deliveries)
        self._awaited: dict[str, _Awaited] = {}
        self._requests = 0
        self._open = True

    def streams(self, outgoing: Outgoing) -> tuple[Reading, Writing]:
        """What the client gets."""
        return self._reading, Writing(outgoing)

    async def pump(self, incoming: Incoming) -> None:
        """Read the transport to its end.

        Args:
            incoming: Called with each item and its context; gives what the client is to have of it, or None.
        """
        try:
            with suppress(*GONE):
                async for item in self._read:
                    await self._take(item, incoming, getattr(self._read, "last_context", None))
        finally:
            self._hang_up()

    async def _take(self, item: Any, incoming: Incoming, context: Context | None) -> None:
        if isinstance(item, Exception):
            await self.deliver(item, context)
        elif not self._settle(messages.body(item)):
            left = await incoming(item, context)
            if left is not None:
                await self.deliver(left, context)

    async def deliver(self, item: Any, context: Context | None) -> None:
        """Give the client something to read, unless it has gone."""
        with suppress(*GONE):
            await self._deliveries.send((context, item))

    async def write(self, item: Any) -> None:
        """Send something to the server."""
        await self._write.send(item)

    async def request(
        self, pattern: Any, method: str, params: Mapping[str, Any], sent: dict[str, str] | None = None
    ) -> dict[str, Any]:
        """Send a request of our own.

        Args:
            pattern: A request of the client, whose envelope ours has, too.
            method: What is asked.
            params: `params` without `_meta`.
            sent: The session that it is about, or None.

        Returns:
            The result.

        Raises:
            Refused: The answer is an error.
            NoAnswer: There is none in time, or the connection is gone.
        """
        message = await self._ask(pattern, method, params, sent)
        if message is None:
            raise NoAnswer(f"{method} was not answered: no answer within {self._timeout} s, or the connection is gone")
        if hasattr(message, "error"):
            raise Refused(method, message.error.code, message.error.message)
        result: dict[str, Any] = message.result
        return result

    async def _ask(
        self, pattern: Any, method: str, params: Mapping[str, Any], sent: dict[str, str] | None
    ) -> Any | None:
        self._requests += 1
        name = f"{OURS}{self._requests}"
        awaited = self._awaited[name] = _Awaited()
        try:
            with anyio.move_on_after(self._timeout if self._open else 0), suppress(*GONE):
                await self._write.send(messages.request(pattern, name, method, params, sent))
                await awaited.arrived.wait()
        finally:
            del self._awaited[name]
        return awaited.message

    def _settle(self, message: Any) -> bool:
        """Whether a message answers a request of our own, be it too late: the client knows nothing of it."""
        if not messages.is_answer(message) or not messages.key(message).startswith(OURS):
            return False
        if (awaited := self._awaited.get(messages.key(message))) is not None:
            awaited.message = message
            awaited.arrived.set()
        return True

    def client_is_gone(self) -> None:
        """Nobody reads any more: whatever waits to be delivered is dropped, so that our own answers get through."""
        self._reading.close()

    def _hang_up(self) -> None:
        self._open = False
        self._deliveries.close()
        for awaited in self._awaited.values():
            awaited.arrived.set()

    async def close(self) -> None:
        """Close every stream."""
        self._deliveries.close()
        self._reading.close()
        await self._write.aclose()
        await self._read.aclose()


Delivery = tuple[Context | None, Any]


class _Stream(ABC):
    """What both have in common."""

    @abstractmethod
    def close(self) -> None:
        """Use it no more."""

    async def aclose(self) -> None:
        self.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class Reading(_Stream):
    """What the client receives from.

    Attributes:
        last_context: The context in which the transport received the last message, or None where it notes none.
    """

    def __init__(self, deliveries: MemoryObjectReceiveStream[Delivery]) -> None:
        self.last_context: Context | None = None
        self._deliveries = deliveries

    async def receive(self) -> Any:
        self.last_context, item = await self._deliveries.receive()
        return item

    def close(self) -> None:
        self._deliveries.close()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Any:
        try:
            return await self.receive()
        except anyio.EndOfStream:
            raise StopAsyncIteration from None


class Writing(_Stream):
    """What the client sends to."""

    def __init__(self, send: Callable[[Any], Awaitable[None]]) -> None:
        self._send = send
        self._closed = False

    async def send(self, item: Any) -> None:
        if self._closed:
            raise anyio.ClosedResourceError
        await self._send(item)

    def close(self) -> None:
        self._closed = True
