"""`with_sessions`: sessions for any Python MCP client, around the transport that the client is given.

The sessions of one server are held across connections. A context variable chooses the session that a call goes in.
What no storage keeps is deleted when the connection is left. Source: the data-layer sessions draft.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager, contextmanager, suppress
from contextvars import ContextVar
from functools import partial
from importlib import import_module
from types import MappingProxyType, TracebackType
from typing import Any, Final
from urllib.parse import urlsplit

import anyio
import msgspec

from .._errors import ConfigurationError
from .._session.functions import check_function, described, is_unfinished
from .._session.keywords import known_keywords
from . import _messages as messages
from ._origin import transport_within_origin
from ._router import ClientWriteStream, OnNotFound, SessionRouter
from ._session import ClientError, ClientSession, NoAnswer, SessionPage
from ._storage import SessionStorage, StorageSync

Transport = AbstractAsyncContextManager[Any]
Connect = Callable[[], Transport]

ACCEPTED: Final = (
    'with_sessions takes the URL of a server, such as "http://127.0.0.1:8000/mcp", a transport such as '
    "streamable_http_client(url), or a function without arguments that returns a new one"
)


LEAVE_TIMEOUT: Final = 2.0  # seconds that leaving a connection may spend on deleting sessions

_choices: ContextVar[Mapping[object, ClientSession | None]] = ContextVar(
    "mcp_sessions_client_choices", default=MappingProxyType({})
)


class ClientSessions:
    """The sessions of a client on one server. Created by `with_sessions`, which documents the options.

    Methods that send a request (`delete`, `fork`, `list`) raise `NotOffered` if the server does not offer it, `Refused`
    if the server refuses, and `NoAnswer` if it does not answer or there is no connection. A session of another
    `ClientSessions` raises `ValueError`.
    """

    def __init__(self, connect: Connect, storage: StorageSync, on_not_found: OnNotFound, timeout: float) -> None:
        self._new_transport = connect
        self._storage = storage
        self._on_not_found: OnNotFound = on_not_found
        self._timeout = timeout
        self._named = {"": ClientSession(self, "")}
        self._router: SessionRouter | None = None
        self._entered: AbstractAsyncContextManager[Any] | None = None

    def __repr__(self) -> str:
        return f"<ClientSessions, {'connected' if self._router else 'not connected'}>"

    @property
    def offered(self) -> bool | None:
        """Whether the server offers sessions; None before its first answer."""
        return None if self._router is None else self._router.offered

    @property
    def current(self) -> ClientSession | None:
        """The session of calls made in this context, or None."""
        return _choices.get().get(self, self._named[""])

    @property
    def names(self) -> Sequence[str]:
        """The names of the sessions, here and in the storage. The default session is `""`."""
        created = {name for name, session in self._named.items() if session.created}
        return sorted(created | (self._storage.stored.keys() - self._named.keys()))

    def new(self, params: Mapping[str, Any] | None = None) -> ClientSession:
        """Return a session that is not stored: the first call creates it, and leaving the block deletes it.

        `params` go into `sessions/create`.
        """
        return ClientSession(self, None, params)

    def open(self, name: str, params: Mapping[str, Any] | None = None) -> ClientSession:
        """Return the session of this name, such as that of a conversation: resumed from the storage, or else new.

        The first call creates a new one; `params` go into `sessions/create`.
        """
        if name not in self._named:
            self._named[name] = ClientSession(self, name, params)
            self._named[name].metadata = self._storage.stored.get(name)
        return self._named[name]

    @contextmanager
    def use(self, session: ClientSession | None) -> Iterator[ClientSession | None]:
        """Use this session, or none, for all calls of the block, and of tasks that it starts."""
        if session is not None:
            self._require_own(session)
        token = _choices.set({**_choices.get(), self: session})
        try:
            yield session
        finally:
            _choices.reset(token)

    async def delete(self, session: ClientSession) -> None:
        """End a session, in the storage and on the server. The next call in a named session creates a new one."""
        self._require_own(session)
        await self._connected().delete(session)

    async def fork(
        self, session: ClientSession | None = None, *, name: str | None = None, params: Mapping[str, Any] | None = None
    ) -> ClientSession:
        """Fork a session: the new one starts with a copy of its state and data.

        Args:
            session: The session to fork, which is created first if necessary; None for the current one.
            name: The program's own name for the fork, under which it is stored. Without a name it is deleted when the
                block is left.
            params: The params of the request.

        Raises:
            ValueError: The name is taken, or there is no session to fork.
            SessionNotFound: The session has ended.
        """
        router, parent = self._connected(), self.current if session is None else session
        if parent is None:
            raise ValueError("no session is selected that could be forked")
        self._require_own(parent)
        fork = self.new() if name is None else self.open(name)
        if fork.created or fork.creating.locked() or fork is parent:
            raise ValueError(f"there already is a session named {name!r}")
        await router.fork(fork, parent, dict(params or {}))
        return fork

    async def list(self, cursor: str | None = None) -> SessionPage:
        """Return a page of the authenticated caller's sessions on the server: the first, or that of a `next_cursor`."""
        session = self.current if self.current is not None and self.current.created else None
        params = {} if cursor is None else {"cursor": cursor}
        result = await self._connected().call_extension("list", messages.LIST, params, session)
        try:
            return msgspec.convert(result, SessionPage)
        except msgspec.ValidationError:
            raise NoAnswer("the answer holds no list of sessions") from None

    # --- the connection ---

    def _require_own(self, session: ClientSession) -> None:
        if session.owner is not self:
            raise ValueError("this session is held on another connection; use the ClientSessions that made it")

    def _connected(self) -> SessionRouter:
        if self._router is None:
            raise NoAnswer("not connected; a request needs an open connection")
        return self._router

    async def __aenter__(self) -> Any:
        """Connect, and return the streams that the client is to use."""
        if self._entered is not None:
            raise ClientError("these sessions are connected already; call with_sessions once for each connection")
        self._entered = connection = self._connect()
        try:
            return await connection.__aenter__()
        except BaseException:
            self._entered = None
            raise

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool | None:
        """Delete what no storage keeps, and disconnect."""
        assert self._entered is not None
        connection, self._entered = self._entered, None
        return await connection.__aexit__(kind, error, trace)

    @asynccontextmanager
    async def _connect(self) -> AsyncIterator[Any]:
        transport = self._new_transport()
        if not hasattr(transport, "__aenter__"):
            is_unfinished(transport)
            raise ConfigurationError(f"the function of with_sessions returned {described(transport)}; {ACCEPTED}")
        await self._storage.load()
        for name, session in self._named.items():
            session.metadata = session.metadata or self._storage.stored.get(name)
        failure: Exception | None = None
        async with AsyncExitStack() as after, transport as (read, write, *more), anyio.create_task_group() as tasks:
            after.push_async_callback(read.aclose)  # not before: the transport writes there until it has closed
            router = self._router = SessionRouter(
                (read, write),
                tasks,
                lambda: self.current,
                self._storage,
                on_not_found=self._on_not_found,
                timeout=self._timeout,
            )
            tasks.start_soon(router.pump)
            try:
                yield (router.client_reads, ClientWriteStream(router.send), *more)
            except Exception as error:  # noqa: BLE001  # raised again below, as it came and not within a group
                failure = error
            finally:
                self._router = None
                await router.client_reads.aclose()  # drops what waits to be delivered before our own answers
                with anyio.move_on_after(LEAVE_TIMEOUT, shield=True):
                    async with anyio.create_task_group() as leaving:
                        for session in (*self._named.values(), *router.unnamed):
                            leaving.start_soon(router.leave, session)
                tasks.cancel_scope.cancel()
                with anyio.CancelScope(shield=True):
                    await write.aclose()
        if failure is not None:
            raise failure


