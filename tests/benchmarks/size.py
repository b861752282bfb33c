"""How much is measured: a glance for tests, a minute to look, and the run that the documentation shows."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True)
class Size:
    """How much each benchmark does.

    Args:
        rounds: Turns of each contestant in a race.
        requests: Requests to the trivial application in one turn.
        sdk_requests: Requests to the official SDK's server in one turn.
        counted: Requests whose instructions are counted.
        subjects: Of what kinds; all where none is named.
        sessions: How many live sessions the requests are spread over, ascending from 1.
        revocations: How many revocations the store holds, ascending from 0.
        flood: Distinct tokens that are thrown at a worker.
        bodies: Bytes of request bodies, ascending; the last is the cap.
        responses: Bytes of response bodies, ascending.
        events: Events of a stream.
        network: Turns of each server under the load generator.
        seconds: Seconds of each such turn.
        imports: Interpreters that are started to time an import.
        crowd: Event streams that are open at once.
        turns: How many times they are opened at each server.
        ticks: Events of each.
        pause: Seconds between two of them.
        soak: Seconds of whatever clients do to a server.
        clients: Of that server, at once.
        stateful: Sessions that are held at once when a server is asked, ascending.
        calls: Requests that it is asked then, spread over all of them.
        lasting: Events of the longest stream.
    """

    rounds: int
    requests: int
    sdk_requests: int
    counted: int
    subjects: tuple[str, ...]
    sessions: tuple[int, ...]
    revocations: tuple[int, ...]
    flood: int
    bodies: tuple[int, ...]
    responses: tuple[int, ...]
    events: int
    network: int
    seconds: int
    imports: int
    crowd: int
    turns: int
    ticks: int
    pause: float
    soak: float
    clients: int
    stateful: tuple[int, ...]
    calls: int
    lasting: int


_K: Final = 1024
_M: Final = 1024 * _K

SIZES: Final = {
    "tiny": Size(
        rounds=1,
        requests=2,
        sdk_requests=1,
        counted=5,
        subjects=("pass-through", "session", "core"),
        sessions=(1, 10),
        revocations=(0, 10),
        flood=20,
        bodies=(_K, 2 * _K),
        responses=(_K, 2 * _K),
        events=5,
        network=1,
        seconds=1,
        imports=1,
        crowd=3,
        turns=1,
        ticks=2,
        pause=0.01,
        soak=1,
        clients=2,
        stateful=(2, 4),
        calls=4,
        lasting=100,
    ),
    "quick": Size(
        rounds=61,
        requests=30,
        sdk_requests=5,
        counted=200,
        subjects=(),
        sessions=(1, 1_000, 20_000),
        revocations=(0, 1_000, 20_000),
        flood=10_000,
        bodies=(_K, 64 * _K, _M, 4 * _M),
        responses=(_K, 64 * _K, _M, 8 * _M),
        events=1_000,
        network=3,
        seconds=1,
        imports=5,
        crowd=1_000,
        turns=1,
        ticks=5,
        pause=1,
        soak=10,
        clients=4,
        stateful=(10, 100, 1_000),
        calls=400,
        lasting=20_000,
    ),
    "full": Size(
        rounds=201,
        requests=30,
        sdk_requests=5,
        counted=200,
        subjects=(),
        sessions=(1, 1_000, 1_000_000),
        revocations=(0, 1_000, 1_000_000),
        flood=10_000,
        bodies=(_K, 16 * _K, 256 * _K, _M, 4 * _M),
        responses=(_K, 64 * _K, _M, 8 * _M, 50 * _M),
        events=10_000,
        network=7,
        seconds=1,
        imports=15,
        crowd=1_000,
        turns=3,
        ticks=6,
        pause=1,
        soak=60,
        clients=8,
        stateful=(10, 100, 1_000, 10_000),
        calls=400,
        lasting=1_000_000,
    ),
}
