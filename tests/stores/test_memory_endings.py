"""What has ended, in memory: told at once, bounded, and forgotten when every session concerned has expired."""

from __future__ import annotations

from typing import Any

import pytest
from clients import START

from mcp_sessions._session.claims import AUDIENCE, Claims
from mcp_sessions.errors import StoreFull
from mcp_sessions.stores.memory import MemoryEndings

HOUR = 3600
LATER = START - START % HOUR + HOUR  # an hour begins
ALICE, BOB = "alice".ljust(22, "A"), "bob".ljust(22, "A")


def session(name: str = "a", *, subject: str | None = ALICE, audience: str = AUDIENCE) -> Claims:
    jti = name.ljust(22, "A")
    said: dict[str, Any] = {"issued_at": START, "expires_at": LATER, "subject": subject, "audience": audience}
    return Claims(kind="session", kid="k", jti=jti, **said)


def cut(endings: MemoryEndings, moment: int, subject: str | None = ALICE, *, until: int = LATER) -> None:
    endings.cut(moment, audience=AUDIENCE, subject=subject, until=until)


def test_a_revocation_ends_one_session() -> None:
    """Until the hour in which its token ends is over."""
    endings, one = MemoryEndings(10), session()
    endings.add(one.ref, one.expires_at)
    assert endings.has(one.ref, one.expires_at)
    assert [endings.cover(each) for each in (one, session("b"))] == [True, False]
    endings.forget(LATER + HOUR - 1)
    assert endings.cover(one)
    endings.forget(LATER + HOUR)
    assert not endings.cover(one)
    assert len(endings) == 0


def test_a_cut_off_ends_what_a_principal_or_everybody_was_issued_before() -> None:
    """In one audience."""
    endings, elsewhere = MemoryEndings(10), session(audience="other")
    ones = [session(), session(subject=BOB), session(subject=None)]
    cut(endings, START)
    assert not any(map(endings.cover, ones))
    cut(endings, START + 1)
    assert [endings.cover(one) for one in ones] == [True, False, False]
    cut(endings, START + 1, None)
    assert all(map(endings.cover, ones))
    assert not endings.cover(elsewhere)
    assert not endings.has(ones[0].ref, ones[0].expires_at)


def test_there_is_room_for_so_many() -> None:
    """A later cut-off for the same principal takes no more of it, and what is over makes some."""
    endings = MemoryEndings(2)
    cut(endings, START - 1, until=START + 10)
    cut(endings, START - 1, None)
    cut(endings, START, until=START + 20)
    with pytest.raises(StoreFull):
        cut(endings, START, BOB)
    with pytest.raises(StoreFull):
        endings.add("ses_a", LATER)
    endings.forget(START + 20)
    cut(endings, START, BOB)
    assert len(endings) == 2


def test_cut_offs_that_are_not_over_stay_when_others_go() -> None:
    """Also those of the same minute."""
    endings = MemoryEndings(10)
    cut(endings, START + 1, until=START)
    cut(endings, START + 1, BOB, until=START + 1)
    endings.forget(START)
    assert [endings.cover(session(subject=subject)) for subject in (ALICE, BOB)] == [False, True]
