"""Work whose cost is known from the machine on which the budgets were set, so that they can be read on another.

The budgets in microseconds were set where each of these took so long. All of them run here in the same rounds as what
is judged; each takes so many times longer here than there, and the middle of these numbers is the machine factor. They
are works of different kinds on purpose, since machines and versions differ by kind of work: PyJWT alone would make the
budgets twice as wide as the same plain Python does.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from statistics import median
from typing import Final

from . import apps, peers
from .apps import PassThrough
from .report import Table
from .timing import Contestant, Repeated, Times
from .traffic import Visits, message

_TOKEN: Final = peers.encode()
_ANSWER: Final = json.dumps({"jsonrpc": "2.0", "id": 7, "result": {"text": "x" * 235, "isError": False}}).encode()
_NAMED: Final = "trivial application, pass-through"
_PLAIN: Final = "trivial application, pass-through, no session"


@dataclass(frozen=True, slots=True)
class Known:
    """One work.

    Args:
        name: Of its contestant.
        there: Microseconds where the budgets were set.
        base: The contestant over which it is meant, where it is not all that its contestant does.
    """

    name: str
    there: float
    base: str | None = None

    def here(self, times: Mapping[str, Times]) -> float:
        """Microseconds on this machine."""
        own = times[self.name]
        return own.median if self.base is None else own.over(times[self.base])


KNOWN: Final = (
    Known("json round trip, 300 B", 8.4),
    Known("PyJWT decode, HS256", 34),
    Known(peers.READ, 42, _PLAIN),
    Known(peers.NAIVE, 123, _NAMED),
    Known(peers.BASE_HTTP, 190, _NAMED),
    Known(peers.SPANS, 231, _NAMED),
)


async def contestants() -> dict[str, Contestant]:
    """All that it takes to tell the factor."""
    trivial, named = apps.trivial, message(session={"sessionId": _TOKEN})
    return {
        "json round trip, 300 B": Repeated(_add_one_key),
        "PyJWT decode, HS256": Repeated(lambda: peers.decode(_TOKEN)),
        _NAMED: Visits.of(PassThrough(trivial), named),
        _PLAIN: Visits.of(PassThrough(trivial), message()),
        peers.READ: Visits.of(peers.cookies(apps.cookie_reading), message(), headers=await peers.cookie()),
        peers.NAIVE: Visits.of(peers.Naive(trivial), named),
        **{name: Visits.of(peers.PEERS[name](trivial), named) for name in (peers.BASE_HTTP, peers.SPANS)},
    }


def machine_factor(times: Mapping[str, Times]) -> float:
    """How many times longer work takes here, in the rounds that were timed."""
    return median(known.here(times) / known.there for known in KNOWN)


def machine(times: Mapping[str, Times]) -> Table:
    """Where the factor comes from."""
    rows = [
        (known.name, f"{known.there:g}", f"{known.here(times):.1f}", f"{known.here(times) / known.there:.2f}")
        for known in KNOWN
    ]
    note = f"The machine factor is the middle of the last column: {machine_factor(times):.2f}."
    return Table("The machine: known work, in microseconds", ("", "there", "here", "times"), rows, note)


def _add_one_key() -> bytes:
    answer = json.loads(_ANSWER)
    answer["result"]["_meta"] = {"key": "value"}
    return json.dumps(answer).encode()
