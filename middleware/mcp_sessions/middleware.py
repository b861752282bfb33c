"""The ASGI shell: options in, requests sorted, each POST to the MCP path handed to its `Exchange`.

Nothing is decided about sessions here. Everything that is not HTTP on the MCP path passes through
as the very same objects.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable
from functools import cached_property

from starlette.types import ASGIApp, Receive, Scope, Send

from . import options, placement, principals, protocol, workers
from .answers import Answers
from .errors import ConfigurationError, Refusal
from .events import Listener
from .exchange import Exchange
from .head import Head
from .keyfile import Keys
from .options import DAY, MEBIBYTE, Admission, Seconds
from .paths import Place, place
from .policy import Require
from .principals import PrincipalOf
from .protocol import Lists
from .stores.base import Store
from .stores.memory import MemoryStore
from .tokens import MAX_TOKEN_BYTES


class MCPSessionMiddleware:
    """Logical sessions for an MCP server behind Streamable HTTP.

    Wrap any ASGI application, or hand the class to `add_middleware` of Starlette or FastAPI, or to
    FastMCP's `http_app(middleware=[...])`. The session of a request is on `scope["mcp_session"]`.

    Args:
        app: The application to wrap.
        keys: What sessions are signed and sealed with: one secret of at least 32 bytes, several (the
            first signs, all verify), `"env:NAME"`, `"file:PATH"`, or a `KeyRing`. None makes a key
            that dies with the process.
        path: The MCP endpoint, relative to where this is mounted. None means every path, and then
            only JSON is looked at.
        audience: Who the sessions are for. Give each server its own where several share keys.
        issuer: Who mints the sessions.
        lifetime: Seconds from creation to the absolute end, or a `timedelta`.
        idle_timeout: Seconds without a request after which a session ends, or a `timedelta`. None
            means that only `lifetime` counts.
        require: Which requests need a session: `"never"`, `"always"`, methods, names by method, or a
            function. See `mcp_sessions.policy`.
        lists: Whether lists may vary by session: `"stable"` (they cannot), `"session"` or
            `"untouched"`. None takes the era's default: stable in the modern one, session before.
        store: Where ended sessions are remembered: `"memory:"` or a `Store`.
        principal: A function of the ASGI scope that tells who a request is authenticated as. None
            reads what the SDK's, FastMCP's or Starlette's authentication left on the scope.
        admission: `"ask"` lets the wrapped server's own guards judge a caller before we answer;
            `"own"` trusts the guards outside of this middleware.
        not_found_code: JSON-RPC code of "Session not found".
        required_code: JSON-RPC code of "Session required".
        max_body_bytes: Bytes that a request body may have.
        max_state_bytes: Bytes that a session's sealed state may have.
        max_event_bytes: Bytes of one event in a response stream that are held to be changed.
        max_batch: Messages that a JSON-RPC batch may hold (protocol 2025-03-26 only).
        max_nesting: Levels of arrays and objects in each other that a body may have. More than the
            interpreter's recursion limit leaves are refused all the same.
        max_token_bytes: Bytes that a session id may have.
        body_timeout: Seconds that a request body may take to arrive.
        create_limit: Sessions that a principal may create per minute and process; callers without a
            principal share one budget. None sets no limit.
        token_cache: Verified tokens that are remembered; 0 remembers none.
        listen: Called with every fact of `mcp_sessions.events`. It must not block or raise.
        clock: Unix seconds. For tests.

    Raises:
        ConfigurationError: An option is wrong; the message says what to write instead.
    """

    def __init__(
        self,
        app: ASGIApp,
        *,
        keys: Keys = None,
        path: str | None = "/mcp",
        audience: str = "mcp-sessions",
        issuer: str = "mcp-sessions",
        lifetime: Seconds = 7 * DAY,  # seconds
        idle_timeout: Seconds | None = None,  # seconds
        require: Require = "never",
        lists: Lists | None = None,
        store: str | Store = "memory:",
        principal: PrincipalOf | None = None,
        admission: Admission = "ask",
        not_found_code: int = -32043,
        required_code: int = -31044,
        max_body_bytes: int = 4 * MEBIBYTE,
        max_state_bytes: int = 4096,
        max_event_bytes: int = 64 * MEBIBYTE,
        max_batch: int = 100,  # messages
        max_nesting: int = 1_000,  # levels
        max_token_bytes: int = MAX_TOKEN_BYTES,
        body_timeout: Seconds = 30,  # seconds
        create_limit: int | None = None,  # sessions per minute
        token_cache: int = 10_000,  # entries
        listen: Listener | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self.app = app
        self._random_keys = keys is None
        self._options = options.check(
            keys=keys,
            path=path,
            audience=audience,
            issuer=issuer,
            lifetime=lifetime,
            idle_timeout=idle_timeout,
            require=require,
            lists=lists,
            store=store,
            principal=principal,
            admission=admission,
            not_found_code=not_found_code,
            required_code=required_code,
            max_body_bytes=max_body_bytes,
            max_state_bytes=max_state_bytes,
            max_event_bytes=max_event_bytes,
            max_batch=max_batch,
            max_nesting=max_nesting,
            max_token_bytes=max_token_bytes,
            body_timeout=body_timeout,
            create_limit=create_limit,
            token_cache=token_cache,
            listen=listen,
            clock=clock,
        )

    @cached_property
    def fault(self) -> str | None:
        """Why this must not serve, with the remedy, or None. Looked for at the start, and at the first request."""
        if self._options.principal is principals.from_scope and placement.authenticates(self.app, self._options.path):
            return placement.MISPLACED
        return self._crowded

    @cached_property
    def _crowded(self) -> str | None:
        return workers.fault(random_keys=self._random_keys, memory_store=isinstance(self._options.store, MemoryStore))

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            await self._serve(scope, receive, send)
        elif scope["type"] == "lifespan":
            await self._start(scope, receive, send)
        else:
            await self.app(scope, receive, send)

    async def _start(self, scope: Scope, receive: Receive, send: Send) -> None:
        if self.fault is not None:
            await placement.refuse_start(receive, send, self.fault)
            return
        placement.log_unserved(self.app, self._options.path)
        del self.fault  # the application may add routes while it starts: look again at the first request
        await self.app(scope, receive, send)

    def _serve(self, scope: Scope, receive: Receive, send: Send) -> Awaitable[None]:
        where = self._where(scope)
        if where is Place.ELSEWHERE:
            return self.app(scope, receive, send)
        if self.fault is not None:  # mounted applications, and servers without a lifespan, come here unwarned
            raise ConfigurationError(self.fault)
        head = Head(scope["headers"])
        judged = scope["method"] == "POST" and (where is Place.ENDPOINT or head.is_json)
        try:
            mirror = protocol.mirror_of(head.session_ids)
            if not judged:
                protocol.check_mirror(mirror, None)
        except Refusal as refusal:
            return Answers(self.app, self._options, head, scope, receive, send).refuse_bodyless(refusal)
        if not judged:
            return self.app(scope, receive, send)
        strict = where is Place.ENDPOINT
        return Exchange(self.app, self._options, head, mirror, strict, scope, receive, send).run()

    def _where(self, scope: Scope, /) -> Place:
        return place(scope, self._options.path)
