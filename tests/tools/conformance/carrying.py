"""A session in every message, as a client sends that always names its session.

Stands in front of the middleware and writes one session into each request and notification. Responses to the server's
own requests, and other bodies, pass unchanged.
"""

from __future__ import annotations

import json
from typing import Any, Final

from apps import read
from starlette.types import ASGIApp, Message, Receive, Scope, Send

SESSION_KEY: Final = "io.modelcontextprotocol/session"


class Carrying:
    """An application whose callers all hold one session, given as in `_meta`."""

    def __init__(self, app: ASGIApp, session: dict[str, Any]) -> None:
        self._app = app
        self._session = session

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["method"] != "POST":
            await self._app(scope, receive, send)
            return
        body = self._with_session(await read(receive))
        headers = [(name, value) for name, value in scope["headers"] if name != b"content-length"]
        headers.append((b"content-length", b"%d" % len(body)))
        whole: Message | None = {"type": "http.request", "body": body, "more_body": False}

        async def replay() -> Message:
            nonlocal whole
            if whole is None:
                return await receive()
            message, whole = whole, None
            return message

        await self._app({**scope, "headers": headers}, replay, send)

    def _with_session(self, body: bytes) -> bytes:
        message = json.loads(body)
        if "method" not in message:
            return body
        params = message.get("params", {})
        meta = {**params.get("_meta", {}), SESSION_KEY: self._session}
        return json.dumps({**message, "params": {**params, "_meta": meta}}).encode()
