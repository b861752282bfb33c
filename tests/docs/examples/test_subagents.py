"""`subagents`: forks that share a cart, with a browser for each, and one that tries something out."""

from __future__ import annotations

from client_runs import told_by


def test_one_cart_is_filled_by_all_and_every_browser_goes_its_own_way() -> None:
    """In whatever order the helpers came; a trial touches nothing, and the end of the root is the end of all."""
    told = told_by("subagents")
    helpers = told.index("Two helpers at the same time: one cart, two browsers")
    trial = told.index("A third tries something out, on a copy")
    assert told[:helpers] == [
        "The orchestrator begins",
        'shop O visit("/basket") -> ["/basket"]',
        'shop O put("bread") -> ["bread"]',
    ]
    for letter, item in (("A", "milk"), ("B", "tea")):
        visits = [line for line in told[helpers:trial] if line.startswith(f"shop {letter} visit")]
        assert visits == [
            f'shop {letter} visit("/search") -> ["/search"]',
            f'shop {letter} visit("/{item}") -> ["/search", "/{item}"]',
        ]
    assert told[trial + 1 :] == [
        'shop C put("caviar") -> ["bread", "caviar", "milk", "tea"]',
        'shop O put("salt") -> ["bread", "milk", "salt", "tea"]',
        'shop O visit("/checkout") -> ["/basket", "/checkout"]',
        "The orchestrator is done, and so are its helpers",
        "program deletes the root with its descendants",
        'shop A put("wine") -> refused: -32043 Session not found',
    ]
