"""Client examples as commands: `client_sdk`, `client_fastmcp`, `client_two_conversations` and `subagents`."""

from __future__ import annotations

import re
from importlib import import_module

from example_servers import printed_by


def lines_of(name: str) -> list[str]:
    """Return the lines of an example's timeline without their times; no part of a session id may be in them."""
    import_module(name)  # which prints nothing
    printed = printed_by(name)
    assert not re.search(r"[0-9a-zA-Z_-]{25}", printed)
    lines = (re.sub(r"^ *[0-9.]+ s +", "", line) for line in printed.splitlines())
    return [line for line in lines if line]


def test_the_session_goes_on_until_it_is_deleted() -> None:
    """A count goes on over restarts of the program and the server, and begins anew after a deletion."""
    assert lines_of("client_sdk") == [
        "The first start: a session begins with the first call",
        "program starts: its file is empty",
        "counter A count() -> 1",
        "counter A count() -> 2",
        "counter A count() -> 3",
        "program ends: the file keeps the session",
        "The next start, of the server and of the program: the session goes on",
        "counter restarted",
        "program starts: its file holds a session",
        "counter A count() -> 4",
        "counter A count() -> 5",
        "program ends: the file keeps the session",
        "Deleted: the next start begins anew",
        "counter A sessions/delete -> deleted",
        "program starts: its file is empty",
        "counter A count() -> 1",
        "program ends: the file keeps the session",
    ]


def test_a_lost_session_is_raised_or_recreated() -> None:
    """With `on_not_found="raise"` the loss is raised once; with "recreate" the call goes into a new session."""
    assert lines_of("client_fastmcp") == [
        'on_not_found="raise": the program learns that the notes are gone',
        'notebook A append("milk") -> ["milk"]',
        'notebook A append("eggs") -> ["milk", "eggs"]',
        "another program deletes the session",
        'notebook A append("bread") -> refused: -32043 Session not found',
        'notebook A append("butter") -> ["butter"]',
        'on_not_found="recreate": the call goes into a new session',
        'notebook A append("milk") -> ["milk"]',
        'notebook A append("eggs") -> ["milk", "eggs"]',
        "another program deletes the session",
        'notebook A append("bread") -> ["bread"]',
        'notebook A append("butter") -> ["bread", "butter"]',
    ]


def test_each_conversation_has_its_own_notes() -> None:
    """Parallel conversations over one connection keep separate notes."""
    title, *lines = lines_of("client_two_conversations")
    assert title == "One connection, two conversations at the same time"
    of = {letter: [line for line in lines if line.startswith(f"notebook {letter} ")] for letter in "AB"}
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
    assert lines[-1] == "program holds conversation A, conversation B; no storage keeps them, so leaving deletes them"


def test_helpers_share_a_cart_and_have_their_own_browsers() -> None:
    """A fork changes nothing for the others, and the end of the shared session ends the shared cart."""
    lines = lines_of("subagents")
    helpers = lines.index("Two helpers at the same time: one cart, two browsers")
    trial = lines.index("A third tries something out, on a copy")
    assert lines[:helpers] == [
        "The orchestrator begins",
        'shop O visit("/basket") -> ["/basket"]',
        'shop O put("bread") -> ["bread"]',
    ]
    for letter, item in (("A", "milk"), ("B", "tea")):
        visits = [line for line in lines[helpers:trial] if line.startswith(f"shop {letter} visit")]
        assert visits == [
            f'shop {letter} visit("/search") -> ["/search"]',
            f'shop {letter} visit("/{item}") -> ["/search", "/{item}"]',
        ]
    assert lines[trial + 1 :] == [
        'shop C put("caviar") -> ["bread", "caviar", "milk", "tea"]',
        'shop O put("salt") -> ["bread", "milk", "salt", "tea"]',
        'shop O visit("/checkout") -> ["/basket", "/checkout"]',
        "The orchestrator is done, and so are its helpers",
        "program deletes the shared session",
        'shop A put("wine") -> refused: this session has ended; create another with new()',
    ]
