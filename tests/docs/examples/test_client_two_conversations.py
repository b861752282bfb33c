"""`client_two_conversations`: one connection, two sessions at once."""

from __future__ import annotations

from client_runs import told_by


def test_each_conversation_has_its_own_notes() -> None:
    """In whatever order the calls came; a conversation goes on by its name."""
    title, *told = told_by("client_two_conversations")
    assert title == "One connection, two conversations at the same time"
    of = {letter: [line for line in told if line.startswith(f"notebook {letter} ")] for letter in "AB"}
    assert of["A"] == [
        'notebook A append("milk") -> ["milk"]',
        'notebook A append("eggs") -> ["milk", "eggs"]',
        'notebook A append("bread") -> ["milk", "eggs", "bread"]',
        'notebook A append("butter") -> ["milk", "eggs", "bread", "butter"]',
    ]
    assert of["B"] == [
        'notebook B append("socks") -> ["socks"]',
        'notebook B append("a hat") -> ["socks", "a hat"]',
        'notebook B append("the tickets") -> ["socks", "a hat", "the tickets"]',
    ]
    assert told[-1] == "program holds conversation A, conversation B; no jar keeps them, so leaving deletes them"
