"""Files that are trusted, since only their owner can write to them: key files and databases of sessions."""

from __future__ import annotations

import os

from ._errors import ConfigurationError


def require_posix(what: str, remedy: str) -> None:
    """Refuse what trusts a file on a system whose owners and modes do not say who can write to it.

    Raises:
        ConfigurationError: The system is not POSIX.
    """
    if os.name != "posix":
        raise ConfigurationError(
            f"{what} is not supported on Windows, where neither owner nor mode says who can change a file; {remedy}"
        )
