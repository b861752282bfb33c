"""Sessions for any Python MCP client: `with_sessions` around the transport that the client is given.

The sessions of one server are held here, across connections; what happens to each message of a connection is the
carrier's. Which session a call goes in is chosen by a context variable, and so by the task that makes the call. What no
jar keeps is deleted when the connection is left.
Source: the data-layer sessions draft, all of what it asks of clients.

Sessions for FastMCP's client, which takes a transport of its own kind instead of streams.

FastMCP 3 and 4 alike: the transport opens the connection anew each time that the client connects.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager, contextmanager
from contextvars import ContextVar
from types import MappingProxyType, TracebackType
from typing import Any, Final, NoReturn

import anyio
import msgspec

from .._session.claims import Mode
from ..errors import ConfigurationError
from . import messages
from .connection import Carrier, Link, OnLost, Rules
from .jar import Keeper, SessionJar
from .session import ClientError, HeldSession, NoAnswer, SessionPage, page

Transport = AbstractAsyncContextManager[Any]

FAREWELL: Final = 2.0  # seconds that leaving a connection may spend on deleting sessions
SESSION_NOT_FOUND: Final = -32043
SESSION_REQUIRED: Final = -31044

_choices: ContextVar[Mapping[object, HeldSession | None]] = ContextVar(
    "mcp_sessions_client_choices", default=MappingProxyType({})
)


class ClientSessions:
    """The sessions that a client holds on one server. Made by `with_sessions`, which says what the options mean."""

    def __init__(
        self,
        transport: Transport | Callable[[], Transport],
        keeper: Keeper,
        *,
        timeout: float,
        rules: Rules,
    ) -> None:
        self._transport = transport
        self._keeper = keeper
        self._timeout = timeout
        self._rules = rules
        self._default = HeldSession(self, "")
        self._named = {"": self._default}
        self._unnamed: set[HeldSession] = set()
        self._carrier: Carrier | None = None
        self._stack: AsyncExitStack | None = None

    def __repr__(self) -> str:
        return f"<ClientSessions, {'connected' if self._carrier else 'not connected'}>"

    # --- which session ---

    @property
    def offered(self) -> bool | None:
        """Whether the server offers sessions; None where it has not said so yet."""
        return None if self._carrier is None else self._carrier.offered

    @property
    def current(self) -> HeldSession | None:
        """The session that calls made here go in, or None for none."""
        return _choices.get().get(self, self._default)

    @property
    def names(self) -> Sequence[str]:
        """The names under which sessions are held, here or in the jar. The default session's is `""`."""
        begun = {name for name, held in self._named.items() if held.begun}
        return sorted(begun | (self._keeper.names - self._named.keys()))

    def new(self, params: Mapping[str, Any] | None = None) -> HeldSession:
        """A session that no jar keeps. It is created when the first call needs it, and deleted when the block is left.

        Args:
            params: What the server is told when the session is created.
        """
        held = HeldSession(self, None, params)
        self._unnamed.add(held)
        return held

    def open(self, name: str, params: Mapping[str, Any] | None = None) -> HeldSession:
        """The session of this name: resumed where the jar holds it, created by the first call where not.

        Args:
            name: The program's own name for it, such as that of a conversation.
            params: What the server is told when the session is created.
        """
        if name not in self._named:
            held = self._named[name] = HeldSession(self, name, params)
            self._keeper.resume(held)
        return self._named[name]

    @contextmanager
    def use(self, session: HeldSession | None) -> Iterator[HeldSession | None]:
        """Let every call of this block, and of the tasks that it starts, go in this session.

        Args:
            session: The session, or None for none.

        Raises:
            ValueError: It is a session on another server.
        """
        if session is not None and session.owner is not self:
            raise ValueError("this session is held on another connection; use the ClientSessions that made it")
        token = _choices.set({**_choices.get(), self: session})
        try:
            yield session
        finally:
            _choices.reset(token)

    async def delete(self, session: HeldSession, *, descendants: bool = False) -> None:
        """End a session, in the jar and on the server. One that has a name can begin anew.

        Args:
            session: The session.
            descendants: Whether to end all that was forked from it, too. It must be no fork itself.

        Raises:
            NotOffered: The server does not end descendants.
            Refused: The server refused.
            NoAnswer: The server did not answer, or nothing is connected.
        """
        carrier = self._connected()
        self._unnamed.discard(session)
        await carrier.delete(session, descendants=descendants)

    def _connected(self) -> Carrier:
        if self._carrier is None:
            raise NoAnswer("not connected; the server can be asked while the connection stands")
        return self._carrier

    # --- what servers may offer beyond the draft ---

    async def fork(
        self,
        session: HeldSession | None = None,
        mode: Mode = "share",
        *,
        name: str | None = None,
        params: Mapping[str, Any] | None = None,
    ) -> HeldSession:
        """Make a session from another one, as it is now.

        Args:
            session: The session, which is created where it has not begun; None for the one that calls made here go in.
            mode: `"share"`: both have the same data. `"copy"`: the new one begins with a copy. `"fresh"`: it begins
                empty, and is of the same lineage.
            name: The program's own name for it, under which a jar keeps it, or None. Without a name it is deleted when
                the block is left.
            params: What the server is told besides.

        Raises:
            ValueError: The name is taken, there is no session to fork, or it is one on another server.
            NotOffered: The server offers no such forks.
            SessionLost: The session has ended.
            Refused: The server refused.
            NoAnswer: The server did not answer, or nothing is connected.
        """
        carrier, parent = self._connected(), self.current if session is None else session
        if parent is None or parent.owner is not self:
            raise ValueError("a fork needs a session that is held here")
        if name is not None and name in self.names:
            raise ValueError(f"a session is held under the name {name!r} already")
        result = await carrier.ask("fork", messages.FORK, {**(params or {}), "mode": mode}, parent)
        fork = self.new() if name is None else self.open(name)
        await carrier.take_on(fork, result)
        return fork

    async def list(self, cursor: str | None = None) -> SessionPage:
        """The sessions that the server holds for whoever this program is authenticated as, a page at a time.

        Args:
            cursor: The `next_cursor` of the page before, or None for the first.

        Raises:
            NotOffered: The server does not list sessions.
            Refused: The server refused: the caller is nobody, say.
            NoAnswer: The server did not answer, or nothing is connected.
        """
        held = self.current
        about = held if held is not None and held.begun else None
        params = {} if cursor is None else {"cursor": cursor}
        try:
            return page(await self._connected().ask("list", messages.LIST, params, about))
        except msgspec.ValidationError:
            raise NoAnswer("the answer holds no list of sessions") from None

    async def end_all(self) -> None:
        """End all sessions of whoever this program is authenticated as, those of other programs included.

        What is held here and in the jar is let go. A session that has a name can begin anew.

        Raises:
            NotOffered: The server does not end them.
            Refused: The server refused: the caller is nobody, say.
            NoAnswer: The server did not answer, or nothing is connected.
        """
        carrier = self._connected()
        await carrier.ask("endAll", messages.END_ALL, {}, None)
        for held in (*map(self.open, self.names), *self._unnamed):
            await carrier.let_go(held)
        self._unnamed.clear()

    # --- the connection ---

    async def __aenter__(self) -> Any:
        """Connect, and give the streams that the client is to use."""
        if self._stack is not None:
            raise ClientError("these sessions are connected already; each connection needs a with_sessions of its own")
        self._stack = stack = AsyncExitStack()
        try:
            return await stack.enter_async_context(self._connection())
        except BaseException:
            self._stack = None
            raise

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool | None:
        """Delete what no jar keeps, and disconnect."""
        assert self._stack is not None
        stack, self._stack = self._stack, None
        return await stack.__aexit__(kind, error, trace)

    def _fresh(self) -> Transport:
        """A transport that was not used before."""
        if isinstance(self._transport, AbstractAsyncContextManager):  # those that contextlib makes are callable, too
            transport, self._transport = self._transport, _used_up
            return transport
        return self._transport()

    @asynccontextmanager
    async def _connection(self) -> AsyncIterator[Any]:
        transport = self._fresh()
        await self._keeper.load(transport)
        for held in self._named.values():
            self._keeper.resume(held)
        failure: Exception | None = None
        async with transport as (read, write, *more), anyio.create_task_group() as tasks:
            link = Link(read, write, timeout=self._timeout)
            carrier = self._carrier = Carrier(link, tasks, lambda: self.current, self._keeper, self._rules)
            tasks.start_soon(link.pump, carrier.receive)
            try:
                yield (*link.streams(carrier.send), *more)
            except Exception as error:  # noqa: BLE001  # raised again below, as it came and not within a group
                failure = error
            finally:
                self._carrier = None
                link.client_is_gone()
                with anyio.move_on_after(FAREWELL, shield=True):
                    await self._leave(carrier)
                tasks.cancel_scope.cancel()
                with anyio.CancelScope(shield=True):
                    await link.close()
        if failure is not None:
            raise failure

    async def _leave(self, carrier: Carrier) -> None:
        """Delete what no jar keeps, and keep the rest."""
        async with anyio.create_task_group() as tasks:
            for held in (*self._named.values(), *self._unnamed):
                tasks.start_soon(carrier.keep if self._keeper.keeps(held) else carrier.delete_quietly, held)
        self._unnamed.clear()


