"""A note of how calls name their session, and in which protocol version, for a server of several workers."""

from pathlib import Path

from starlette.types import ASGIApp, Message, Receive, Scope, Send

VERSION = b"mcp-protocol-version"


def noted(app: ASGIApp, notes: Path) -> ASGIApp:
    """Append `version way` to a file for each tool call, as it is before the middleware reads it."""

    async def note(scope: Scope, receive: Receive, send: Send) -> None:
        headers = dict(scope.get("headers", ()))
        body = bytearray()

        async def read() -> Message:
            message = await receive()
            body.extend(message.get("body", b""))
            return message

        await app(scope, read, send)
        if b'"tools/call"' in body:
            way = "`_meta`" if b'"sessionId"' in body else ""
            way = way or ("header" if b"mcp-session-id" in headers else "cookie" if b"cookie" in headers else "")
            with notes.open("a", encoding="utf-8") as file:
                file.write(f"{headers.get(VERSION, b'').decode()} {way}\n")

    return note
