"""Structs that show nothing of what they hold."""

from __future__ import annotations

import pytest

from mcp_sessions._protocol.draft import SessionMetadata
from mcp_sessions._protocol.headers import RequestHeaders

SECRET = "a-credential.that-must-not.show"


@pytest.mark.parametrize("struct", [SessionMetadata(SECRET), RequestHeaders.of([(b"authorization", SECRET.encode())])])
def test_no_representation_shows_a_field(struct: SessionMetadata | RequestHeaders) -> None:
    """Neither Python's own nor that of tools which print objects nicely."""
    assert repr(struct) == str(struct) == f"<{type(struct).__name__}>"
    assert struct.__rich_repr__() == []
