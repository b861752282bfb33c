"""Signed event ids, of which `tests/server/test_event_ids.py` has what clients and servers see."""

from typing import Any

import pytest
from clients import SECRET

from mcp_sessions._errors import SessionNotFound
from mcp_sessions._tokens.event_ids import EventId, EventIds
from mcp_sessions._tokens.keys import KeyRing


def test_event_id_of_another_version_is_unknown() -> None:
    """Versions can run side by side, and what one cannot read it refuses."""
    ring, ids = KeyRing([SECRET]), EventIds(issuer="i", audience="a")
    changed: Any = "no bytes"
    signed = ids.sign(ring.signing, EventId(changed, None), None)
    assert signed is not None
    with pytest.raises(SessionNotFound) as refused:
        ids.verify(ring, signed.decode(), None)
    assert refused.value.reason == "event_unknown"
