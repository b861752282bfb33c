"""Claims and sessions that no token was minted for, to test sessions without a server."""

from dataclasses import dataclass, field
from typing import Any

from clients import START

from mcp_sessions import Data, Principal, Session, State
from mcp_sessions._session.claims import AUDIENCE, SESSION
from mcp_sessions.stores import Claims, MemoryStore, Namespace


def claims(**changes: Any) -> Claims:
    """The claims of a session that lives for an hour, and is anonymous."""
    usual = {"kind": SESSION, "issuer": AUDIENCE, "audience": AUDIENCE, "jti": "j" * 22}
    return Claims(**{**usual, "issued_at": START, "expires_at": START + 3600, **changes})


def claims_of(ref: str, issued_at: int = 0) -> Claims:
    """The claims of a session whose reference can be chosen."""
    chosen = claims(issued_at=issued_at, expires_at=2**40)
    vars(chosen)["ref"] = ref  # what is derived from the `jti` otherwise
    return chosen


@dataclass
class NoServer:
    """What a session asks of its middleware; `ended` notes why it was ended."""

    stated: bytes | None = None
    ended: list[str] = field(default_factory=list)

    def data(self, ref: str, expires_at: int, subject: str | None, loop: Any) -> Data:
        """An empty place in a store of its own."""
        return Data(MemoryStore(), Namespace(ref, 2**40, 100), clock=lambda: 0, max_value_bytes=100)

    def principal(self, scope: object) -> None:
        return None

    async def client_capabilities(self, claims: Claims) -> bytes | None:
        return self.stated

    async def end_session(self, claims: Claims, reason: str) -> None:
        self.ended.append(reason)


def session_of(token: str, server: NoServer | None = None, principal: Principal | None = None) -> Session:
    """A session with a token of one's choice, which expires a minute after 1970 began."""
    held = State(None, check=len)
    return Session(server or NoServer(), claims_of("ses_abc"), principal, 60, held, token)
