"""Facts as log lines, on the logger `mcp_sessions`.

A line names a session by its `ref` and a refusal by its reason. What a client wrote is cut and
quoted, so that no request can write a line of its own.
"""

from __future__ import annotations

import logging
from typing import Final

from .events import Fact, RequestRefused, SessionCreated, SessionDeleted

_log: Final = logging.getLogger("mcp_sessions")
_MAX_METHOD: Final = 64  # characters of a client's method name that are worth a log line


def log_fact(fact: Fact) -> None:
    """Write one fact down at INFO: a refusal, a creation or an end. A use is no news."""
    if isinstance(fact, RequestRefused):
        of = "" if fact.ref is None else f" of session {fact.ref}"
        _log.info("refused %s%s: %s (%d)", _quoted(fact.method), of, fact.reason, fact.code)
    elif isinstance(fact, SessionCreated):
        of = "" if fact.parent is None else f" as a fork of {fact.parent}"
        _log.info("session %s created%s", fact.ref, of)
    elif isinstance(fact, SessionDeleted):
        _log.info("session %s ended: %s", fact.ref, fact.reason)


def _quoted(method: str | None) -> str:
    return "a body that was not read" if method is None else ascii(method[:_MAX_METHOD])
