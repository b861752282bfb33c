"""Damage to a text, for the fuzz tests.

`chances` gives each test a source of chance for some hundred trials. `make test` draws the same few each time, and
`make fuzz` many others.
"""

from random import Random
from typing import Final

from hypothesis import strategies as st

TRIALS: Final = range(100)
chances: Final = st.integers(0, 2**64).map(Random)

ALPHABET: Final = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_"
ODD: Final = '=.+/ \n\t\x00\x7f{}[]":,\\%\u00e9\u0410\uff0e\ud800'


def mutate(random: Random, text: str) -> str:
    """Return a text with one or a few changes."""
    for _ in range(random.choice((1, 1, 1, 1, 2, 2, 3))):
        start = random.randrange(len(text) + 1)
        end = min(len(text), start + random.choice((0, 1, 1, 1, 1, 2, 8, len(text))))
        part, other = text[start:end], random.choice(ALPHABET if random.random() < 0.8 else ODD)
        text = text[:start] + random.choice(("", other, other, part + part, part[::-1], part.swapcase())) + text[end:]
    return text
