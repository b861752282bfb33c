"""Work whose cost is known from the machine on which the budgets were set, so that they can be read on another.

The budgets in microseconds were set where PyJWT decodes an HS256 token in 34 us and a JSON round trip that adds one
key to 300 bytes takes 8.4 us. Both run here in the same rounds as everything else; how much longer they take is the
machine factor, by which a budget in microseconds is read.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from statistics import geometric_mean
from typing import Final

from .peers import decode, encode
from .timing import Repeated, Times

THERE: Final = {"PyJWT decode, HS256": 34.0, "json round trip, 300 B": 8.4}
"""Microseconds where the budgets were set."""

_TOKEN: Final = encode()
_ANSWER: Final = json.dumps({"jsonrpc": "2.0", "id": 7, "result": {"text": "x" * 235, "isError": False}}).encode()


def _add_one_key() -> bytes:
    answer = json.loads(_ANSWER)
    answer["result"]["_meta"] = {"key": "value"}
    return json.dumps(answer).encode()


ANCHORS: Final = dict(zip(THERE, map(Repeated, (lambda: decode(_TOKEN), _add_one_key)), strict=True))


def machine_factor(times: Mapping[str, Times]) -> float:
    """How many times longer work takes here, in the rounds that were timed."""
    return geometric_mean(times[name].median / there for name, there in THERE.items())