def _used_up() -> NoReturn:
    raise ClientError("this transport was used; give with_sessions a function that makes one for each connection")


def with_sessions(
    transport: Transport | Callable[[], Transport],
    jar: SessionJar | None = None,
    *,
    server: str | None = None,
    identity: str = "",
    on_lost: OnLost = "raise",
    timeout: float = 30.0,  # seconds
    lost_code: int = SESSION_NOT_FOUND,
    required_code: int = SESSION_REQUIRED,
) -> ClientSessions:
    """A transport that holds sessions, for any client that takes a transport or its streams.

    Args:
        transport: The transport as the SDK makes it, such as `streamable_http_client(url)`, or a function that makes a
            new one for each connection.
        jar: Where the default session and those with a name are kept. None: they are deleted on leaving, as are those
            without a name.
        server: The server's URL, where the transport does not show it. Needed for a jar alone.
        identity: Whom the program speaks for, where it speaks for several. Not a secret.
        on_lost: What to do where the server knows a session no more: `"raise"` its error, so that the program learns
            that what the server held is gone, or `"recreate"` the session and send the request again, once.
        timeout: Seconds to wait for the answer to each request of its own, such as `sessions/create`.
        lost_code: The error code that says that a session was not found.
        required_code: The error code that says that a session is required.

    Returns:
        An async context manager that gives the transport's streams, and the object that chooses between sessions.

    Raises:
        ConfigurationError: `on_lost` is neither of the two.
    """
    if on_lost not in {"raise", "recreate"}:
        raise ConfigurationError(f'on_lost={on_lost!r}: must be "raise" or "recreate"')
    keeper = Keeper(jar, server=server, identity=identity)
    return ClientSessions(transport, keeper, timeout=timeout, rules=Rules(on_lost, lost_code, required_code))


def fastmcp_transport(sessions: ClientSessions) -> Any:
    """A transport for `fastmcp.Client`.

    Args:
        sessions: What `with_sessions` made, best of a function that makes a transport, so that the client can
            connect again: `with_sessions(lambda: streamable_http_client(url), jar)`.
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
