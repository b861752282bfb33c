"""A note of what sessions calls have, and in which protocol version they are, for a server of several workers."""

from pathlib import Path

from starlette.types import ASGIApp, Message, Receive, Scope, Send

VERSION = b"mcp-protocol-version"


def noted(app: ASGIApp, notes: Path) -> ASGIApp:
    """Append `version kind` to a file for each tool call, as the application sees its session."""

    async def note(scope: Scope, receive: Receive, send: Send) -> None:
        headers = dict(scope.get("headers", ()))
        body = bytearray()

        async def read() -> Message:
            message = await receive()
            body.extend(message.get("body", b""))
            return message

        await app(scope, read, send)
        if b'"tools/call"' in body:
            session = scope.get("mcp_session")
            kind = "none" if session is None else session.kind
            with notes.open("a", encoding="utf-8") as file:
                file.write(f"{headers.get(VERSION, b'').decode()} {kind}\n")

    return note
