"""The envelope of the modern era: what a request states of itself in `_meta` and in its headers.

Source: MCP 2026-07-28.
"""

from __future__ import annotations

from msgspec import UNSET

from .._refusals import refusal
from .jsonrpc import Message
from .strict_json import string


def check_envelope(message: Message, *, version: str | None, methods: list[str]) -> None:
    """Make the modern era's checks on a request that we answer ourselves, in the specification's order."""
    meta = message.params.meta
    stated = None if meta is None or meta.protocol_version is UNSET else string(meta.protocol_version)
    if stated is None or meta is None or meta.client_capabilities is UNSET:
        raise refusal("envelope_incomplete")
    if stated != version:
        raise refusal("version_header_mismatch")
    if methods != [message.method]:
        raise refusal("method_header_mismatch")
