"""The example `handles_basket`: every slip with a handle that a model may make, and its answer."""

from __future__ import annotations

import re

import pytest
from example_servers import assert_in_order, printed_by

import handles_basket

STEPS = (
    "ann create_basket() -> ann's first",
    'ann add_item(ann\'s first, socks) -> ["shoes", "socks"]',
    'bob add_item(bob\'s, a hat) -> ["a hat"]',
    "ann add_item(one wrong, a pen) -> refused: not one of your basket handles: copy",
    "ann add_item(two swapped, a pen) -> refused: not one of your basket handles: copy",
    "ann add_item(cut short, a pen) -> refused: this basket handle was cut short",
    "ann add_item(`quoted`, a pen) -> refused: not a basket handle as it stands: send it alone",
    "ann add_item(CAPITALS, a pen) -> refused: not a basket handle as it stands: handles are lower case",
    "bob add_item(ann's first, a coat) -> refused: not one of your basket handles: copy",
    "ann add_item(ann's order, a pen) -> refused: not a basket handle: it is an order handle",
    "ann add_item(ann's second, a pen) -> refused: this basket was checked out",
    'ann add_item(ann\'s first, a cup) -> ["shoes", "socks", "a cup"]',
    "ann add_item(ann's first, gloves) -> refused: expired: basket handles live 24 h; create a new basket",
    'ann add_item(ann\'s fourth, gloves) -> ["gloves"]',
)
DIFFERS = (
    "ann, add_item: expected refused: expired: basket handles live 24 h; create a new basket, "
    'and got ["shoes", "socks", "a cup", "gloves"]'
)


def last_line(capsys: pytest.CaptureFixture[str]) -> str:
    return capsys.readouterr().out.splitlines()[-1]


def test_the_command_prints_every_step() -> None:
    """The steps come in order, without a handle in them."""
    printed = printed_by("handles_basket")
    assert printed.endswith("\nEverything came back as it should.\n")
    assert not re.search(r"[0-9a-z]{20}", printed)
    assert_in_order(printed, STEPS)


def test_handles_that_live_too_long_are_reported(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The program prints what it expected and what it got, and exits with 1."""
    monkeypatch.setattr(handles_basket, "DAY", 60)
    # One statement: Python 3.11 loses the trace of this frame in the event loop, and coverage with it.
    assert (handles_basket.main(), last_line(capsys)) == (1, DIFFERS)


async def test_an_unknown_token_is_refused() -> None:
    """The server knows its users by their tokens."""
    tokens = handles_basket.Tokens()
    ann = await tokens.verify_token("ann")
    assert ann is not None
    assert (ann.subject, await tokens.verify_token("eve")) == ("ann", None)


def test_the_reason_is_found_in_the_sdks_error() -> None:
    """The reason is found whether the argument was refused or the tool failed."""
    argument = "1 validation error for x\nbasket\n  expired: [no] [type=handle_expired, input_value=<not shown>]"
    assert handles_basket.said_of(argument) == "expired: [no]"
    assert handles_basket.said_of("Error executing tool checkout: gone") == "gone"
