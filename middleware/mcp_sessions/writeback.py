"""What is written into a response: the session into its result, sessions into the capabilities.

Only a successful answer to the request itself is touched; errors, notifications and everything else
on the same stream keep the server's bytes.
"""

from __future__ import annotations

from typing import Final

import msgspec

from . import splice
from .discreet import Discreet
from .errors import DataError, StateError, StoreUnavailable
from .jsonrpc import Message
from .live import Live
from .protocol import ADVERTISING
from .tokens import SESSION

_INTERNAL_ERROR: Final = -32603


class WriteBack(Discreet, msgspec.Struct):
    """The changes that one request's answer needs; calling it makes them. (A struct, as one is made per request.)

    Args:
        request_id: The request's id as JSON.
        live: The session to echo or to save, or None.
        settings: What to advertise, as JSON, or None.
        capability: What `capabilities.sessions` says, as JSON.
        saves: Whether the session's state has to be kept before its answer leaves: its client carries none.
    """

    request_id: bytes
    live: Live | None
    settings: bytes | None
    capability: bytes
    saves: bool

    @classmethod
    def of(cls, message: Message, live: Live | None, settings: bytes, capability: bytes = b"{}") -> WriteBack | None:
        """The changes that a message's answer needs, or None where it needs none."""
        request_id = message.id  # only a request has one
        advertised = settings if message.method in ADVERTISING else None
        if request_id is None or (live is None and advertised is None):
            return None
        return cls(request_id, live, advertised, capability, live is not None and live.claims.kind != SESSION)

    def __call__(self, text: bytes) -> bytes | None:
        """One JSON-RPC message of the response, changed, or None where it stays as it is."""
        changed = None if self.settings is None else self._advertised(text, self.settings)
        if self.live is None or self.saves:
            return changed
        try:
            return splice.echo(text if changed is None else changed, self.request_id, self.live.echo)
        except StateError as error:
            return self._failed(error)

    def _advertised(self, text: bytes, settings: bytes) -> bytes | None:
        return splice.advertise(text, self.request_id, settings, self.capability)

    async def save(self, text: bytes) -> bytes | None:
        """As calling it, where `saves`: the state is kept if the message is the answer."""
        assert self.live is not None
        try:
            if splice.is_answer(text, self.request_id):
                await self.live.save()
        except (StateError, DataError, StoreUnavailable) as error:
            return self._failed(error)
        return self(text)

    def _failed(self, error: Exception) -> bytes:
        return splice.error(self.request_id, _INTERNAL_ERROR, str(error))
