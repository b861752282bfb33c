"""Sessions without a request, minted and opened with the options of a small middleware."""

from __future__ import annotations

import json

from apps import Server, sessions
from clients import Clock, http

from mcp_sessions._protocol.draft import SessionMetadata
from mcp_sessions._server import minting
from mcp_sessions._server.active import ActiveSession
from mcp_sessions._server.options import HOUR
from mcp_sessions._server.runtime import Runtime
from mcp_sessions._server.sessions import open_session
from mcp_sessions._session.claims import Principal

ALICE = Principal(subject="alice")
BOB = Principal(subject="bob")
PARAMS = {"plan": "free"}
SCOPE = http()


def options_of(clock: Clock, **options: object) -> Runtime:
    return sessions(Server(), clock=clock, lifetime=10 * HOUR, **options)._runtime


async def mint(options: Runtime, principal: Principal | None = None) -> ActiveSession:
    return await minting.mint(options, principal=principal, params=PARAMS, scope=SCOPE)


def named(live: ActiveSession) -> SessionMetadata:
    """Return the metadata that a client sends back."""
    metadata = json.loads(live.encode_metadata())
    return SessionMetadata(metadata["sessionId"], metadata.get("state"))


async def reopen(
    named: SessionMetadata, options: Runtime, principal: Principal | None = None, *, fail_open: bool = False
) -> ActiveSession:
    return await open_session(named, options, principal=principal, fail_open=fail_open)
