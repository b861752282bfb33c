"""The example `handles_basket`: every slip with a handle that a model may make, and what comes of it."""

from __future__ import annotations

import re
import subprocess
import sys

import pytest
from example_servers import EXAMPLES

import handles_basket

TOLD = (
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
    """How the story ended."""
    return capsys.readouterr().out.splitlines()[-1]


def test_the_story_is_told() -> None:
    """As a command: every step in order, in plain text, with no handle in it, and it ends well."""
    command = [sys.executable, str(EXAMPLES / "handles_basket.py")]
    done = subprocess.run(command, capture_output=True, encoding="utf-8", timeout=120, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.endswith("\nEverything came back as it should.\n")
    assert not re.search(r"[0-9a-z]{20}", done.stdout)
    told = re.sub(r" +", " ", done.stdout)
    places = [told.find(step) for step in TOLD]
    assert -1 not in places
    assert places == sorted(places)


def test_a_server_whose_handles_live_too_long_is_found_out(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The story says what it expected and what came instead, and the exit status tells a script."""
    monkeypatch.setattr(handles_basket, "DAY", 60)
    # One statement: Python 3.11 loses the trace of this frame in the event loop, and coverage with it.
    assert (handles_basket.main(), last_line(capsys)) == (1, DIFFERS)


async def test_nobody_shops_without_a_token_that_is_known() -> None:
    """The server knows its users by their tokens."""
    tokens = handles_basket.Tokens()
    ann = await tokens.verify_token("ann")
    assert ann is not None
    assert (ann.subject, await tokens.verify_token("eve")) == ("ann", None)


def test_what_an_error_says_is_found_in_the_sdks_words() -> None:
    """Whether the argument was refused or the tool failed."""
    argument = "1 validation error for x\nbasket\n  expired: [no] [type=handle_expired, input_value=<not shown>]"
    assert handles_basket.said_of(argument) == "expired: [no]"
    assert handles_basket.said_of("Error executing tool checkout: gone") == "gone"
