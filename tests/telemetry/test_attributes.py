"""What names a session on a span."""

from __future__ import annotations

from mcp_sessions.telemetry.attributes import Stamps


def test_a_session_is_named_by_its_ref_under_both_names_and_every_alias() -> None:
    """Tools group by different attributes; each is given the same value."""
    stamp = Stamps(["gen_ai.conversation.id"]).of("ses_a", claimed=False)
    assert stamp == {"session.id": "ses_a", "mcp.session.id": "ses_a", "gen_ai.conversation.id": "ses_a"}


def test_where_somebody_else_has_the_name_ours_is_the_protocols_alone() -> None:
    """A chat application's `session.id` and `gen_ai.conversation.id` stay its own."""
    assert Stamps(["gen_ai.conversation.id"]).of("ses_a", claimed=True) == {"mcp.session.id": "ses_a"}


def test_the_attributes_of_a_session_are_made_once() -> None:
    """The next span of the session gets the same object."""
    stamps = Stamps()
    assert stamps.of("ses_a", claimed=False) is stamps.of("ses_a", claimed=False)


def test_the_memory_is_bounded() -> None:
    """A session that was busy lately is remembered, one that was not is made anew."""
    stamps = Stamps(entries=4)
    first = stamps.of("ses_0", claimed=False)
    for number in range(1, 3):
        stamps.of(f"ses_{number}", claimed=False)
    assert stamps.of("ses_0", claimed=False) is first
    for number in range(3, 6):
        stamps.of(f"ses_{number}", claimed=False)
    again = stamps.of("ses_0", claimed=False)
    assert again == first
    assert again is not first
