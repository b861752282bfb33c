"""Sessions without a request, minted and opened with the options of a small middleware."""

from __future__ import annotations

from apps import Server, sessions
from clients import Clock, http

from mcp_sessions._protocol.draft import SessionMetadata
from mcp_sessions._server import minting
from mcp_sessions._server.options import HOUR
from mcp_sessions._server.runtime import Runtime
from mcp_sessions._server.sessions import ActiveSession, open_session
from mcp_sessions._session.claims import Claims, Principal
from mcp_sessions.errors import StoreUnavailable
from mcp_sessions.stores.base import Record, Standing
from mcp_sessions.stores.memory import MemoryStore

ALICE = Principal(subject="alice")
BOB = Principal(subject="bob")
PARAMS = {"plan": "free"}
SCOPE = http()


def options_of(clock: Clock, **options: object) -> Runtime:
    return sessions(Server(), clock=clock, lifetime=10 * HOUR, **options)._options


async def mint(options: Runtime, principal: Principal | None = None) -> ActiveSession:
    return await minting.mint(options, principal=principal, params=PARAMS, scope=SCOPE)


def named(live: ActiveSession) -> SessionMetadata:
    """Return the metadata that a client sends back."""
    metadata = live.metadata()
    return SessionMetadata(metadata["sessionId"], metadata.get("state"))


async def reopen(
    named: SessionMetadata, options: Runtime, principal: Principal | None = None, *, fail_open: bool = False
) -> ActiveSession:
    return await open_session(named, options, principal=principal, fail_open=fail_open)


class Away(MemoryStore):
    """A store that does not answer while it is away."""

    is_away = True

    async def status(self, claims: Claims) -> Standing:
        if self.is_away:
            raise StoreUnavailable
        return await super().status(claims)

    async def register(self, record: Record) -> None:
        if self.is_away:
            raise StoreUnavailable
        await super().register(record)

    async def revoke(self, ref: str, *, audience: str, expires_at: int, reason: str, lease: float) -> bool:
        if self.is_away:
            raise StoreUnavailable
        return await super().revoke(ref, audience=audience, expires_at=expires_at, reason=reason, lease=lease)
