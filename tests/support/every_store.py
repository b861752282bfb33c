"""A store of each kind, for what must be true of all: one that was made for the same folder finds what was kept."""

import hashlib
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory

import postgres_servers
import redis_servers

from mcp_sessions.stores import MemoryStore, PostgresStore, RedisStore, SQLiteStore, Store

MEMORY_DISK = Path("/dev/shm")


def memory_folder() -> TemporaryDirectory[str]:
    """Return a folder in which a commit waits for no disk, where there is such a place."""
    return TemporaryDirectory(dir=MEMORY_DISK if MEMORY_DISK.is_dir() else None)


def name(folder: Path) -> str:
    return f"s{hashlib.sha256(bytes(folder)).hexdigest()[:32]}"


STORES: dict[str, Callable[..., Store]] = {
    "memory": lambda clock, folder, **options: MemoryStore(clock=clock, **options),  # which is lost with its process
    "sqlite": lambda clock, folder, **options: SQLiteStore(folder / "sessions.db", clock=clock, **options),
    "redis": lambda clock, folder, url=None, **options: RedisStore(
        url or redis_servers.shared().url, **{"prefix": name(folder), "clock": clock, "timeout": 10, **options}
    ),
    "postgres": lambda clock, folder, url=None, **options: PostgresStore(
        url or postgres_servers.shared().url,
        **{"schema": name(folder), "clock": clock, "durability": "ignore", "timeout": 10, **options},
    ),
}
"""By kind: what makes a store with a clock, for a folder and on a server, with options of its own."""
