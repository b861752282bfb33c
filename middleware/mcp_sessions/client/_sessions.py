"""`with_sessions`: sessions for any Python MCP client, around the transport that the client is given.

The sessions of one server are held across connections. A context variable chooses the session that a call goes in.
What no jar keeps is deleted when the connection is left. Source: the data-layer sessions draft.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager, contextmanager
from contextvars import ContextVar
from types import MappingProxyType, TracebackType
from typing import Any, Final

import anyio
import msgspec

from .._errors import ConfigurationError
from . import _messages as messages
from ._jar import JarSync, SessionJar
from ._router import OnLost, Rules, SessionRouter
from ._session import ClientError, HeldSession, NoAnswer, SessionPage
from ._transport import ClientWriteStream, Connection, Transport, connector

LEAVE_TIMEOUT: Final = 2.0  # seconds that leaving a connection may spend on deleting sessions
SESSION_NOT_FOUND: Final = -32043
SESSION_REQUIRED: Final = -31044

_choices: ContextVar[Mapping[object, HeldSession | None]] = ContextVar(
    "mcp_sessions_client_choices", default=MappingProxyType({})
)


class ClientSessions:
    """The sessions of a client on one server. Created by `with_sessions`, which documents the options.

    Methods that send a request (`delete`, `fork`, `list`) raise `NotOffered` if the server does not offer
    it, `Refused` if the server refuses, and `NoAnswer` if it does not answer or there is no connection.
    """

    def __init__(
        self, transport: Transport | Callable[[], Transport], jar: JarSync, *, timeout: float, rules: Rules
    ) -> None:
        self._transport = transport
        self._is_used = False
        self._jar = jar
        self._timeout = timeout
        self._rules = rules
        self._named = {"": HeldSession(self, "")}
        self._unnamed: set[HeldSession] = set()
        self._router: SessionRouter | None = None
        self._entered: AbstractAsyncContextManager[Any] | None = None

    def __repr__(self) -> str:
        return f"<ClientSessions, {'connected' if self._router else 'not connected'}>"

    # --- which session ---

    @property
    def offered(self) -> bool | None:
        """Whether the server offers sessions; None before its first answer."""
        return None if self._router is None else self._router.offered

    @property
    def current(self) -> HeldSession | None:
        """The session of calls made in this context, or None."""
        return _choices.get().get(self, self._named[""])

    @property
    def names(self) -> Sequence[str]:
        """The names of the sessions, here and in the jar. The default session is `""`."""
        begun = {name for name, held in self._named.items() if held.begun}
        return sorted(begun | (self._jar.written.keys() - self._named.keys()))

    def new(self, params: Mapping[str, Any] | None = None) -> HeldSession:
        """Return a session that no jar stores: the first call creates it, and leaving the block deletes it.

        Args:
            params: The params of `sessions/create`.
        """
        held = HeldSession(self, None, params)
        self._unnamed.add(held)
        return held

    def open(self, name: str, params: Mapping[str, Any] | None = None) -> HeldSession:
        """Return the session of this name: resumed from the jar, or else created by the first call.

        Args:
            name: The program's own name for it, such as that of a conversation.
            params: The params of `sessions/create`.
        """
        if name not in self._named:
            held = self._named[name] = HeldSession(self, name, params)
            self._jar.resume(held)
        return self._named[name]

    @contextmanager
    def use(self, session: HeldSession | None) -> Iterator[HeldSession | None]:
        """Use this session for all calls of the block, and of tasks that it starts.

        Args:
            session: The session, or None for no session.

        Raises:
            ValueError: It is a session of another `ClientSessions`.
        """
        if session is not None and session.owner is not self:
            raise ValueError("this session is held on another connection; use the ClientSessions that made it")
        token = _choices.set({**_choices.get(), self: session})
        try:
            yield session
        finally:
            _choices.reset(token)

    async def delete(self, session: HeldSession) -> None:
        """End a session, in the jar and on the server. The next call in a named session begins a new one.

        Args:
            session: The session.
        """
        router = self._connected()
        self._unnamed.discard(session)
        await router.delete(session)

    # --- what servers may offer beyond the draft ---

    async def fork(
        self,
        session: HeldSession | None = None,
        *,
        name: str | None = None,
        params: Mapping[str, Any] | None = None,
    ) -> HeldSession:
        """Fork a session: the new one starts with a copy of its state and data.

        Args:
            session: The session to fork, which is created first if necessary; None for the current one.
            name: The program's own name for the fork, under which a jar stores it. Without a name it is deleted when
                the block is left.
            params: Further params of the request.

        Raises:
            ValueError: The name is taken, there is no session to fork, or it is one of another `ClientSessions`.
            SessionLost: The session has ended.
        """
        router, parent = self._connected(), self.current if session is None else session
        if parent is None or parent.owner is not self:
            raise ValueError("a fork needs a session that is held here")
        if name is not None and name in self.names:
            raise ValueError(f"there already is a session named {name!r}")
        result = await router.ask("fork", messages.FORK, dict(params or {}), parent)
        fork = self.new() if name is None else self.open(name)
        await router.begin(fork, messages.FORK, result)
        return fork

    async def list(self, cursor: str | None = None) -> SessionPage:
        """Return one page of the authenticated caller's sessions on the server.

        Args:
            cursor: The `next_cursor` of the previous page, or None for the first.
        """
        held = self.current
        about = held if held is not None and held.begun else None
        params = {} if cursor is None else {"cursor": cursor}
        result = await self._connected().ask("list", messages.LIST, params, about)
        try:
            return msgspec.convert(result, SessionPage)
        except msgspec.ValidationError:
            raise NoAnswer("the answer holds no list of sessions") from None

    # --- the connection ---

    def _connected(self) -> SessionRouter:
        if self._router is None:
            raise NoAnswer("not connected; a request needs an open connection")
        return self._router

    async def __aenter__(self) -> Any:
        """Connect, and return the streams that the client is to use."""
        if self._entered is not None:
            raise ClientError("these sessions are connected already; each connection needs a with_sessions of its own")
        self._entered = connection = self._connect()
        try:
            return await connection.__aenter__()
        except BaseException:
            self._entered = None
            raise

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool | None:
        """Delete what no jar keeps, and disconnect."""
        assert self._entered is not None
        connection, self._entered = self._entered, None
        return await connection.__aexit__(kind, error, trace)

    @asynccontextmanager
    async def _connect(self) -> AsyncIterator[Any]:
        transport = self._unused_transport()
        await self._jar.load(transport)
        for held in self._named.values():
            self._jar.resume(held)
        failure: Exception | None = None
        async with AsyncExitStack() as after, transport as (read, write, *more), anyio.create_task_group() as tasks:
            after.push_async_callback(read.aclose)  # not before: the transport writes there until it has closed
            connection = Connection(read, write, timeout=self._timeout)
            router = self._router = SessionRouter(connection, tasks, lambda: self.current, self._jar, self._rules)
            tasks.start_soon(connection.pump, router.receive)
            try:
                yield (connection.client_reads, ClientWriteStream(router.send), *more)
            except Exception as error:  # noqa: BLE001  # raised again below, as it came and not within a group
                failure = error
            finally:
                self._router = None
                await connection.client_reads.aclose()  # drops what waits to be delivered before our own answers
                with anyio.move_on_after(LEAVE_TIMEOUT, shield=True):
                    await self._leave(router)
                tasks.cancel_scope.cancel()
                with anyio.CancelScope(shield=True):
                    await write.aclose()
        if failure is not None:
            raise failure

    def _unused_transport(self) -> Transport:
        if not isinstance(self._transport, AbstractAsyncContextManager):  # those of contextlib are callable, too
            return self._transport()
        if self._is_used:
            raise ClientError(
                "this transport was already used; give with_sessions a function that returns one for each connection"
            )
        self._is_used = True
        return self._transport

    async def _leave(self, router: SessionRouter) -> None:
        async with anyio.create_task_group() as tasks:
            for held in (*self._named.values(), *self._unnamed):
                tasks.start_soon(router.leave, held)
        self._unnamed.clear()


def with_sessions(
    transport: str | Transport | Callable[[], Transport] | Any,
    jar: SessionJar | None = None,
    *,
    headers: Mapping[str, str] | None = None,
    auth: Any = None,
    http_client: Any = None,
    server: str | None = None,
    identity: str = "",
    on_lost: OnLost = "raise",
    timeout: float = 30.0,  # seconds
    lost_code: int = SESSION_NOT_FOUND,
    required_code: int = SESSION_REQUIRED,
) -> ClientSessions:
    """Return a transport with sessions, for any client that takes a transport or its streams.

    Args:
        transport: The server's URL; or a transport of the SDK, such as `streamable_http_client(url)`; or a function
            that returns a new one for each connection; or FastMCP's `StreamableHttpTransport`.
        jar: Where to store the default session and named ones. Without a jar they are deleted on leaving the block, as
            unnamed ones are.
        headers: HTTP headers for each request; only with a URL, like `auth` and `http_client`.
        auth: An `Auth` of the SDK's HTTP library.
        http_client: An `AsyncClient` of that library to use in place of `headers` and `auth`. It is not closed.
        server: The server's URL, if the transport does not show it; needed only with a jar.
        identity: The user for whom the program acts, if there are several; by default the user in the URL. Not a
            secret.
        on_lost: What to do when the server has lost a session: `"raise"` the error, so that the program learns that its
            data is gone, or `"recreate"` the session and repeat the request once.
        timeout: Seconds to wait for the answer to session requests such as `sessions/create`.
        lost_code: The JSON-RPC error code of "Session not found".
        required_code: The JSON-RPC error code of "Session required".

    Returns:
        An async context manager that yields the transport's streams, and the object that chooses between sessions.

    Raises:
        ConfigurationError: An argument is not valid.
    """
    if on_lost not in {"raise", "recreate"}:
        raise ConfigurationError(f'on_lost={on_lost!r}: must be "raise" or "recreate"')
    sync = JarSync(jar, server=server, identity=identity)
    source = connector(transport, headers=headers, auth=auth, http_client=http_client)
    return ClientSessions(source, sync, timeout=timeout, rules=Rules(on_lost, lost_code, required_code))


def fastmcp_transport(sessions: ClientSessions) -> Any:
    """Return a transport for `fastmcp.Client`, of FastMCP 3 or 4.

    Args:
        sessions: The result of `with_sessions`, preferably for a URL, FastMCP's transport or a function that returns a
            transport, so that the client can reconnect: `with_sessions(url, jar)`.
    """
    from fastmcp.client.transports import ClientTransport
    from mcp import ClientSession

    class SessionTransport(ClientTransport):
        """The streams of a connection with sessions, and the SDK's client session on them."""

        @asynccontextmanager
        async def connect_session(self, *, transport_options: Any = None, **options: Any) -> AsyncIterator[Any]:
            kind = getattr(transport_options, "session_class", ClientSession)
            async with sessions as (read, write, *_), kind(read, write, **options) as session:
                yield session

        def __repr__(self) -> str:
            return f"<SessionTransport of {sessions!r}>"

    return SessionTransport()
