"""Why a call to Redis failed: a reason for logs and spans, and a sentence with the remedy.

The driver's own text may quote an address or a password, so none of it is repeated.
"""

from __future__ import annotations

import os
import re
import ssl
from collections.abc import Iterator, Mapping
from typing import Final, NamedTuple

from .._errors import StoreFull, StoreUnavailable


class Fault(NamedTuple):
    """Why a call failed."""

    reason: str
    cause: str

    def error(self) -> StoreUnavailable:
        kind = StoreFull if self.reason == "store_out_of_memory" else StoreUnavailable
        return kind(self.reason, cause=self.cause)


PERMANENT: Final = {"store_forbidden", "store_misconfigured", "store_no_database"}
"""The reasons for which only another URL or another configuration helps."""

_PASSWORD: Final = Fault("store_forbidden", "it refuses this user; check the user and the password in the URL")
_RIGHTS: Final = Fault("store_forbidden", "this user lacks a permission; docs/stores.md shows the rights that it needs")
_CLUSTER: Final = Fault(
    "store_misconfigured", "this is a cluster; use redis+cluster:// or rediss+cluster:// in the URL"
)
_NO_CLUSTER: Final = Fault(
    "store_misconfigured", "this server is not in a cluster; use redis:// or rediss:// in the URL"
)
_DATABASE: Final = Fault("store_no_database", "it has no database with this number; correct the end of the URL")
_NO_REDIS: Final = Fault(
    "store_misconfigured", "it does not speak as Redis does; correct the host and the port in the URL"
)
_OLD: Final = Fault(
    "store_misconfigured", "it lacks a command that the store needs; use Redis 7 or Valkey, and rename no commands"
)
_SENTINEL: Final = Fault(
    "store_unreachable",
    "no Sentinel of the URL answers with a server of this name; check the name, and that the Sentinels run",
)
_CLUSTER_DOWN: Final = Fault("store_cluster_down", "the cluster does not serve all slots; check its nodes")
_MOVING: Final = Fault("store_cluster_down", "the slot of the keys is being moved; wait until that is done")
_CLOSED: Final = Fault("store_unreachable", "it closed the connection; check that it runs, and that no proxy cuts it")
_UNREACHABLE: Final = Fault("store_unreachable", "it does not answer; check that it runs, and the address in the URL")
_TIMEOUT: Final = Fault("store_timeout", "no answer in time; check its load and the network, or raise the timeout")
_CLIENTS: Final = Fault("store_too_many_connections", "it takes no more clients; raise maxclients")

# By words of a text of the server or the driver.
_TEXTS: Final[Mapping[str, Fault]] = {
    "db index is out of range": _DATABASE,
    "invalid db index": _DATABASE,
    "invalid database": _DATABASE,
    "unknown command": _OLD,
    "max number of clients": _CLIENTS,
    "the user executing the script": _RIGHTS,
    "acl failure in script": _RIGHTS,
    "cluster mode is not enabled": _NO_CLUSTER,
    "cluster support disabled": _NO_CLUSTER,
    "protocol error": _NO_REDIS,
    "connection closed": _CLOSED,
}
# By the server's code or, if the driver has a class for it, by that; the most special class counts.
_KINDS: Final[Mapping[str, Fault]] = {
    **dict.fromkeys(("AuthenticationError", "AuthenticationWrongNumberOfArgsError", "NOAUTH", "WRONGPASS"), _PASSWORD),
    **dict.fromkeys(("AuthorizationError", "NoPermissionError", "NOPERM"), _RIGHTS),
    **dict.fromkeys(("MovedError", "MOVED"), _CLUSTER),
    **dict.fromkeys(("ClusterDownError", "SlotNotCoveredError", "ClusterError"), _CLUSTER_DOWN),
    **dict.fromkeys(("AskError", "TryAgainError"), _MOVING),
    **dict.fromkeys(("ConnectionError", "OSError", "RedisClusterException"), _UNREACHABLE),
    "InvalidResponse": _NO_REDIS,
    "MasterNotFoundError": _SENTINEL,
    "TimeoutError": _TIMEOUT,
    "BusyLoadingError": Fault("store_loading", "it is reading its files after a restart; wait until that is done"),
    "BUSY": Fault("store_error", "it runs a script that does not end (BUSY); stop that with SCRIPT KILL"),
    "ReadOnlyError": Fault(
        "store_readonly", "this server is a replica; use the address of its primary, or redis+sentinel:// in the URL"
    ),
    "MasterDownError": Fault("store_readonly", "this server is a replica that has lost its primary"),
    "OutOfMemoryError": Fault(
        "store_out_of_memory", "its memory is full; raise maxmemory, or use a larger server for sessions"
    ),
    "MISCONF": Fault("store_cannot_save", "it cannot write to its disk (MISCONF); its log says why"),
    "NOREPLICAS": Fault(
        "store_no_replicas", "it has fewer replicas than it needs to accept changes (min-replicas-to-write)"
    ),
}


def fault_of(error: BaseException) -> Fault:
    """Return why a call failed."""
    chain = list(_chain(error))
    texts = [str(one).lower() for one in chain]
    for words, fault in _TEXTS.items():
        if any(words in text for text in texts):
            return fault
    for one in chain:
        if (cause := _cause_in_system(one)) is not None:
            return Fault("store_unreachable", cause)
    if type(error).__name__ == "RedisClusterException" and type(error.__cause__).__name__ == "TimeoutError":
        return _TIMEOUT  # no node answered when it was asked for the layout
    code = str(error).split(" ", 1)[0]
    names = [code, *(cls.__name__ for cls in type(error).__mro__)]
    known = next((_KINDS[name] for name in names if name in _KINDS), None)
    if known is not None:
        return known
    what = code if re.fullmatch("[A-Z]{2,30}", code) else type(error).__name__
    return Fault("store_error", f"it answered with an error ({what}); its log may say more")


def _chain(error: BaseException) -> Iterator[BaseException]:
    deeper: BaseException | None = error
    while deeper is not None:
        yield deeper
        deeper = deeper.__cause__ or deeper.__context__


def _cause_in_system(error: BaseException) -> str | None:
    """Return why TLS or the network failed."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"TLS: {error.verify_message}; renew its certificate, or set ssl_ca_certs= in the URL"
    if isinstance(error, ssl.SSLError):
        return "TLS: the server does not speak it, or not correctly; check the port, or use redis:// in the URL"
    if not isinstance(error, OSError) or not error.errno:
        return None
    if error.errno < 0:
        return "its host name is unknown; check the address in the URL"
    return f"{os.strerror(error.errno)}; check that it runs, and the address in the URL"
