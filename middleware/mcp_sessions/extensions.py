"""What is offered beyond the draft, by name: methods about sessions, and how each is advertised.

A method that is not offered is none of ours, and goes to the wrapped server like any other. Nothing here answers one.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any, Final

import msgspec

from .lineage import MODES
from .protocol import SUBJECTS, Subject


class Extension(msgspec.Struct, frozen=True):
    """One method beyond the draft.

    Args:
        method: Its name on the wire.
        subject: What a message with it is about.
        settings: What `capabilities.experimental.sessions` says of it.
        needs_records: Whether it is there only where sessions are tracked.
    """

    method: str
    subject: Subject
    settings: Mapping[str, Any]
    needs_records: bool = False


EXTENSIONS: Final[Mapping[str, Extension]] = {
    "fork": Extension("sessions/fork", Subject.FORK, {"fork": MODES, "descendants": True}),
    "list": Extension("sessions/list", Subject.SESSIONS, {"list": True}, needs_records=True),
    "end_all": Extension("sessions/end_all", Subject.END_ALL, {"endAll": True}, needs_records=True),
}


def offered(names: Collection[str], *, tracked: bool) -> list[Extension]:
    """The extensions of a deployment.

    Args:
        names: Those that were asked for.
        tracked: Whether sessions are recorded.
    """
    named = (extension for name, extension in EXTENSIONS.items() if name in names)
    return [extension for extension in named if tracked or not extension.needs_records]


def subjects(extensions: Sequence[Extension]) -> dict[str, Subject]:
    """What each method that is read here is about."""
    return {**SUBJECTS, **{extension.method: extension.subject for extension in extensions}}


def settings(required: str, extensions: Sequence[Extension]) -> bytes:
    """What `capabilities.experimental.sessions` says, as JSON.

    Args:
        required: Which requests need a session: `"never"`, `"some"` or `"always"`.
        extensions: What is offered.
    """
    said: dict[str, Any] = {"required": required}
    for extension in extensions:
        said |= extension.settings
    return msgspec.json.encode(said)
