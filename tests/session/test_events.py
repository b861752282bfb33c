"""Facts are frozen, small, and hold no credential."""

from __future__ import annotations

from dataclasses import FrozenInstanceError, fields

import pytest

from mcp_sessions._session.events import Fact, RequestRefused, SessionCreated, SessionDeleted, SessionUsed

FACTS: list[Fact] = [
    SessionCreated("ses_a", 60),
    SessionCreated("ses_b", 60, "ses_a"),
    SessionUsed("ses_a", "tools/call"),
    SessionDeleted("ses_a", "deleted", 60),
    RequestRefused("expired", -32043, "tools/call"),
]


@pytest.mark.parametrize("fact", FACTS, ids=lambda fact: type(fact).__name__)
def test_a_fact_cannot_be_changed(fact: Fact) -> None:
    """Several listeners get the same object."""
    with pytest.raises(FrozenInstanceError):
        fact.ref = "ses_b"  # type: ignore[misc]  # what is shown


@pytest.mark.parametrize("fact", FACTS, ids=lambda fact: type(fact).__name__)
def test_a_fact_has_no_place_for_a_credential_or_a_body(fact: Fact) -> None:
    allowed = {"ref", "expires_at", "method", "reason", "code", "parent", "seconds", "trace"}
    assert {field.name for field in fields(fact)} <= allowed


def test_a_refusal_need_not_know_a_session() -> None:
    assert RequestRefused("forged", -32043, None).ref is None
