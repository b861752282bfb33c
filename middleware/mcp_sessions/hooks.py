"""The application's own code at the two ends of a session: `on_create` and `on_end`.

A hook may be a plain or an async function. Nothing here decides when a hook runs; that `on_end` runs
once is the store's work (`endings`).
"""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable
from typing import Any

from starlette.types import Scope

from .session import EndedSession, Session

OnCreate = Callable[[Session, dict[str, Any], Scope], Awaitable[None] | None]
"""Called with a new session, the `params` of `sessions/create` without `_meta`, and the ASGI scope.

It may fill the session's state and data, or raise `CreateRefused` with a message for the client.
"""

OnEnd = Callable[[EndedSession, str], Awaitable[None] | None]
"""Called with a session that has ended and the reason.

`"deleted"`, `"expired"`, `"idle"`, `"ended_all"` with all of its principal's, `"root_ended"` with its lineage,
`"not_begun"` where its client could not be told of it, or what `end` was given.
"""


async def call(hook: Callable[..., Awaitable[None] | None], *arguments: Any) -> None:
    """Run a hook to its end, whichever kind of function it is."""
    outcome = hook(*arguments)
    if inspect.isawaitable(outcome):
        await outcome
