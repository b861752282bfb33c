"""What the application is told when it asks for something that cannot be: wrong options, state, data.

None of these reaches a client by itself. The tree is drawn in the package.
"""

from __future__ import annotations


class MCPSessionsError(Exception):
    """Base of every error that this package raises on purpose."""


class ConfigurationError(MCPSessionsError, ValueError):
    """An option is wrong. The message names the option and the remedy."""


class StateError(MCPSessionsError, ValueError):
    """The application wrote session state that cannot be kept."""


class StateTooLarge(StateError):
    """The sealed state would take `size` bytes and may take `limit` (`max_state_bytes`)."""

    def __init__(self, size: int, limit: int) -> None:
        super().__init__(f"session state would take {size} bytes sealed; the limit is {limit} (max_state_bytes)")
        self.size = size
        self.limit = limit


class StateNotJSON(StateError):
    """A value in the session state has no JSON form."""


class StateClosed(StateError):
    """The response has left, so a change to the state could no longer reach the client."""


class DataError(MCPSessionsError, ValueError):
    """The application asked of session data what cannot be done."""


class DataTooLarge(DataError):
    """A value, or all of a session's data together, would exceed its limit."""


class DataNotJSON(DataError):
    """A value has no JSON form, or would not come back as it is."""


class DataNotInteger(DataError):
    """`increment` was asked of a value that is no integer, or the sum does not fit 64 bits."""


class DataGone(DataError):
    """The session has ended, so its data can no longer be changed."""
