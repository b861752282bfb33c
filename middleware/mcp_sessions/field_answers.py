"""The answers of SEP-1364 that are ours: their field names the session, and refusals say which session was named.

Beside them stand those of the draft, which this room leaves as they are.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
from msgspec import Raw

from . import splice
from .answers import Answers
from .dialects.field import FIELD_NAME
from .errors import Refusal
from .jsonrpc import SESSION_KEY, Message
from .members import join


class FieldAnswers(Answers, frozen=True):
    """What one request may be answered with where dialects of SEP-1364 are spoken, too."""

    async def refuse(self, message: Message, refusal: Refusal) -> None:
        """Answer a message with the error that its session, or the lack of one, deserves."""
        await super().refuse(self._as_draft(message), refusal)

    def ended(self, message: Message, ref: str) -> Callable[[], bytes]:
        """Gives the refusal of a request whose session ended while its answer was on the way, as JSON."""
        return super().ended(self._as_draft(message), ref)

    def _success(self, message: Message, result: dict[str, Any]) -> bytes:
        answer = super()._success(message, result)
        if message.id is None or FIELD_NAME not in result:
            return answer
        return splice.with_field(answer, message.id, result[FIELD_NAME]) or answer

    def _as_draft(self, message: Message) -> Message:
        """The message with its session where the draft names one, so that the error can say which it was."""
        opted = self.options.opted
        if opted is None or message.names_session:
            return message
        try:
            said = opted.said(message)
        except Refusal:
            return message
        if said is None:
            return message
        meta = {**(message.meta or {}), SESSION_KEY: Raw(join({"sessionId": said}))}
        params = msgspec.structs.replace(message.params, meta=meta)
        return msgspec.structs.replace(message, params=params)
