"""Choose the reader of requests and answers: the one in C where it was built, else the one in Python.

`reader.c` reads what nearly every peer sends, and leaves the rest to Python. `MCP_SESSIONS_NATIVE=0` switches it off.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import suppress
from importlib import import_module
from typing import Any, Final, Literal

Read = Callable[[bytes, int], "tuple[str, int | str | None, bytes | None] | None"]
"""Given a body and how deep it may be nested, returns a message's method, id and session metadata, or None."""
Place = Callable[[bytes, bytes], "int | None"]
"""Given an answer and its request's id, returns before how many bytes of its end the session goes, or None."""

SWITCH: Final = "MCP_SESSIONS_NATIVE"

_module: Any = None
if os.environ.get(SWITCH, "").strip().lower() not in {"0", "false"}:
    with suppress(ImportError):  # it was not built, as where there is no compiler
        _module = import_module(f"{__name__}._reader")

read: Read | None = getattr(_module, "read", None)
place: Place | None = getattr(_module, "place", None)


def reader() -> Literal["native", "python"]:
    """Return which reader runs."""
    return "python" if read is None else "native"
