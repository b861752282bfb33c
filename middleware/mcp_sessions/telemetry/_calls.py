"""What the spans of messages have in common that call the same in one session, made once for all of them."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from functools import lru_cache, partial
from typing import Final

import msgspec
from msgspec import UNSET, Raw
from opentelemetry.context import Context
from opentelemetry.trace import Link

from .._protocol.jsonrpc import REQUEST, Message
from .._protocol.labels import client_of
from .._protocol.members import Params
from .._session.claims import MAX_CLIENT_CHARS, Claims
from ._attributes import CLIENT, METHOD, NETWORK, TARGET_ATTRIBUTES, common_attributes, session_attributes, target_of
from ._context import SESSION_START, in_session, links_to, start_of

_CALLS: Final = 2048  # of 1 to 2 KB each
_MAX_KEY: Final = 512  # of what a client wrote, together
_LABELS: Final = (METHOD, *TARGET_ATTRIBUTES.values())


class Call(msgspec.Struct, frozen=True):
    """What is the same for all such messages."""

    name: str
    attributes: tuple[dict[str, str], dict[str, str]]  # the second where `session.id` is foreign
    common: dict[str, str]  # those of them that name no session
    beside_http: dict[str, str]  # those that are not on the span of an HTTP instrumentation, either
    labels: dict[str, str]  # those of them that the span around gets
    parent: Context  # where the message brings no trace context and there is no current span
    links: Sequence[Link]  # to the session's start


class Calls:
    """Makes each `Call` once.

    Args:
        aliases: Further attributes that name a session.
    """

    def __init__(self, aliases: Collection[str]) -> None:
        self._cached: Final = lru_cache(maxsize=_CALLS)(partial(_make, aliases))

    def of(
        self, message: Message, version: str | None, http_version: str | None, session: Claims | None, ref: str | None
    ) -> Call:
        """Return what a message has in common with others.

        Args:
            message: The message.
            version: The `MCP-Protocol-Version` header, or None.
            http_version: The version of HTTP, or None.
            session: Its session of ours, or None.
            ref: The public name of its session, or None.
        """
        # By what was sent, so that what comes again is not even read; unusually long texts are not cached.
        sent = message.params.name
        name = b"" if sent is UNSET else bytes(sent)
        is_short = len(message.method) + len(name) + (0 if version is None else len(version)) <= _MAX_KEY
        call_of = self._cached if is_short else self._cached.__wrapped__
        client, trace = (None, None) if session is None else (session.client, session.trace)
        meta = message.params.meta
        if client is None and (
            message.params.client_info is not UNSET or (meta is not None and meta.client_info is not UNSET)
        ):
            given = client_of(message)
            client = None if given is None else given[:MAX_CLIENT_CHARS]
        return call_of(message.method, name, version, http_version, client, ref, trace)


def _make(  # noqa: PLR0917  # all of it is the key of a cache
    aliases: Collection[str],
    method: str,
    name: bytes,
    version: str | None,
    http_version: str | None,
    client: str | None,
    ref: str | None,
    trace: str | None,
) -> Call:
    message = Message(b"", REQUEST, method, read_params=Params(name=Raw(name) if name else UNSET))
    label, target = message.label, target_of(message)
    span = label if target is None else f"{label} {target}"
    common = common_attributes(label, target, version, http_version)
    labels = {key: common[key] for key in _LABELS if key in common}
    if client is not None:
        common[CLIENT] = client
    attributes = (common, common)
    if ref is not None:
        ours, foreign = (session_attributes(ref, tuple(aliases), is_foreign) for is_foreign in (False, True))
        attributes = ({**common, **ours}, {**common, **foreign})
    links = links_to(start_of(trace), SESSION_START)
    beside_http = {key: value for key, value in common.items() if not key.startswith(NETWORK)}
    return Call(span, attributes, common, beside_http, labels, in_session(ref, Context()), links)
