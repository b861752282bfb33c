"""What a Redis server keeps of what it acknowledges, as far as it says so when a worker connects.

A revocation that Redis forgets is a deleted session that works again. Sources: Redis, "INFO", "Redis persistence", "Key
eviction", "ACL".
"""

from __future__ import annotations

from typing import Final

from .._errors import ConfigurationError, StoreUnavailable
from ._base import Durability, logger
from ._redis_client import StandaloneClient
from ._redis_faults import PERMANENT
from ._redis_scripts import INFO

FORGETS: Final = (
    "Redis has no append-only file, so after a restart, sessions that were deleted since its last snapshot work again, "
    "or all sessions are refused; set 'appendonly yes' and 'appendfsync always'"
)
EVICTS: Final = (
    "Redis may evict revocations, records and data of live sessions when its memory is full (maxmemory-policy is not "
    "noeviction), after which deleted sessions work again; set 'maxmemory-policy noeviction', or use a separate Redis "
    "for sessions"
)
LATE: Final = (
    "Redis syncs its append-only file after it has answered (appendfsync is not always), so a crash with a slow disk, "
    "or a power failure, may lose deletes acknowledged in the last seconds; set 'appendfsync always'"
)
UNSURE: Final = (
    "this Redis user may not read how often the append-only file is synced; allow it with 'ACL SETUSER NAME "
    "+config|get', or make sure that 'appendfsync always' is set"
)
UNKNOWN: Final = (
    "this Redis user may not read INFO, so it is unknown whether Redis is durable; allow it with 'ACL SETUSER NAME "
    "+info +config|get'"
)


async def check_durability(client: StandaloneClient, key: str, durability: Durability, logged: set[str]) -> None:
    """Warn once of each reason for which the server of a key may lose what it acknowledges.

    Raises:
        ConfigurationError: There is one, and `durability` is `"refuse"`.
    """
    problems = await _problems(client, key)
    if problems and durability == "refuse":
        raise ConfigurationError("; ".join(problems))
    for problem in problems:
        if durability == "warn" and problem not in logged:
            logged.add(problem)
            logger.warning(problem)


async def _problems(client: StandaloneClient, key: str) -> list[str]:
    info: bytes = await client.run(INFO, [key])
    values = dict(line.split(":", 1) for line in info.decode().split("\r\n") if ":" in line)
    if not values.keys() >= {"aof_enabled", "maxmemory", "maxmemory_policy"}:
        return [UNKNOWN]
    has_file = values["aof_enabled"] != "0"
    fsync = await _fsync(client, key)
    problems = {
        FORGETS: not has_file,
        EVICTS: values["maxmemory_policy"] != "noeviction" and values["maxmemory"] != "0",  # 0: it is never full
        UNSURE: has_file and fsync is None,
        LATE: has_file and fsync not in {None, "always"},
    }
    return [text for text, is_so in problems.items() if is_so]


async def _fsync(client: StandaloneClient, key: str) -> str | None:
    """Return when the append-only file is synced, or None if this user may not ask for it."""
    try:
        found = await client.run("CONFIG", [], "GET", "appendfsync", **client.node_of(key))
    except StoreUnavailable as error:
        if error.reason not in PERMANENT:
            raise
        return None
    *_, value = found.values() if isinstance(found, dict) else found  # by the version of the protocol
    return str(value.decode())
