"""What an application can do with a session, and what it cannot do by accident."""

from __future__ import annotations

import copy
import pickle
from datetime import datetime, timezone
from typing import Any

import pytest
from sources import Made, no_data

from mcp_sessions._session.claims import Principal, utc
from mcp_sessions._session.events import RequestRefused, SessionCreated, SessionDeleted, SessionEvent, SessionUsed
from mcp_sessions._session.session import EndedSession, Session

TOKEN = "eyJ0eXAi.a-credential.that-must-not-show"


def session_of(**made: Any) -> Session:
    return Session(Made(TOKEN, **made))


class TestSession:
    async def test_it_says_what_the_application_may_know(self) -> None:
        alice = Principal(client_id="app", issuer="https://idp", subject="alice")
        session = session_of(principal=alice)
        assert (session.id, session.ref, session.principal) == (TOKEN, "ses_abc", alice)
        assert session.created_at == datetime(1970, 1, 1, tzinfo=timezone.utc)
        assert session.expires_at == utc(60)
        assert session.state == {}
        await session.end()

    def test_no_text_about_it_holds_the_id(self) -> None:
        session = session_of()
        assert repr(session) == str(session) == f"{session}" == "<Session ses_abc>"
        assert not hasattr(session, "__dict__")  # nor is there a dict for a debugger or a serializer to walk

    @pytest.mark.parametrize("duplicate", [pickle.dumps, copy.copy, copy.deepcopy])
    def test_it_is_never_copied_or_stored(self, duplicate: Any) -> None:
        """A session belongs to one request: a copy in a cache or a queue would be a stored credential."""
        with pytest.raises(TypeError) as raised:
            duplicate(session_of())
        text = "a Session holds a credential and belongs to one request; keep session.ref instead"
        assert str(raised.value) == text

    async def test_ending_it_twice_ends_it_once(self) -> None:
        made = Made(TOKEN)
        session = Session(made)
        await session.end("logout")
        await session.end()
        assert made.ended == ["logout"]

    async def test_an_end_that_failed_can_be_tried_again(self) -> None:
        class Failing(Made):
            async def end(self, reason: str) -> None:
                await super().end(reason)
                if len(self.ended) == 1:
                    raise OSError

        made = Failing(TOKEN)
        session = Session(made)
        with pytest.raises(OSError):  # noqa: PT011  # made above
            await session.end()
        await session.end()
        assert made.ended == ["ended", "ended"]


def test_a_session_that_has_ended_is_known_by_its_name_alone() -> None:
    """It may have ended long after its id was last seen; what was kept can still be read."""
    ended = EndedSession("ses_abc", created_at=utc(0), expires_at=utc(60), data=no_data())
    assert not hasattr(ended, "id")
    assert TOKEN not in repr(ended)


FACTS: list[SessionEvent] = [
    SessionCreated("ses_a", 60),
    SessionUsed("ses_a", "tools/call"),
    SessionDeleted("ses_a", "deleted", 60),
    RequestRefused("expired", -32043, "tools/call"),
]


@pytest.mark.parametrize("fact", FACTS, ids=lambda fact: type(fact).__name__)
def test_a_fact_cannot_be_changed(fact: SessionEvent) -> None:
    """Several listeners get the same object."""
    with pytest.raises(AttributeError):
        fact.ref = "ses_b"  # type: ignore[misc]  # what is shown


@pytest.mark.parametrize("fact", FACTS, ids=lambda fact: type(fact).__name__)
def test_a_fact_has_no_place_for_a_credential_or_a_body(fact: SessionEvent) -> None:
    allowed = {"ref", "expires_at", "method", "reason", "code", "seconds", "trace", "of_principal"}
    assert {*fact.__struct_fields__} <= allowed
