"""An open session that no token was minted for, to test sessions without one."""

from dataclasses import dataclass, field
from typing import Any

from clients import START

from mcp_sessions import Claims, Data, Principal, State
from mcp_sessions._session.claims import AUDIENCE, SESSION
from mcp_sessions.stores import MemoryStore, Namespace


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
class Made:
    """What a session is a view of; `ended` notes why it was ended."""

    token: str
    claims: Claims = field(default_factory=lambda: claims_of("ses_abc"))
    ends_at: int = 60
    principal: Principal | None = None
    stated: bytes | None = None
    ended: list[str] = field(default_factory=list)
    state: State = field(default_factory=lambda: State(None, check=len))

    def data(self) -> Data:
        """An empty place in a store of its own."""
        return Data(MemoryStore(), Namespace("ses_abc", 2**40, 100), clock=lambda: 0, max_value_bytes=100)

    def is_handling(self, scope: object) -> bool:
        return True

    async def capabilities(self) -> bytes | None:
        return self.stated

    async def end(self, reason: str) -> None:
        self.ended.append(reason)
