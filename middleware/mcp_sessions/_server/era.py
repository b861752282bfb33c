"""`Wire(era="auto")`: clients on runtimes without cookies are led to the legacy era, where a header names sessions.

Their `server/discover` is answered as a legacy server answers it, and every such client that was tried falls back. The
wrapped server is asked first, once per process and in the name of the caller, whether `initialize` leads anywhere: its
discover result does not say. All other clients stay in the modern era.
"""

from __future__ import annotations

import logging
from secrets import token_hex
from typing import Final

import msgspec

from .._protocol.cookies import DISCOVER
from .._protocol.draft import INITIALIZE, speaks_draft
from .._protocol.headers import SESSION_HEADER, VERSION, edit, runtime_without_cookies
from .._protocol.jsonrpc import REQUEST, Message
from .._protocol.strict_json import join
from .answers import ResponseRecorder, end_upstream, probe_app, probe_scope
from .body import replay
from .context import BridgedInitialize, RequestContext, session_header_values

_INITIALIZE: Final = {
    "protocolVersion": "2025-11-25",
    "capabilities": {},
    "clientInfo": {"name": "mcp-sessions", "version": "0"},
}
_NOT_ADMITTED: Final = frozenset({401, 403, 408, 429})
_log: Final = logging.getLogger("mcp_sessions")


async def leads_to_legacy(ctx: RequestContext, message: Message) -> bool:
    """Whether a message is the `server/discover` of a client that gets a session in the legacy era only."""
    if not ctx.runtime.transport.leads_to_legacy or message.method != DISCOVER or message.kind is not REQUEST:
        return False
    runtime, product = ctx.runtime, runtime_without_cookies(ctx.headers)
    if product is None or not ctx.headers.is_modern or speaks_draft(message):
        return False
    if runtime.serves_legacy is None:
        runtime.serves_legacy = await _serves_legacy(ctx)
    if runtime.serves_legacy and product not in runtime.led_to_legacy:
        runtime.led_to_legacy.add(product)
        _log.info('era="auto": clients on %s keep no cookies, so they are led to the legacy era', product)
    return runtime.serves_legacy is True


async def _serves_legacy(ctx: RequestContext) -> bool | None:
    """Ask whether `initialize` begins a session of ours; None where the server does not admit this caller."""
    request_id = b'"era-%b"' % token_hex(8).encode()
    body = join({"jsonrpc": "2.0", "id": msgspec.Raw(request_id), "method": INITIALIZE, "params": _INITIALIZE})
    question, recorder = probe_scope(ctx.scope, body), ResponseRecorder(request_id)
    question["headers"] = edit(question["headers"], drop=(VERSION, SESSION_HEADER))
    ctx.bridge = BridgedInitialize(is_orphaned=True)  # by which a session that begins is ended at once
    await probe_app(ctx.app, question, replay(body, ctx.receive), recorder)
    ctx.bridge = None
    if recorder.status in _NOT_ADMITTED or recorder.status >= 500:
        return None
    transport = ctx.runtime.transport
    own = [value for start in recorder.messages[:1] for value in session_header_values(start)]
    if own:  # the server keeps transport sessions, and a client gets none of ours beside them
        await end_upstream(ctx.app, question, ctx.receive, own[0])
    return recorder.succeeded and not own and (transport.header or transport.bridges)
