"""`WorkerAffinity`: whether a request is served here, by another worker, or here after its session was taken over.

A request leaves and enters at one application. It is identified by the token in its header alone, whose signature is
checked; who sent it is checked where it is served, on the headers as they came. A request that has come from another
worker never goes to a third. If its owner is gone, the session is taken over by a `ping` in the caller's name, which
passes every check of the application; then the request itself is served.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

from starlette.types import ASGIApp, Receive, Scope, Send

from .._errors import SessionNotFound, StoreUnavailable
from .._protocol.headers import SESSION_HEADER
from .._session.claims import Claims, RedactedRepr
from .._session.data import DataStore
from .._tokens.jwt import Tokens
from .._tokens.keys import KeyRing
from .._tokens.seal import Upstream, open_upstream
from ..stores._base import Store
from .fenced import FencedStore
from .frames import Channel, ConnectionLost, NotProved, accept, greet
from .incoming import HOP, LOST, Incoming, Takeover, ping, send_unreachable
from .ownership import NamespaceOf, Ownership, Ownerships
from .relay import Kept, Outcome, Relay, serve
from .termination import no_longer, on_termination
from .visits import Visits
from .workers import LEASE, Workers

PATIENCE: Final = 12.0  # seconds for which a session that is being taken over is waited for
SHORT_PAUSE: Final = 0.02  # seconds before the first look at how that goes; twice as long each time
PAUSE: Final = 0.5  # seconds between two attempts to reach a worker that may be alive
MAX_BEGUN_AGAIN: Final = 3  # times a minute for one session
MAX_REMEMBERED: Final = 10_000
INSIDE: Final = (
    "MCPSessionMiddleware is inside of the application's authentication, so a session is served by the worker that "
    "created it alone: use add_sessions(app, ...) with the outermost application"
)
_log: Final = logging.getLogger("mcp_sessions")


class Entrance:
    """The outermost part of an application with sessions at one of its routes."""

    def __init__(self, app: ASGIApp, affinity: WorkerAffinity) -> None:
        self._app: Final = app
        self._affinity: Final = affinity

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and self._affinity.is_listening:
            await self._affinity.handle(self._app, scope, receive, send)
        else:
            await self._app(scope, receive, send)


class Unreachable(Exception):
    """The owner of a session may live, and cannot be reached."""


@dataclass(frozen=True, repr=False)
class Found(RedactedRepr):
    """The bridged session of a request."""

    claims: Claims
    upstream: Upstream


class WorkerAffinity:
    """What one middleware needs to serve sessions that live in one process on several workers."""

    def __init__(
        self,
        *,
        tokens: Tokens,
        ring: Callable[[], KeyRing],
        store: Store,
        namespace_of: NamespaceOf,
        clock: Callable[[], float],
        max_event_bytes: int,
        address: str | None = None,
        ports: range = range(1),
        drain: float = 30,
    ) -> None:
        self._drain: Final = drain
        self.address: Final = address
        self._tokens: Final = tokens
        self._ring: Final = ring
        self._store: Final = store
        self._namespace_of: Final = namespace_of
        self._clock: Final = clock
        self._max_event_bytes: Final = max_event_bytes
        self._ports: Final = ports
        self._workers: Workers | None = None
        self._owners: Ownerships | None = None
        self.entrance: Any = None  # where requests leave for other workers, and enter from them
        self.state: Callable[[], Mapping[str, Any]] = dict  # returns the lifespan's, of which each request gets a copy
        self._visits: Final = Visits()
        self._has_warned = False
        self._begun_again: dict[str, list[float]] = {}  # monotonic seconds, by session
        self._leaving: asyncio.Task[None] | None = None
        self._listening: asyncio.Lock | None = None
        self._serving: set[asyncio.Task[Any]] = set()
        self._taking: dict[str, asyncio.Lock] = {}

    # --- this worker ---

    def start(self) -> None:
        """Nothing begins here: `listen` can fail."""

    async def listen(self) -> None:
        """Let other workers find this one; a second call changes nothing.

        Raises:
            ConfigurationError: It cannot listen.
        """
        self._listening = self._listening or asyncio.Lock()
        async with self._listening:
            if self.is_listening:
                return
            audience = self._tokens.audience
            workers = Workers(self._store, audience, self._clock, address=self.address, ports=self._ports)
            self._owners = Ownerships(self._store, self._namespace_of, self._clock, workers.name, workers.is_held_since)
            await workers.start(self._connected)
            self._workers = workers
            on_termination(self._leave)

    def _leave(self) -> None:
        """Hand the sessions of this worker over, which has to stop."""
        if self._leaving is None and self._workers is not None:
            self._leaving = asyncio.get_running_loop().create_task(self._visits.leave(self._drain))

    async def stop(self) -> None:
        """Let no worker find this one any more."""
        no_longer(self._leave)
        workers, self._workers = self._workers, None
        if workers is not None:
            await workers.stop()
        for task in (*self._serving, *filter(None, [self._leaving])):
            task.cancel()

    @property
    def is_listening(self) -> bool:
        """Whether other workers can reach this one."""
        return self._workers is not None

    @property
    def workers(self) -> Workers:
        assert self._workers is not None, "it has been started"
        return self._workers

    @property
    def owners(self) -> Ownerships:
        assert self._owners is not None, "it has been started"
        return self._owners

    @property
    def data_store(self) -> DataStore:
        """The data of sessions, which this worker changes only in sessions that it owns."""
        return FencedStore(self._store, self.owners) if self.is_listening else self._store

    # --- requests that come here first ---

    async def handle(self, app: ASGIApp, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve a request here or by the worker that owns its session."""
        found = None if HOP in scope or LOST in scope else self.find(scope)
        if found is None or not self.owners.known(found.claims, found.upstream).owner or self._is_inside(scope):
            await app(scope, receive, send)
            return

        async def handle_found(scope: Scope, receive: Receive, send: Send) -> None:
            try:
                if await self.owners.owned(found.claims, found.upstream) is not None:
                    await app(scope, receive, send)
                else:
                    await self._handle_elsewhere(found, app, Incoming(scope, Kept(receive), send))
            except (Unreachable, StoreUnavailable):
                await send_unreachable(send)

        await self._visits.serve(found.claims.ref, handle_found, scope, receive, send)

    def _is_inside(self, scope: Scope) -> bool:
        """Return True if the caller was authenticated outside, which the owner could not repeat."""
        is_inside = "user" in scope
        if is_inside and not self._has_warned:
            self._has_warned = True
            _log.error(INSIDE)
        return is_inside

    def find(self, scope: Scope) -> Found | None:
        """Return the bridged session that a request names in its header, if its token is authentic."""
        copies = [value for name, value in scope["headers"] if name == SESSION_HEADER]
        if len(copies) != 1:
            return None
        ring = self._ring()
        try:
            verified = self._tokens.verified(ring, copies[0].decode("latin-1"))
            upstream = open_upstream(verified.key, verified.claims)
        except SessionNotFound:
            return None
        return None if upstream is None else Found(verified.claims, upstream)

    async def _handle_elsewhere(self, found: Found, app: ASGIApp, request: Incoming) -> None:
        """Let the owner of the session serve a request, or take the session over and serve it here."""
        claims, upstream, until, pause = found.claims, found.upstream, time.monotonic() + PATIENCE, SHORT_PAUSE
        while time.monotonic() < until:
            if await self.owners.owned(claims, upstream) is not None:
                await request.serve(app)
                return
            owner = self.owners.known(claims, upstream)
            outcome: Outcome = "gone"
            if owner.owner != self.workers.name:
                outcome = await self._relay(found, owner, request)
            if outcome == "served":
                return
            if await self.owners.read(claims, upstream) != owner:
                continue
            if outcome == "refused" or (owner.owner == self.workers.name and self.owners.is_being_taken(owner)):
                await asyncio.sleep(pause)
                pause = min(2 * pause, PAUSE)
            elif request.scope["method"].upper() == "DELETE":  # a session that ends need not be taken over
                await request.serve(app)
                return
            elif await self._take_over(found, owner, app, request):
                return
        raise Unreachable

    async def _relay(self, found: Found, owner: Ownership, request: Incoming) -> Outcome:
        channel = await self._reach(owner)
        if channel is None:
            return "gone"

        async def is_alive() -> bool:
            with suppress(StoreUnavailable):
                return await self.workers.row_of(owner.owner) is not None
            return True

        relay = Relay(channel, request.scope, request.kept, request.send, self._max_event_bytes)
        try:
            return await relay.run(found.claims.ref, is_alive)
        finally:
            channel.close()

    async def _reach(self, owner: Ownership) -> Channel | None:
        """Return a connection to a worker, or None if it is proved to be gone.

        Raises:
            Unreachable: It lives, and cannot be reached.
            StoreUnavailable: Nothing shows whether it lives.
        """
        first = None
        with_folder = True
        for _ in range(int(2 * LEASE / PAUSE)):
            refused = False
            if with_folder:
                try:
                    return await self._connect(owner.owner, self.workers.socket_of(owner.owner))
                except (FileNotFoundError, ConnectionRefusedError):
                    refused = True
                except (OSError, ConnectionLost, NotProved):
                    pass
            row = await self.workers.row_of(owner.owner)
            if row is None or row.is_leaving:
                return None
            is_here = row.directory == self.workers.directory
            if is_here and refused:
                return None
            if not is_here:
                with_folder = False
                if row.address is None:
                    raise Unreachable
                with suppress(OSError, ConnectionLost, NotProved):
                    return await self._connect(owner.owner, row.address)
            first = first or row
            if row.renewals != first.renewals:
                raise Unreachable
            await asyncio.sleep(PAUSE)
        raise Unreachable

    async def _connect(self, name: str, place: str | tuple[str, int]) -> Channel:
        key = self._ring().signing
        assert key.hop_key is not None, "it signs"
        if isinstance(place, str):
            reader, writer = await asyncio.open_unix_connection(place)
        else:
            reader, writer = await asyncio.wait_for(asyncio.open_connection(*place), PAUSE * 4)
        try:
            return await greet(reader, writer, name=name, kid=key.kid, key=key.hop_key)
        except BaseException:
            writer.close()
            raise

    # --- sessions of workers that are gone ---

    async def _take_over(self, found: Found, old: Ownership, app: ASGIApp, request: Incoming) -> bool:
        """Take a session over in the caller's name; return True if the request has been answered."""
        async with self._taking.setdefault(found.claims.ref, asyncio.Lock()):
            if self.owners.known(found.claims, found.upstream) != old:
                return False
            takeover = Takeover(old)
            await ping(app, request.scope, takeover)
        self._taking.pop(found.claims.ref, None)
        for message in takeover.refused:
            await request.send(message)
        if takeover.refused or takeover.has_rival or await self.owners.owned(found.claims, found.upstream) is not None:
            return bool(takeover.refused)
        takeover.is_over = True  # so the request is refused as the `ping` was, with the request's id
        await request.serve(app, takeover)
        return True

    def may_begin_again(self, ref: str) -> bool:
        """Return True if a session that the server has forgotten may begin there again, a few times a minute."""
        now = time.monotonic()
        recent = [moment for moment in self._begun_again.get(ref, ()) if now < moment + 60]
        if len(self._begun_again) > MAX_REMEMBERED:
            self._begun_again.clear()
        self._begun_again[ref] = [*recent, now]
        return len(recent) < MAX_BEGUN_AGAIN

    # --- requests of other workers ---

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._serving.add(task)
        try:
            channel = await accept(reader, writer, name=self.workers.name, key_of=self._hop_key)
            try:
                await self._serve(channel)
            finally:
                channel.close()
        except (ConnectionLost, NotProved, TimeoutError):
            pass
        finally:
            writer.close()
            self._serving.discard(task)

    def _hop_key(self, kid: str) -> bytes | None:
        key = self._ring().get(kid)
        return None if key is None else key.hop_key

    async def _serve(self, channel: Channel) -> None:
        request = await channel.receive()
        scope = {**request["scope"], "extensions": {}, "state": dict(self.state()), HOP: True}
        scope["headers"] = [(name, value) for name, value in scope["headers"]]
        for name in ("client", "server"):
            if scope.get(name) is not None:
                scope[name] = tuple(scope[name])
        found = self.find(scope)
        if found is None or await self.owners.owned(found.claims, found.upstream) is None:
            await channel.send({"type": "refused", "is_leaving": False})
        elif self._visits.is_leaving and not self._visits.is_busy(found.claims.ref):
            await channel.send({"type": "refused", "is_leaving": True})
        else:
            await serve(channel, partial(self._visit, found.claims.ref), scope)

    async def _visit(self, ref: str, scope: Scope, receive: Receive, send: Send) -> None:
        await self._visits.serve(ref, self.entrance, scope, receive, send)
