"""The members of a message's `params` and `_meta` that sessions read, by name.

Every value stays the slice of the body that it was.
"""

from __future__ import annotations

from typing import Final, TypeAlias

import msgspec
from msgspec import UNSET, Raw, UnsetType

from .._session.claims import RedactedRepr

SESSION_KEY: Final = "io.modelcontextprotocol/session"
PROTOCOL_VERSION_KEY: Final = "io.modelcontextprotocol/protocolVersion"
CLIENT_INFO_KEY: Final = "io.modelcontextprotocol/clientInfo"
CLIENT_CAPABILITIES_KEY: Final = "io.modelcontextprotocol/clientCapabilities"

READ: Final = {"name": "name", "uri": "uri", "clientInfo": "client_info"}  # the field of each in `Params`
RENAMED: Final = {"meta": "_meta", "protocol_version": "protocolVersion", "client_info": "clientInfo"}

_META_FIELDS: Final = {
    SESSION_KEY: "session",
    PROTOCOL_VERSION_KEY: "protocol_version",
    CLIENT_INFO_KEY: "client_info",
    CLIENT_CAPABILITIES_KEY: "client_capabilities",
    "progressToken": "progress_token",
    "traceparent": "traceparent",
    "tracestate": "tracestate",
    "baggage": "baggage",
}
Value: TypeAlias = Raw | UnsetType


class Meta(
    RedactedRepr,
    msgspec.Struct,
    omit_defaults=True,
    frozen=True,
    gc=False,
    forbid_unknown_fields=True,
    rename={field: name for name, field in _META_FIELDS.items()},
):
    """The members that the `_meta` of most requests has, each value as sent."""

    protocol_version: Value = UNSET
    client_info: Value = UNSET
    client_capabilities: Value = UNSET
    session: Value = UNSET
    progress_token: Value = UNSET
    traceparent: Value = UNSET
    tracestate: Value = UNSET
    baggage: Value = UNSET

    @classmethod
    def of(cls, members: dict[str, Raw]) -> Meta:
        return cls(**{field: members[name] for name, field in _META_FIELDS.items() if name in members})

    @property
    def named(self) -> bytes | None:
        return None if self.session is UNSET else bytes(self.session)


class Params(RedactedRepr, msgspec.Struct, omit_defaults=True, frozen=True, gc=False, rename=RENAMED):
    """The members that the `params` of MCP's common methods have, each value as sent."""

    name: Value = UNSET
    uri: Value = UNSET
    arguments: Value = UNSET
    cursor: Value = UNSET
    protocol_version: Value = UNSET
    capabilities: Value = UNSET
    client_info: Value = UNSET
    meta: Meta | None = None


NO_PARAMS: Final = Params()
