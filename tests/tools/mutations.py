"""Damage to a text, for the fuzz tests.

`chances` gives each test a source of chance for some hundred trials. `make test` draws the same few each time, and
`make fuzz` many others.
"""

from collections.abc import Callable
from random import Random
from typing import Final

from hypothesis import strategies as st

TRIALS: Final = range(100)
chances: Final = st.integers(0, 2**64).map(Random)

ALPHABET: Final = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_"
ODD: Final = '=.+/ \n\t\x00\x7f{}[]":,\\%\u00e9\u0410\uff0e\ud800'


def _replace(random: Random, text: str, at: int) -> str:
    return text[:at] + random.choice(ALPHABET if random.random() < 0.8 else ODD) + text[at + 1 :]


def _swap(random: Random, text: str, one: int) -> str:
    one, other = sorted((one, random.randrange(len(text) or 1)))
    return text[:one] + text[other : other + 1] + text[one + 1 : other] + text[one : one + 1] + text[other + 1 :]


MUTATIONS: Final[dict[Callable[[Random, str, int], str], int]] = {
    _replace: 6,
    lambda random, text, at: text[:at] + random.choice(ALPHABET + ODD) + text[at:]: 3,
    lambda random, text, at: text[:at] + text[at + random.choice((1, 1, 1, 2, 3, 8)) :]: 3,
    _swap: 2,
    lambda random, text, at: text[:at]: 1,
    lambda random, text, at: text + text[at : random.randrange(at, len(text) + 1)]: 1,
    lambda random, text, at: text[:at] + text[at : at + 1].swapcase() + text[at + 1 :]: 2,
}
"""Each with its share."""


def mutate(random: Random, text: str) -> str:
    """Return a text with one or a few changes."""
    for _ in range(random.choice((1, 1, 1, 1, 2, 2, 3))):
        change = random.choices(list(MUTATIONS), list(MUTATIONS.values()))[0]
        text = change(random, text, random.randrange(len(text) + 1))
    return text
