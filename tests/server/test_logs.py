"""Each fact becomes one log line, and no client can write a line of its own."""

from __future__ import annotations

import logging

import pytest

from mcp_sessions._server.runtime import log_fact
from mcp_sessions._session.events import Fact, RequestRefused, SessionCreated, SessionDeleted

LINES: list[tuple[Fact, int, str]] = [
    (SessionCreated("ses_a", 60), logging.INFO, "session ses_a created"),
    (SessionCreated("ses_b", 60, "ses_a"), logging.INFO, "session ses_b created as a fork of ses_a"),
    (SessionDeleted("ses_a", "deleted", 60), logging.INFO, "session ses_a ended: deleted"),
    (
        RequestRefused("expired", -32043, "tools/call", "ses_a"),
        logging.INFO,
        "refused 'tools/call' of session ses_a: expired (-32043)",
    ),
    (
        RequestRefused("not_json", -32700, None),
        logging.INFO,
        "refused a body that was not read: not_json (-32700)",
    ),
]


@pytest.mark.parametrize(("fact", "level", "line"), LINES)
def test_a_fact_is_one_line(fact: Fact, level: int, line: str, caplog: pytest.LogCaptureFixture) -> None:
    """Refusals, creations and ends are for the operator."""
    with caplog.at_level(logging.DEBUG, logger="mcp_sessions"):
        log_fact(fact)
    assert caplog.record_tuples == [("mcp_sessions", level, line)]


def test_a_method_name_cannot_forge_a_line(caplog: pytest.LogCaptureFixture) -> None:
    """What a client wrote is quoted and cut: no line break, no terminal code, no flood."""
    with caplog.at_level(logging.INFO, logger="mcp_sessions"):
        log_fact(RequestRefused("expired", -32043, "x\nERROR all is lost\x1b[2J\u202e" + "y" * 1000))
    (line,) = caplog.messages
    assert line.isprintable()
    assert len(line) < 160


def test_what_is_not_a_known_fact_is_not_logged(caplog: pytest.LogCaptureFixture) -> None:
    """A fact of a later version passes a log that does not know it."""
    with caplog.at_level(logging.DEBUG, logger="mcp_sessions"):
        log_fact("later")  # type: ignore[arg-type]  # what is shown
    assert not caplog.records
