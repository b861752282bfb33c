"""The top-level `sessionId` of SEP-1364, which both of its alternatives share.

A request, a notification or an answer names its session beside `method` and `params`, and over HTTP the
header `Mcp-Session-Id` must mirror it. What is null is absent. Nothing here verifies a session, and
nothing here knows how one begins or ends. Source: SEP-1364, "Specification".
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from msgspec import Raw

from ..errors import (
    FieldHeaderMissing,
    FieldNotString,
    ParamsNotObject,
    SessionFieldMismatch,
    SessionHeaderMismatch,
)
from ..jsonrpc import Message
from ..members import last_members, string
from ..tokens import BESIDE, Kind

FIELD_NAME: Final = "sessionId"
_NULL: Final = Raw(b"null")


def field(message: Message) -> str | None:
    """The session that a message's top-level field names, or None.

    Raises:
        FieldNotString: It is neither a string nor null.
    """
    return None if message.field is None else text(message.field)


def text(raw: Raw) -> str | None:
    """A `sessionId`, wherever it stands; null means none.

    Raises:
        FieldNotString: It is neither a string nor null.
    """
    if raw == _NULL:
        return None
    said = string(raw)
    if said is None:
        raise FieldNotString
    return said


def params(message: Message) -> Mapping[str, Raw]:
    """The members of a message's `params`; none where they are absent or null."""
    raw = last_members(message.body).get("params", _NULL)
    return {} if raw == _NULL else last_members(raw, ParamsNotObject)


def capabilities(message: Message) -> Raw | None:
    """What a client says that it can do: the object in a message's `params.capabilities`, or None where none stands."""
    said = params(message).get("capabilities", _NULL)
    return said if bytes(said).startswith(b"{") else None


def agreed(*said: str | None) -> str | None:
    """The one session that several places of a message name, or None where none does.

    Raises:
        SessionFieldMismatch: They name several.
    """
    names = {name for name in said if name is not None}
    if len(names) > 1:
        raise SessionFieldMismatch
    return names.pop() if names else None


def check_header(named: str, kind: Kind | None, header: str | None, *, is_ours: bool) -> None:
    """That the header says of the session what the field says.

    Args:
        named: What the field says.
        kind: What the session's token may be used as; None where it is not authentic.
        header: The header as it came, or None.
        is_ours: Whether it looks like one of ours.

    Raises:
        FieldHeaderMissing: There is none.
        SessionHeaderMismatch: It says something else.
    """
    if header is None:
        raise FieldHeaderMissing
    if not _HOLDS.get(kind, _mirrors)(named, header, is_ours):
        raise SessionHeaderMismatch


def _mirrors(named: str, header: str, _is_ours: bool) -> bool:
    return named == header


def _stands_beside(_named: str, _header: str, is_ours: bool) -> bool:
    """A server with transport sessions of its own needs the header for their ids, and judges them itself."""
    return not is_ours


_HOLDS: Final[Mapping[Kind | None, Callable[[str, str, bool], bool]]] = {BESIDE: _stands_beside}
