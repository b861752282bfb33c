"""What `Telemetry(listen=...)` is called with, and the session that `on_end=` gets."""

from ._session.events import RequestRefused, SessionCreated, SessionDeleted, SessionEvent, SessionUsed
from ._session.session import EndedSession

__all__ = ["EndedSession", "RequestRefused", "SessionCreated", "SessionDeleted", "SessionEvent", "SessionUsed"]
