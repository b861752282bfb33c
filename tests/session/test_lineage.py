"""What the token of a fork says, and the name under which a lineage ends."""

from __future__ import annotations

import pytest
from clients import START

from mcp_sessions._session import claims
from mcp_sessions._session.claims import MODES, SESSION, Claims, Mode

ROOT = Claims(
    kind=SESSION, kid="k", jti="r".ljust(22, "A"), issued_at=START, expires_at=START + 60, subject="s", client="c/1"
)


def fork(parent: Claims, mode: Mode, name: str = "f") -> Claims:
    """A fork that is made ten seconds later, under another key."""
    said = claims.below(parent, mode)
    return Claims(kid="new", jti=name.ljust(22, "A"), issued_at=START + 10, subject="t", **said)


@pytest.mark.parametrize("mode", MODES)
def test_a_fork_knows_where_it_comes_from_and_gains_no_time(mode: Mode) -> None:
    """Parent, root and generation; it ends with its root at the latest, and is a session as its parent is."""
    first = fork(ROOT, mode)
    second = fork(first, mode, "g")
    assert (first.parent, first.root, first.generation) == (ROOT.ref, ROOT.ref, 1)
    assert (second.parent, second.root, second.generation) == (first.ref, ROOT.ref, 2)
    assert first.expires_at == second.expires_at == ROOT.expires_at
    assert (second.kind, second.client) == (SESSION, "c/1")


def test_a_fork_that_shares_names_the_owner_of_the_data() -> None:
    """Its parent, or whose data that one shares; a copy and a fresh one have their own."""
    sharing = fork(ROOT, "share")
    assert claims.owner(fork(sharing, "share")) == claims.owner(sharing) == sharing.owner == ROOT.ref
    copied = fork(sharing, "copy", "g")
    assert claims.owner(copied) == copied.ref
    assert claims.owner(fork(copied, "share")) == copied.ref
    assert claims.owner(fork(sharing, "fresh", "h")) == fork(sharing, "fresh", "h").ref
    assert claims.owner(ROOT) == ROOT.ref


def test_every_member_of_a_lineage_has_one_mark() -> None:
    """Which no session can have for a name, and which another lineage has not."""
    first = fork(ROOT, "share")
    other = fork(first, "fresh", "g")
    marks = [claims.mark(one) for one in (ROOT, first, other)]
    assert len({mark.ref for mark in marks}) == 1
    assert marks[0].ref not in {ROOT.ref, first.ref, other.ref}
    assert [mark.expires_at for mark in marks] == [ROOT.expires_at] * 3
    stranger = Claims(kind=SESSION, kid="k", jti="x".ljust(22, "A"), issued_at=START, expires_at=START + 60)
    assert claims.mark(stranger).ref != marks[0].ref


def test_a_mark_stands_as_its_member_does() -> None:
    """It was issued when the member was, to whom that was: so a cut-off concerns both."""
    first = fork(ROOT, "fresh")
    mark = claims.mark(first)
    assert (mark.issued_at, mark.subject) == (first.issued_at, first.subject)
