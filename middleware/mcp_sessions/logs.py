"""Facts as log lines, on the logger `mcp_sessions`.

A line names a session by its `ref` and a refusal by its reason. What a client wrote is cut and
quoted, so that no request can write a line of its own.
"""

from __future__ import annotations

import logging
from typing import Final

from .events import Fact, RequestRefused, SessionCreated, SessionDeleted, SessionUsed

_log: Final = logging.getLogger("mcp_sessions")
_MAX_METHOD: Final = 64  # characters of a client's method name that are worth a log line


def log_fact(fact: Fact) -> None:
    """Write one fact down: refusals, creations and ends at INFO, uses at DEBUG."""
    if isinstance(fact, SessionUsed):
        _log.debug("session %s used by %s", fact.ref, _quoted(fact.method))
    elif isinstance(fact, RequestRefused):
        _log.info("refused %s: %s (%d), session %s", _quoted(fact.method), fact.reason, fact.code, fact.ref)
    elif isinstance(fact, SessionCreated):
        _log.info("session %s created", fact.ref)
    elif isinstance(fact, SessionDeleted):
        _log.info("session %s ended: %s", fact.ref, fact.reason)


def _quoted(method: str | None) -> str:
    return "a body that was not read" if method is None else ascii(method[:_MAX_METHOD])
