"""How much is measured: a glance for tests, a minute to look, and the run that the documentation shows."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

_K: Final = 1024
_M: Final = 1024 * _K


@dataclass(frozen=True, kw_only=True)
class Size:
    """How much each benchmark does; the defaults are what the documentation shows."""

    rounds: int = 201  # turns of each contestant in a race
    requests: int = 30  # to the trivial application in one turn
    sdk_requests: int = 5  # to the official SDK's server in one turn
    counted: int = 200  # requests whose instructions are counted
    subjects: tuple[str, ...] = ()  # the kinds of request that are counted; empty for all
    sessions: tuple[int, ...] = (1, 1_000, 1_000_000)  # live ones that the requests are spread over
    revocations: tuple[int, ...] = (0, 1_000, 1_000_000)  # in the store
    tokens: int = 10_000  # distinct ones, sent to a worker whose memory is measured
    bodies: tuple[int, ...] = (_K, 16 * _K, 256 * _K, _M, 4 * _M)  # bytes of requests; the last is the cap
    responses: tuple[int, ...] = (_K, 64 * _K, _M, 8 * _M, 50 * _M)  # bytes
    events: int = 10_000  # of a stream
    imports: int = 15  # interpreters started to time an import
    soak: float = 60  # seconds
    clients: int = 8  # of the soak


SIZES: Final = {
    "tiny": Size(
        rounds=1,
        requests=2,
        sdk_requests=1,
        counted=5,
        subjects=("session",),
        sessions=(1, 10),
        revocations=(0, 10),
        tokens=20,
        bodies=(_K, 2 * _K),
        responses=(_K, 2 * _K),
        events=5,
        imports=1,
        soak=1,
        clients=2,
    ),
    "quick": Size(
        rounds=61,
        sessions=(1, 1_000, 20_000),
        revocations=(0, 1_000, 20_000),
        bodies=(_K, 64 * _K, _M, 4 * _M),
        responses=(_K, 64 * _K, _M, 8 * _M),
        events=1_000,
        imports=5,
        soak=10,
        clients=4,
    ),
    "full": Size(),
}
