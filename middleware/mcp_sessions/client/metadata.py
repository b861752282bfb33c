"""A session as its client holds it: the draft's `SessionMetadata`.

The id and the state are the server's, and opaque: they are kept and sent as they came, never looked into, and shown by
no `repr`. A result is believed about the session that its request carried and about no other.
Source: the data-layer sessions draft, "Creating Sessions", "Using Sessions" and "Data Types".
"""

from __future__ import annotations

from datetime import datetime, timezone
from typing import Annotated, Any

import msgspec

VISIBLE_ASCII = r"\A[!-~]+\Z"


class Metadata(msgspec.Struct, frozen=True, omit_defaults=True, rename="camel"):
    """What the server gave out.

    Args:
        session_id: The id. A credential.
        state: The state token to send along, or None where there is none.
        expires_at: The server's hint, ISO 8601.
    """

    session_id: Annotated[str, msgspec.Meta(pattern=VISIBLE_ASCII)]
    state: str | None = None
    expires_at: str | None = None

    def __repr__(self) -> str:
        return f"<Metadata, expires at {self.expires_at}>"

    def sent(self) -> dict[str, str]:
        """What a request says of the session. The hint stays here: it is news for the client alone."""
        carried = {"sessionId": self.session_id}
        return carried if self.state is None else {**carried, "state": self.state}

    def learned(self, echoed: object) -> Metadata:
        """What is held after a result of a request in this session.

        Args:
            echoed: What the result says of a session, as it came.
        """
        try:
            news = msgspec.convert(echoed, Metadata)
        except msgspec.ValidationError:
            return self
        if news.session_id != self.session_id:
            return self
        return Metadata(self.session_id, news.state or self.state, news.expires_at or self.expires_at)

    @property
    def expires(self) -> datetime | None:
        """When the session is expected to end, or None where the server does not say, or not so that it can be read."""
        try:
            hint = datetime.fromisoformat((self.expires_at or "").replace("Z", "+00:00"))
        except ValueError:
            return None
        return hint if hint.tzinfo else hint.replace(tzinfo=timezone.utc)


def created(result: dict[str, Any]) -> Metadata:
    """The session in the result of `sessions/create`.

    Raises:
        msgspec.ValidationError: There is none, or its id is none.
    """
    return msgspec.convert(result.get("session"), Metadata)
