"""Choose the reader of requests and answers: the one in C where it was built, else the one in Python.

`reader.c` reads what nearly every peer sends, and leaves the rest to Python. `MCP_SESSIONS_NATIVE=0` switches it off,
and a word that is neither yes nor no is an error, as it is for every setting.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import suppress
from importlib import import_module
from types import CoroutineType
from typing import Any, Final, Literal

from ..._errors import ConfigurationError

Read = Callable[[bytes, int], "tuple[str, int | str | None, bytes | None, bytes | None] | None"]
"""Given a body and how deep it may be nested, returns a message's method, id, session metadata and name, or None."""
Echo = Callable[[bytes, bytes, "bytes | Callable[[], bytes]"], "bytes | None"]
"""Given an answer, its request's id and the session, or what gives it, returns the answer with it in it, or None."""
Head = Callable[[Any], "tuple[int, bytes | None] | None"]
"""Given a request's headers, returns where `accept-encoding` stands and `user-agent`, or None if more may matter."""
Kept = Callable[[Any], "list[tuple[bytes, bytes]] | None"]
"""Given a response's headers, returns those that stay true of another JSON body, or None."""
Step = Callable[[Any], Any]
"""Begins to await something; returns what that returned at once, or in a tuple its iterator and what it waits for."""

SWITCH: Final = "MCP_SESSIONS_NATIVE"

_module: Any = None
_switch = os.environ.get(SWITCH, "true")
if _switch.lower() not in {"true", "false", "1", "0"}:
    raise ConfigurationError(f"{SWITCH}={_switch!r} must be `true` or `false`")
if _switch.lower() in {"true", "1"}:
    with suppress(ImportError):  # it was not built, as where there is no compiler
        _module = import_module(f"{__name__}._reader")


def left(text: object, more: object = None, most: object = None) -> None:
    """Leave all to the Python code."""


def step_in_python(waiter: Any) -> Any:
    steps = waiter if type(waiter) is CoroutineType else waiter.__await__()
    try:
        return steps, steps.send(None)
    except StopIteration as returned:
        return returned.value


read: Read = getattr(_module, "read", left)
echo: Echo = getattr(_module, "echo", left)
head: Head = getattr(_module, "head", left)
kept: Kept | None = getattr(_module, "kept", None)
step: Step = getattr(_module, "step", step_in_python)


def reader() -> Literal["native", "python"]:
    """Return which reader runs."""
    return "python" if read is left else "native"
