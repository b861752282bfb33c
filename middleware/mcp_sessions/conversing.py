"""One request's way where the names of conversations are looked for: the same way, with a label around it.

What spans and handlers find without a scope is a context variable, which must not outlive its request.
"""

from __future__ import annotations

from .current import correlation_variable
from .exchange import Exchange


class ConversingExchange(Exchange):
    """One POST to the MCP path, in a deployment with `correlate=` or `propagate=`."""

    async def run(self) -> None:
        """Take the request from its first byte to the last of its response."""
        token = correlation_variable.set(None)
        try:
            await super().run()
        finally:
            correlation_variable.reset(token)
