"""`make demo` succeeds with two real workers, and shows no credential."""

from __future__ import annotations

import re

from example_servers import printed_by


def test_the_demo_prints_every_step() -> None:
    """Each conversation has its own cart, which processes that were started later continue."""
    printed = printed_by("demo")
    carts = re.findall(r"([AB]) add\(.*?\) -> \[(.*?)\], process (\d+)", printed)
    assert [(name, cart.replace("'", "")) for name, cart, _ in carts] == [
        ("A", "milk"),
        ("B", "socks"),
        ("A", "milk, eggs"),
        ("B", "socks, a hat"),
        ("A", "milk, eggs, bread"),
        ("B", "socks, a hat, tickets"),
        ("A", "tea"),
        ("B", "socks, a hat, tickets, a map"),
    ]
    before, after = ({process for _, _, process in part} for part in (carts[:4], carts[4:]))
    assert not before & after
