"""The ASGI middleware: it sorts requests by path, and hands each to the endpoint to `serve` as a `Request`."""

from __future__ import annotations

import logging
from collections.abc import Awaitable
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, ClassVar, Final

from starlette.types import ASGIApp, Receive, Scope, Send

from .._dialects import Options, dialects_of
from .._errors import ConfigurationError, Refusal
from .._protocol.headers import RequestHeaders
from .._protocol.policy import Policy
from . import option_types, rule_checks, startup_checks
from .context import Request
from .decide import Rules
from .environment import checked_options, from_env, takes_options
from .lifecycle import Services
from .principal import from_scope
from .request import extract_credentials, serve
from .routing import Place, Routing
from .runtime import Runtime

if TYPE_CHECKING:
    from asgiref.typing import ASGI3Application
    from typing_extensions import Unpack

    from .._affinity.affinity import WorkerAffinity

_log: Final = logging.getLogger("mcp_sessions")


class MCPSessionMiddleware:
    """Logical sessions for an MCP server behind Streamable HTTP.

    Wrap any ASGI application, or pass the class to `add_middleware` of Starlette or FastAPI, or to
    FastMCP's `http_app(middleware=[...])`. The session of a request is on `scope["mcp_session"]`.

    Args:
        app: The application to wrap.
        given: The options, which `Options` describes. The most common are `keys`, `store`, `require` and `lifetime`.

    Raises:
        ConfigurationError: An option is wrong; the message names the remedy.
    """

    _is_at_endpoint: ClassVar[bool] = False  # whether all requests here are for the endpoint, whatever their path

    @takes_options()
    def __init__(self, app: ASGIApp | ASGI3Application, **given: Unpack[Options]) -> None:
        self.app: ASGIApp = option_types.application(app)
        options = checked_options(given)
        self._runtime = Runtime(self.app, options)
        policy, legacy_only = Policy(options["require"]), options["wire"].era == "legacy"
        self._dialects: Final = dialects_of(self._runtime, policy.summary)
        self._rules: Final = Rules(
            dialects=self._dialects,
            policy=policy,
            lists=options["wire"].lists,
            legacy_only=legacy_only,
            fail_open=options["on_store_error"] == "allow",
            reads_everything=self._dialects.reads_everything or legacy_only or policy.summary != "never",
        )
        self.path: Final = options["path"]
        ambiguous_place: Place = "maybe_mcp" if self._rules.reads_everything else "elsewhere"
        self._routing: Final = Routing(self.app, options["path"], ambiguous_place=ambiguous_place)
        self._require: Final = options["require"]
        self._has_random_keys: Final = options["keys"] is None
        self._is_checked = False  # whether this may serve
        self._is_seen = self._is_at_endpoint  # whether the path of the endpoint was checked
        self.services: Final = Services(
            self._runtime.store,
            self._runtime.background_services,
            closes=isinstance(options["store"], str),
            on_start=self._on_start,
        )
        if any(one.lives_in_process for one in self._dialects.all):
            self._runtime.connect_workers(self, lambda: self.services.state)

    @classmethod
    @takes_options()
    def from_env(cls, app: ASGIApp | ASGI3Application, **options: Unpack[Options]) -> MCPSessionMiddleware:
        """Wrap an application, with options from environment variables such as `MCP_SESSIONS_LIFETIME=12h`.

        Keyword arguments override the environment.

        Raises:
            ConfigurationError: A variable or an option is wrong; the message names the remedy.
        """
        return cls(app, **from_env(**options))

    async def _check_ready(self) -> None:
        """Run the first-request checks and start background services."""
        # Neither a mounted middleware nor a server without a lifespan was checked before.
        if (error := self.configuration_error) is not None:
            raise ConfigurationError(error)
        if not self.services.has_lifespan:
            await self._on_start()
        self._is_checked = True
        self.services.started()

    async def _check_rules(self) -> None:
        """Check what `require=` names against what the wrapped server lists."""
        policy = self._rules.policy
        if (error := await rule_checks.error_of_rules(self.app, self.path, self._require, policy)) is not None:
            raise ConfigurationError(error)

    def _check_path(self) -> None:
        """Check that a route serves the endpoint. If none does, no message would meet the rules of `require=`."""
        error = None if self._is_seen else startup_checks.unserved(self.app, self.path)
        has_rules = self._rules.policy.summary != "never"
        if error is not None and has_rules:
            raise ConfigurationError(error)
        if error is not None:
            _log.error(error)
        self._routing.is_ambiguous = has_rules and not startup_checks.is_certain(self.app, self.path)
        self._is_seen = True

    @property
    def affinity(self) -> WorkerAffinity | None:
        """What lets other workers serve the sessions of this process, if they share the store."""
        return self._runtime.affinity

    @property
    def configuration_error(self) -> str | None:
        """Why this must not serve, with the remedy, or None. It is read at startup and at the first request."""
        if self._runtime.principal is from_scope and startup_checks.authenticates(self.app, self.path):
            return startup_checks.MISPLACED
        if startup_checks.repeats(self.app, self.path):
            return startup_checks.DUPLICATE_MIDDLEWARE
        return startup_checks.workers_error(self._runtime, self._dialects, random_keys=self._has_random_keys)

    def _place(self, scope: Scope) -> Place:
        """Return the place of a request. A websocket upgrade is elsewhere."""
        if scope["type"] != "http":
            return "elsewhere"
        if not self._is_seen:  # it is mounted, or the server runs no lifespan
            self._check_path()
        return "endpoint" if self._is_at_endpoint else self._routing.place(scope)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._run_lifespan(scope, receive, send)
            return
        if scope["type"] == "websocket":  # no session is opened for it
            with suppress(Refusal):
                extract_credentials(self._request(scope, receive, send), self._dialects)
        place = self._place(scope)
        if place == "elsewhere":
            await self.app(scope, receive, send)
            return
        if not self._is_checked:
            await self._check_ready()
        affinity = self._runtime.affinity
        if affinity is None or affinity.entrance is not self or not affinity.is_listening:
            await self._serve(place, scope, receive, send)
        else:
            await affinity.handle(partial(self._serve, place), scope, receive, send)

    def _serve(self, place: Place, scope: Scope, receive: Receive, send: Send) -> Awaitable[None]:
        """Serve a request in this process."""
        request = self._request(scope, receive, send)
        request.at_endpoint = place == "endpoint"
        return self._serve_wrapped(request) if self._dialects.wrap else serve(request, self._rules)

    async def _serve_wrapped(self, request: Request) -> None:
        for wrap in self._dialects.wrap:
            request.app = wrap(request, request.app)
        try:
            await serve(request, self._rules)
        finally:
            request.app = self.app  # a wrapper may refer to the request: a cycle

    def _request(self, scope: Scope, receive: Receive, send: Send) -> Request:
        return Request(self._runtime, self.app, scope, receive, send, RequestHeaders(scope["headers"]))

    async def _on_start(self) -> None:
        """Check the started application, start to count, and log how clients get sessions."""
        self._check_path()
        await self._check_rules()
        self._runtime.recording.begin()
        await self._runtime.listen_to_workers()
        if self.services.has_lifespan:
            startup_checks.log_start(self.app, self.path, self._runtime, self._dialects)
        else:
            startup_checks.log_unstarted(self.app, self.path)
        startup_checks.log_memory(self._runtime, random_keys=self._has_random_keys)

    async def _run_lifespan(self, scope: Scope, receive: Receive, send: Send) -> None:
        text = self.configuration_error
        if text is None:
            try:
                await self.services.open()
            except ConfigurationError as error:
                text = str(error)
        if text is not None:  # answered so that the server stops and prints it
            await receive()
            await send({"type": "lifespan.startup.failed", "message": text})
            raise ConfigurationError(text)  # some servers wait for the end, as Starlette's `TestClient` does
        self._is_checked = False  # a second start is checked again
        await self.services.run(self.app, scope, receive, send)
