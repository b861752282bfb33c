"""The sessions of one connection: the one that each message goes in, and what its answer says of that session.

A session is created in a task of its own, so that a caller who gives up takes nothing from others who wait for it. A
request is repeated once, after two errors that mean that it was not begun: session not found, and session required.
Source: the data-layer sessions draft, "Using Sessions" and "Schema"; MCP 2026-07-28.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from contextlib import suppress
from contextvars import Context, copy_context
from dataclasses import dataclass, field, replace
from typing import Any, Final, Literal

import anyio
import msgspec
from anyio.abc import TaskGroup

from .._protocol.members import SESSION_KEY
from . import _messages as messages
from ._jar import JarSync
from ._session import ClientError, Creation, HeldSession, Metadata, NoAnswer, NotOffered, Refused, SessionLost
from ._transport import GONE, Connection

OnLost = Literal["raise", "recreate"]

MAX_PENDING: Final = 10_000  # requests whose answers are awaited; SDK 1.x gives requests up without notice


@dataclass(frozen=True)
class Rules:
    """How a connection deals with lost and missing sessions; the fields are options of `with_sessions`."""

    on_lost: OnLost
    lost_code: int
    required_code: int


@dataclass(frozen=True)
class _Pending:
    item: Any = field(repr=False)
    held: HeldSession | None
    session_id: str | None = field(default=None, repr=False)
    is_repeat: bool = False
    context: Context = field(default_factory=copy_context)


@dataclass(eq=False, repr=False)
class SessionRouter:
    """Adds sessions to requests and removes them from results."""

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
        if not (hasattr(message, "method") and hasattr(message, "id")):  # not a request
            if (cancelled := messages.cancelled_id(message)) is not None:
                self._pending.pop(cancelled, None)
                if cancelled in self._repeating:
                    self._repeating[cancelled].cancel()
            await self.connection.write.send(item)
            return
        declares = self.offered is not False or message.method in messages.HANDSHAKE_METHODS
        self._latest = messages.declaring_sessions(item) if declares else item
        self._client_info = messages.client_info(message) or self._client_info
        about_sessions = message.method.startswith("sessions/") or SESSION_KEY in messages.meta(message)
        goes_alone = about_sessions or message.method in messages.SESSIONLESS_METHODS
        await self._transmit(_Pending(self._latest, None if goes_alone else self.current()))

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
        """Whether the server is known to offer sessions; a client that knew it beforehand did not ask, so we do."""
        if self.offered is None and messages.is_modern(messages.body(self._pattern())):
            async with self._discovering:
                if self.offered is None:  # another task may have asked meanwhile
                    with suppress(Refused):  # which says nothing of what the server offers: the next request asks again
                        result = await self.connection.request(self._pattern(), messages.DISCOVER, {})
                        self.offered, self.extensions = messages.offer(result)
        return self.offered is True

    def _pattern(self) -> Any:
        """Return the client's latest request, as the pattern of ours."""
        if self._latest is None:
            raise NoAnswer("nothing was sent on this connection yet, so the server's protocol version is unknown")
        return self._latest

    async def _metadata_of(self, held: HeldSession) -> Metadata:
        if held.ended:
            raise SessionLost("this session has ended; create another with new()")
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
        if held.metadata is not None and held.id == session_id:
            metadata = held.metadata.updated(messages.members(result.get("_meta")).get(SESSION_KEY))
            if metadata != held.metadata:
                held.metadata = metadata
                await self.jar.update(held, metadata)

    async def _fail(self, request: _Pending, item: Any, error: Any, context: Context | None) -> Any | None:
        held, session_id = request.held, request.session_id
        # A server that is itself a client of others may pass on that another session was not found.
        named = messages.members(error.data).get("sessionId")
        if held is not None and session_id is not None and (named, error.code) == (session_id, self.rules.lost_code):
            await self._lose(held, session_id)
            item, again = messages.without_id(item), self.rules.on_lost == "recreate"
        else:
            again = held is not None and session_id is None and error.code == self.rules.required_code
            self.offered = True if again else self.offered  # the one error that says what the server has
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
        """Send a request of an extension, about a session or none, and return its result; create the session if needed.

        Raises as `ClientSessions.fork`.
        """
        await self._require(extension, f"the server does not offer {method}")
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

    async def _require(self, extension: str, lacking: str) -> None:
        if not await self._offers_sessions() and self.offered is None:
            raise NoAnswer("the server has not answered yet what it offers")
        if not self.extensions.get(extension):
            raise NotOffered(lacking)

    async def delete(self, held: HeldSession) -> None:
        """End a session, here and on the server. Raises as `ClientSessions.delete`."""
        if held.creation is not None:
            await held.creation.done.wait()
        pattern = self._pattern() if held.begun else None
        metadata = await self.forget(held)
        if metadata is None:
            return
        try:
            await self.connection.request(pattern, messages.DELETE, {}, metadata)
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
        if held.name is None or not self.jar.is_persistent:
            with suppress(ClientError):
                await self.delete(held)
            return
        if held.creation is not None:
            await held.creation.done.wait()
        await self.jar.save(held)
