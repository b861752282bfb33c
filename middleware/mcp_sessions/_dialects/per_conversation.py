"""One session for each conversation of a user: hosts such as ChatGPT, VS Code and Codex send the conversation's id.

The id is a label that the host chooses, and it proves nothing. So it selects only among the caller's own sessions: the
key is a keyed hash of the user, the audience, the id, and where the id stood. The store has a list of each user's
conversations, too, and that has a limit: a client could otherwise fill the store with ids that it makes up.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from operator import itemgetter
from typing import Final

import msgspec

from .._errors import StoreUnavailable
from .._protocol.labels import correlation_of
from .._refusals import refusal
from .._server.context import Request
from .._server.options import HOUR
from .._server.runtime import Runtime
from .._session.claims import CONVERSATION, Claims, Kind, ref_of
from .._session.data import Namespace
from .._tokens.keys import KeyRing
from .base import Credential, NoCredential
from .remembered import CLIENT, ENTRY_KEY, Remembered, decode, encode, end_idle, place_of

MAX_CONVERSATIONS: Final = 100  # of one user at a time
MAKES_ROOM_AFTER: Final = HOUR  # seconds without a request
_LIST_KEY: Final = "conversations"
_LIST_BYTES: Final = 100 * MAX_CONVERSATIONS
_ATTEMPTS: Final = 20
_ANONYMOUS: Final = NoCredential(
    "it sends a conversation id, but its user is not authenticated", "authenticate users, or pass principal="
)
_decode_list: Final = msgspec.json.Decoder(dict[str, float]).decode


class PerConversation(Remembered):
    """One session per conversation of an authenticated user.

    Args:
        sources: Where conversations are named, as in `correlate=`.
        lifetime: Seconds from creation to expiry.
        idle: Seconds without a request after which a session ends.
    """

    name: str = "conversation"
    kind: Kind = CONVERSATION
    notes_every_use: bool = True

    def __init__(self, sources: Sequence[str], *, lifetime: float, idle: int) -> None:
        super().__init__(lifetime=lifetime, idle=idle)
        self._sources: Final = sources

    def find(self, request: Request, earlier: Sequence[Credential]) -> Credential | NoCredential | None:
        """Return the session of the conversation that the host names."""
        if earlier or not self.may_use(request):
            return None
        named = correlation_of(self._sources, request.current_message.meta, request.headers.first)
        if named is None:
            return None
        if request.user_or_warn() is None:
            return _ANONYMOUS if request.principal is None else CLIENT
        return Credential(self, f"{named.source} {named.id}", self.kind, creates=True)

    def names(self, ring: KeyRing, request: Request, credential: Credential) -> list[str]:
        """Return the keyed hashes of the user, the audience and the conversation."""
        user = request.user_or_warn()
        assert user is not None
        return [ref_of(name) for name in ring.names(user, self.kind, request.runtime.audience, credential.id)]

    async def make_room(self, request: Request, name: str, new: Claims) -> None:
        """Put a conversation on the list of its user; one that is idle leaves a full list, and its session ends.

        Raises:
            Refusal: `conversations_full`: all of them are in use.
        """
        runtime, place = request.runtime, _place_of_list(request.runtime, new)
        async with runtime.principals.beginning(place.owner):
            left = await self._enlist(runtime, place, name)
        if left is not None:
            await end_idle(runtime, left[1])
            await super().forget(runtime, left[:1], left[1])

    async def _enlist(self, runtime: Runtime, place: Namespace, name: str) -> tuple[str, Claims] | None:
        """Put a conversation on a list, and return the name and the session of one that leaves it, if there is any."""
        for _ in range(_ATTEMPTS):
            stored = await runtime.store.read(place, _LIST_KEY)
            used_at = {} if stored is None else _decode_list(stored)
            if name in used_at:
                return None
            left = await self._pop_idle(runtime, used_at) if len(used_at) >= MAX_CONVERSATIONS else None
            is_full = len(used_at) >= MAX_CONVERSATIONS
            if not is_full:
                used_at[name] = runtime.clock()
            if await runtime.store.compare_and_swap(place, _LIST_KEY, stored, encode(used_at)):
                if is_full:
                    raise refusal("conversations_full")
                return left
        raise StoreUnavailable(cause="other workers change the list of a user's conversations")

    async def _pop_idle(self, runtime: Runtime, used_at: dict[str, float]) -> tuple[str, Claims] | None:
        """Take the longest idle conversation off a list, and return its name and its session, if it has one.

        The list has when each was first used. When it was last used stands in its entry, and is noted on the list, so
        that a flood of new ids does not read all entries again and again.
        """
        now = runtime.clock()
        for name, seen_at in sorted(used_at.items(), key=itemgetter(1)):
            if now < seen_at + MAKES_ROOM_AFTER:
                break
            stored = await runtime.store.read(place_of(runtime, name), ENTRY_KEY)
            entry = None if stored is None else decode(stored)
            if entry is None or not now < entry.seen_at + MAKES_ROOM_AFTER:
                del used_at[name]
                return None if entry is None else (name, entry.claims)
            used_at[name] = entry.seen_at
        return None

    async def forget(self, runtime: Runtime, names: Sequence[str], claims: Claims) -> None:
        """Delete the entry of a session that has ended, and take its conversation off the list."""
        await super().forget(runtime, names, claims)
        place = _place_of_list(runtime, claims)
        with suppress(StoreUnavailable):  # if this fails, or another worker is faster, it leaves when it is idle
            stored = await runtime.store.read(place, _LIST_KEY)
            used_at = {} if stored is None else _decode_list(stored)
            rest = {name: at for name, at in used_at.items() if name not in names}
            await runtime.store.compare_and_swap(place, _LIST_KEY, stored, encode(rest))


def _place_of_list(runtime: Runtime, claims: Claims) -> Namespace:
    owner = ref_of(f"conversations/{claims.subject}/{runtime.audience}")
    return Namespace(owner, claims.expires_at, _LIST_BYTES, audience=runtime.audience)
