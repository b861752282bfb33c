"""What all targets share: trials in numbered batches, each of which can be run again alone.

A target makes one input from a source of chance, asks the package and an oracle that shares no code with it, and
raises `Disagreement` where the two do not say the same. What it returns is a word for the count that is printed.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from random import Random
from typing import Final

BATCH: Final = 2_000  # trials whose chance comes from one seed

Trial = Callable[[Random], str]


class Disagreement(AssertionError):
    """The package and the oracle judge one input differently; the text holds the input."""


def run(trial: Trial, name: str, seed: int, batch: int, trials: int = BATCH) -> Counter[str]:
    """One batch.

    Args:
        trial: What to do, again and again.
        name: The target's, which is a part of the seed.
        seed: The run's.
        batch: Its number in the run.
        trials: How many.

    Returns:
        How often each outcome came.

    Raises:
        Disagreement: With what is needed to see it again.
    """
    random = Random(f"{name}/{seed}/{batch}")
    try:
        return Counter(trial(random) for _ in range(trials))
    except Disagreement as found:
        raise Disagreement(
            f"{found}\nagain: python -m tests.tools.fuzz --target {name} --seed {seed} --batch {batch}"
        ) from None


# --- mutations of a text -------------------------------------------------------------------------

ALPHABET: Final = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_"
ODD: Final = '=.+/ \n\t\x00\x7f{}[]":,\\%\u00e9\u0410\uff0e\ud800'


def replace(random: Random, text: str) -> str:
    """One character is another one, mostly of the same alphabet."""
    at = random.randrange(len(text) or 1)
    return text[:at] + random.choice(ALPHABET if random.random() < 0.8 else ODD) + text[at + 1 :]


def insert(random: Random, text: str) -> str:
    """A character more."""
    at = random.randrange(len(text) + 1)
    return text[:at] + random.choice(ALPHABET + ODD) + text[at:]


def drop(random: Random, text: str) -> str:
    """A few characters fewer."""
    at = random.randrange(len(text) or 1)
    return text[:at] + text[at + random.choice((1, 1, 1, 2, 3, 8)) :]


def swap(random: Random, text: str) -> str:
    """Two characters in each other's place."""
    one, other = sorted(random.choices(range(len(text) or 1), k=2))
    return text[:one] + text[other : other + 1] + text[one + 1 : other] + text[one : one + 1] + text[other + 1 :]


def cut(random: Random, text: str) -> str:
    """The end is missing."""
    return text[: random.randrange(len(text) + 1)]


def repeat(random: Random, text: str) -> str:
    """A piece comes twice."""
    start = random.randrange(len(text) + 1)
    end = random.randrange(start, len(text) + 1)
    return text[:end] + text[start:end] + text[end:]


def recase(random: Random, text: str) -> str:
    """One character in the other case."""
    at = random.randrange(len(text) or 1)
    return text[:at] + text[at : at + 1].swapcase() + text[at + 1 :]


TEXT_MUTATIONS: Final[dict[Callable[[Random, str], str], int]] = {
    replace: 6,
    insert: 3,
    drop: 3,
    swap: 2,
    cut: 1,
    repeat: 1,
    recase: 2,
}


def mutate(random: Random, text: str) -> str:
    """One or a few mutations in a row."""
    for _ in range(random.choice((1, 1, 1, 1, 2, 2, 3))):
        change = random.choices(list(TEXT_MUTATIONS), list(TEXT_MUTATIONS.values()))[0]
        text = change(random, text)
    return text
