"""Sessions by hand, with the official SDK's client, which does not support them.

A session is what the server gave out: `sessionId`, and `state` once there is one. It goes along in the `_meta` of each
request, and what comes back in the `_meta` of the result is taken over; a state that does not come back has not changed
and is kept. One client can hold any number of sessions at once. Nothing here reads the id or the state, and nothing
shows them: the id is a credential.
Source: the data-layer sessions draft.
"""

from __future__ import annotations

from typing import Any, Final, cast

from mcp import Client
from mcp.types import CallToolResult, EmptyResult, Request, RequestParams, RequestParamsMeta, Result, TextContent

KEY: Final = "io.modelcontextprotocol/session"


class ToolFailed(Exception):
    """The tool ran and failed; the message is the tool's own."""


class Created(Result):
    """The result of `sessions/create`."""

    session: dict[str, Any]


class HeldSession:
    """One session of a client on a server."""

    def __init__(self, client: Client, metadata: dict[str, Any]) -> None:
        self._client = client
        self.metadata = metadata

    @classmethod
    async def create(cls, client: Client) -> HeldSession:
        """Ask the server for a new session."""
        created = await client.session.send_request(_request("sessions/create"), Created)
        return cls(client, created.session)

    @property
    def meta(self) -> RequestParamsMeta:
        """The `_meta` of a request in this session. `expiresAt` is not sent back."""
        carried = {name: self.metadata[name] for name in ("sessionId", "state") if name in self.metadata}
        return cast("RequestParamsMeta", {KEY: carried})

    async def call(self, tool: str, **arguments: Any) -> Any:
        """Call a tool in this session.

        Returns:
            What the tool returned.

        Raises:
            ToolFailed: The tool failed.
            MCPError: The server refused the call; `code` says why.
        """
        result = await self._client.call_tool(tool, arguments, meta=self.meta)
        self.metadata |= (result.meta or {})[KEY]
        return answer(result)

    async def delete(self) -> None:
        """End the session. Calls after this one are refused."""
        await self._client.session.send_request(_request("sessions/delete", self.meta), EmptyResult)


def answer(result: CallToolResult) -> Any:
    """Return the value that a tool returned.

    Raises:
        ToolFailed: The tool failed.
    """
    if result.is_error:
        raise ToolFailed(" ".join(part.text for part in result.content if isinstance(part, TextContent)))
    content = result.structured_content or {}
    return content["result"] if content.keys() == {"result"} else content  # objects come as they are


def _request(method: str, meta: RequestParamsMeta | None = None) -> Request[RequestParams, str]:
    return Request[RequestParams, str](method=method, params=RequestParams(_meta=meta))
