"""The session in handlers of the official SDK, 1.x and 2.x.

With SDK 2.x a tool asks for it as for any resolved argument, which is not part of the tool's schema:
`Annotated[Session, Resolve(require_session)]`, or `Annotated[Session | None, Resolve(current_session)]`. With
SDK 1.x, which resolves nothing, a handler calls either.
"""

from .._server.current import current_session, require_session

__all__ = ["current_session", "require_session"]
