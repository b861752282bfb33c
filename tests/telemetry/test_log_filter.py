"""`SessionLogFilter` names the session on every record of a session's request."""

from __future__ import annotations

import io
import logging
from collections.abc import Iterator
from typing import Any

import pytest
from apps import Server, sessions
from clients import Client

from mcp_sessions import Session
from mcp_sessions.telemetry import SessionLogFilter


@pytest.fixture
def written() -> Iterator[io.StringIO]:
    """What a handler with the filter writes of the root logger."""
    stream = io.StringIO()
    handler = logging.StreamHandler(stream)
    handler.addFilter(SessionLogFilter())
    handler.setFormatter(logging.Formatter("%(session)s|%(message)s"))
    logging.getLogger().addHandler(handler)
    yield stream
    logging.getLogger().removeHandler(handler)


async def test_records_of_any_logger_name_the_session_of_their_request(written: io.StringIO) -> None:
    async def tool(session: Session | None, arguments: dict[str, Any]) -> str:
        logging.getLogger("shop").warning("a call")
        return session.ref if session is not None else "-"

    client = Client(sessions(Server(tool=tool)))
    held = await client.create()
    refs = [(await client.tool("tool", session=named)).result["content"] for named in (held, None)]
    assert written.getvalue().splitlines() == [f"{ref}|a call" for ref in refs]
    assert refs[0].startswith("ses_")
    assert refs[1] == "-"


def test_a_record_that_names_a_session_keeps_it(written: io.StringIO) -> None:
    """A background job names its session itself."""
    logging.getLogger("shop").warning("later", extra={"session": "ses_named"})
    assert written.getvalue() == "ses_named|later\n"
