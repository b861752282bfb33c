"""The same work for the most common request alone, in one function: how much of the cost is how the code is divided.

It reads, verifies and writes with the package's own rooms, and gives the same answer. All that other requests need is
left out: other paths and methods, bodies and answers in pieces, event streams, dialects, policies, records, refusals,
telemetry. What it takes more than the limit is therefore what no arrangement of this code could save.
"""

from __future__ import annotations

from functools import partial
from typing import Final

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from mcp_sessions import MCPSessionMiddleware, Session
from mcp_sessions._protocol import decision, jsonrpc, rewrite
from mcp_sessions._server.body import Replay
from mcp_sessions._server.sessions import LATE, ActiveSession
from mcp_sessions._session.current import session_variable
from mcp_sessions.stores.base import LIVE

_ACCEPT_CODING: Final = b"accept-encoding"
_JSON: Final = b"application/json"
_LENGTH: Final = b"content-length"


class OneFunction:
    """A middleware that knows one kind of request: a POST with a session that was verified before.

    Args:
        ours: The middleware whose options it takes.
    """

    def __init__(self, ours: MCPSessionMiddleware) -> None:
        self._app: Final[ASGIApp] = ours.app
        self._options: Final = ours._options

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        options, headers = self._options, scope["headers"]
        by_name = dict(headers)
        assert scope["path"] == options.path
        assert b"mcp-session-id" not in by_name
        body = (await receive())["body"]
        message = jsonrpc.parse(body)
        assert isinstance(message, jsonrpc.Message)
        assert message.method not in options.subjects
        named = decision.requested_session(message, None)
        assert named is not None
        assert len(body) <= options.max_body_bytes
        now, principal = options.clock(), options.principal(scope)
        ring = options.ring(now)
        claims = options.tokens.verify(ring, named.session_id, now=now, principal=principal)
        assert await options.store.status(claims) is LIVE
        live = ActiveSession(named.session_id, claims, ring, options, principal, None, claims.expires_at, now + LATE)
        scope["headers"] = [header for header in headers if header[0] != _ACCEPT_CODING]
        session = scope["mcp_session"] = scope["state"]["mcp_session"] = Session(live)
        held: list[Message] = []
        token = session_variable.set(session)
        try:
            await self._app(scope, Replay(body, receive), partial(_answer, send, message.id or b"", live, held))
        finally:
            session_variable.reset(token)


async def _answer(send: Send, request_id: bytes, live: ActiveSession, held: list[Message], message: Message) -> None:
    if not held:
        assert (b"content-type", _JSON) in message["headers"]
        held.append(message)
        return
    changed = rewrite.echo(message["body"], request_id, live.echo)
    assert changed is not None
    kept = [header for header in held[0]["headers"] if header[0].lower() != _LENGTH]
    await send({**held[0], "headers": [*kept, (_LENGTH, b"%d" % len(changed))]})
    await send({**message, "body": changed})
