"""`SessionLogFilter`: the session on every log record that is made while one of its requests is handled.

A filter for a handler of the standard `logging` package, which lets every record pass. It names the
session by its `ref`, the same that spans carry, so that a line of the log and its trace find each other.
"""

from __future__ import annotations

import logging

from ..current import current_session


class SessionLogFilter(logging.Filter):
    """Gives each record `session`: the ref of the session whose request is handled, or `"-"`.

    Put it on a *handler*, so that it sees the records of every logger; a formatter can then write
    `%(session)s`. A record that has a `session` already keeps it, so that `extra={"session": ref}` names
    one outside of a request.
    """

    def filter(self, record: logging.LogRecord) -> bool:
        """Name the session on the record, and let it pass."""
        if not hasattr(record, "session"):
            session = current_session()
            record.session = "-" if session is None else session.ref
        return True