@known_keywords
def with_sessions(
    transport: str | Transport | Callable[[], Transport],
    storage: SessionStorage | None = None,
    *,
    http_client: Any = None,
    on_not_found: OnNotFound = "raise",
    timeout: float = 30.0,  # seconds
) -> ClientSessions:
    """Return a transport with sessions, for any client that takes a transport or its streams.

    Args:
        transport: The server's URL; or a transport of the SDK, such as `streamable_http_client(url)`; or a function
            that returns a new one for each connection.
        storage: Where to keep the default session and named ones, by the server's URL. Without a storage they are
            deleted on leaving the block, as unnamed ones are.
        http_client: With a URL, an `AsyncClient` of the SDK's HTTP library, with the headers and the `Auth` that each
            request needs. It is not closed.
        on_not_found: What to do when the server has lost a session: `"raise"` the error, so that the program learns
            that its data is gone, or `"recreate"` the session and repeat the request once.
        timeout: Seconds to wait for the answer to session requests such as `sessions/create`.

    Returns:
        An async context manager that yields the transport's streams, and the object that chooses between sessions.

    Raises:
        ConfigurationError: An argument is not valid.
    """
    if on_not_found not in {"raise", "recreate"}:
        raise ConfigurationError(f'on_not_found={on_not_found!r}: must be "raise" or "recreate"')
    if storage is not None and not isinstance(transport, str):
        raise ConfigurationError("sessions are stored by the URL of their server: with_sessions(url, storage)")
    sync = StorageSync(storage, server_of(transport) if isinstance(transport, str) else "")
    return ClientSessions(connector(transport, http_client), sync, on_not_found, timeout)


def connector(source: Any, http_client: Any) -> Connect:
    """Return the function that makes a transport for each connection; see `with_sessions`."""
    if isinstance(source, str):
        import_module("mcp.client.streamable_http")  # so that a missing SDK raises now
        return partial(transport_within_origin, source, http_client)
    if http_client is not None:
        raise ConfigurationError("http_client= goes with a URL; a transport has one already")
    if isinstance(source, AbstractAsyncContextManager) and not hasattr(source, "call_tool"):  # not a client
        return _once(source)  # those of contextlib are callable, too
    if not callable(source):
        raise ConfigurationError(f"{ACCEPTED}; not an object of the type {type(source).__name__}")
    return check_function("transport", source)  # type: ignore[no-any-return]  # what it returns is entered


def _once(transport: Transport) -> Connect:
    unused = [transport]

    def connect() -> Transport:
        if not unused:
            raise ClientError("this transport was used already; a function can return one for each connection")
        return unused.pop()

    return connect


def server_of(url: str) -> str:
    """Return the URL by which sessions are stored, without a password; raise `ConfigurationError` if it is not one."""
    with suppress(ValueError):  # not a number as the port, or half an address
        parts = urlsplit(url)
        if parts.scheme in {"http", "https"} and parts.hostname and parts.port != 0:
            user, at, host = parts.netloc.rpartition("@")
            return parts._replace(netloc=f"{user.partition(':')[0]}{at}{host}", fragment="").geturl()
    raise ConfigurationError(f"{ACCEPTED}; what was given is not the URL of an HTTP server")


def fastmcp_transport(sessions: ClientSessions) -> Any:
    """Return a transport for `fastmcp.Client`, of FastMCP 3 or 4.

    Args:
        sessions: The result of `with_sessions`, preferably for a URL, so that the client can reconnect.
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
