"""What answers need in every dialect: sessions among the capabilities, and the state of the session."""

from __future__ import annotations

import logging
from typing import ClassVar, Final

from .._errors import DataError, DataGone, Refusal, SessionEnded, StateError, StoreUnavailable
from .._protocol import rewrite
from .._protocol.rewrite import Answer
from .._session.session import Session
from .logs import log_extra
from .response import Change, Response
from .sessions import store_state

INTERNAL_ERROR: Final = -32603
_log: Final = logging.getLogger("mcp_sessions")


class Advertise(Change, kw_only=True):
    """Sessions among the capabilities in an answer that tells what the server can do."""

    capability: bytes  # `capabilities.sessions`, as JSON
    settings: bytes  # `capabilities.experimental.sessions`, as JSON

    async def on_answer(self, answer: Answer, response: Response) -> bytes | None:
        """Return the answer with sessions among its capabilities."""
        return rewrite.advertise(answer, self.settings, self.capability)


class MakePrivate(Change):
    """The answer to a call of another process, whose state is not here: its cache hints keep others from it."""

    async def on_answer(self, answer: Answer, response: Response) -> bytes | None:
        """Return the answer with its hints for caches private and stale."""
        return rewrite.private(answer)


class SaveState(Change, kw_only=True):
    """The state of the session, stored before the answer leaves; an error takes its place if that fails."""

    is_repeatable: ClassVar[bool] = True
    session: Session

    async def on_answer(self, answer: Answer, response: Response) -> bytes | None:
        """Store the state with the answer; hints for caches become private and stale."""
        try:
            return await self.save(answer, response)
        except (StateError, DataError, StoreUnavailable) as error:
            return self._withhold(error, response)

    async def save(self, answer: Answer, response: Response) -> bytes | None:
        """Store the state, and return what takes the place of the answer."""
        await store_state(response.request.runtime, self.session)
        return rewrite.private(answer)

    def _withhold(self, error: StateError | DataError | StoreUnavailable, response: Response) -> bytes:
        """Return the error that takes the place of an answer whose state was not stored."""
        ref = self.session.ref
        refusal = SessionEnded() if isinstance(error, DataGone) else error
        if isinstance(refusal, Refusal):
            refusal.ref, refusal.executed = ref, True
            return response.refusal_body(refusal)
        label = "" if response.call is None else response.call.label
        text = "answer of %s in session %s withheld: its state cannot be stored (%s); the client gets an error"
        _log.error(text, ascii(label), ref, type(error).__name__, extra=log_extra(ref))
        return rewrite.error(response.request_id, INTERNAL_ERROR, str(error), {"executed": True})
