"""What every refusal has: a code, an HTTP status and one text for the client, and one reason for the log.

The reason never leaves the server. The tree is drawn in the package.
"""

from __future__ import annotations

from typing import ClassVar

from .application import MCPSessionsError


class Refusal(MCPSessionsError):
    """A request that is answered with a JSON-RPC error instead of being forwarded.

    Attributes:
        code: JSON-RPC error code.
        http_status: HTTP status of the answer.
        message: The wire text, the same for every instance of the class.
        reason: Machine-readable cause for logs and spans. Never sent.
        ref: The public name of the session concerned, for logs, where its id is authentic. Never sent.
        retry_after: Seconds after which to try again, for the header of that name, or None.
    """

    code: ClassVar[int]
    http_status: ClassVar[int]
    message: ClassVar[str]
    reason: str
    ref: str | None
    retry_after: int | None = None

    def __init__(self, reason: str | None = None, *, ref: str | None = None) -> None:
        super().__init__(self.message)
        if reason is not None:
            self.reason = reason
        self.ref = ref

    @property
    def told(self) -> str:
        """What the client is told."""
        return self.message
