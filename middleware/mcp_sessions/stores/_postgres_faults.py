"""Why PostgreSQL refuses: a reason for logs and spans, and a sentence with the remedy. The driver's texts stay here,
since they may quote the URL.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final, NamedTuple

from .._errors import ConfigurationError, MCPSessionsError, StoreFull, StoreUnavailable

FULL: Final = "store_full_disk"
FORBIDDEN: Final = "store_forbidden"
NO_DATABASE: Final = "store_no_database"
NO_TABLES: Final = "store_no_tables"


class Fault(NamedTuple):
    """A cause as logs and spans show it."""

    reason: str
    cause: str


_WRONG_PASSWORD: Final = Fault(FORBIDDEN, "the password in the store's URL is wrong, or the user does not exist")
_NO_USER: Final = Fault(FORBIDDEN, "the user in the store's URL does not exist: CREATE ROLE ... LOGIN, or correct it")
_NOT_LET_IN: Final = Fault(FORBIDDEN, "the server lets this user not connect from here: add a line to its pg_hba.conf")
_NO_PERMISSION: Final = Fault(
    FORBIDDEN,
    "the user may not create or change the store's tables: let it own their schema, CREATE SCHEMA {schema} "
    "AUTHORIZATION the_user",
)
_NO_DATABASE: Final = Fault(
    NO_DATABASE, "the database in the store's URL does not exist: CREATE DATABASE ..., or correct it"
)
STANDBY: Final = Fault("store_readonly", "this server is a standby, or read-only; give the URL of the primary")
_TOO_MANY: Final = Fault(
    "store_too_many_connections",
    "it has no connection left for this worker: raise max_connections, or lower connections=",
)
_RESTARTING: Final = Fault("store_restarting", "it starts or stops; requests are served again once it runs")
_TIMEOUT: Final = Fault("store_timeout", "no answer in time")
_UNREACHABLE: Final = Fault("store_unreachable", "no connection: is it running, and is the host in the URL right?")
_BY_CODE: Final = {  # by the beginning of the SQLSTATE; the first that fits counts
    "25006": STANDBY,
    "28P01": _WRONG_PASSWORD,
    "28": _NOT_LET_IN,
    "3D": _NO_DATABASE,
    "3F": Fault(NO_TABLES, "its schema does not exist"),
    "40P01": Fault("store_locked", "another transaction holds what this one needs"),
    "42501": _NO_PERMISSION,
    "42P01": Fault(NO_TABLES, "its tables do not exist"),
    "53100": Fault(FULL, "the disk of the database is full: free space on it"),
    "53200": Fault("store_out_of_memory", "the server is out of memory"),
    "53300": _TOO_MANY,
    "55P03": Fault("store_locked", "another transaction holds what this one needs"),
    "57014": _TIMEOUT,
    "57P": _RESTARTING,
    "58": Fault("store_io_error", "the server cannot read or write its files: see its log"),
    "XX": Fault("store_corrupt", "a table or an index is damaged: see the server's log"),
}
_BY_WORDS: Final = {  # of errors from before there is a connection, which have no code; the first that is found counts
    **dict.fromkeys(
        ("certificate", "SSL"),
        Fault("store_tls", "TLS: the certificate cannot be verified, or the server does not speak it"),
    ),
    **dict.fromkeys(("password", "authentication"), _WRONG_PASSWORD),
    "pg_hba": _NOT_LET_IN,
    "role ": _NO_USER,
    **dict.fromkeys(("starting up", "shutting down"), _RESTARTING),
    **dict.fromkeys(("too many", "slots"), _TOO_MANY),
    **dict.fromkeys(("read-only", "hot standby", "recovery"), STANDBY),
    "permission denied": _NOT_LET_IN,
    "database ": _NO_DATABASE,
    "timeout": _TIMEOUT,
}


def fault_of(error: BaseException) -> Fault:
    """Return why PostgreSQL refused."""
    code, text = getattr(error, "sqlstate", None), str(error)
    if code is None:
        return next((fault for words, fault in _BY_WORDS.items() if words in text), _UNREACHABLE)
    unknown = Fault("store_error", f"an error of the server, SQLSTATE {code} ({type(error).__name__})")
    return next((fault for start, fault in _BY_CODE.items() if code.startswith(start)), unknown)


def is_passing(error: BaseException) -> bool:
    """Return True if the server may accept a connection in a moment."""
    return not isinstance(error, MCPSessionsError) and fault_of(error) in {_RESTARTING, _TOO_MANY, _UNREACHABLE}


@contextmanager
def named_faults(schema: str, *, at_start: bool = False) -> Iterator[None]:
    """Turn errors of the driver into ours; at start, what only the operator can mend is a `ConfigurationError`."""
    from psycopg import Error

    try:
        yield
    except Error as error:
        reason, cause = fault_of(error)
        cause = cause.format(schema=schema)
        if at_start and reason in {FORBIDDEN, NO_DATABASE}:
            raise ConfigurationError(f"PostgreSQL: {cause}") from None
        raise (StoreFull if reason == FULL else StoreUnavailable)(reason, cause=cause) from None
