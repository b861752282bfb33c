"""The functions that an application passes as options: which may be async, and what a plain one may not return.

`str(coroutine)` is a text and `bool(coroutine)` is True: an async function that nothing awaits must never count.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable
from functools import partial
from typing import Any, Final

from .._errors import ConfigurationError

_IN_2020: Final = 1_577_836_800  # its first second, as Unix time
_IN_2100: Final = 4_102_444_800
_SECONDS: Final = "it must return Unix seconds, as time.time does, not milliseconds nor those since a start"
_ELSEWHERE: Final = {
    "principal": "find out who calls in an ASGI middleware outside, and return what that left on the scope",
    "listen": "let it put the event into a queue, or start a task",
}


def check_function(option: str, function: Any, *, may_be_async: bool = False) -> Any:
    """Return the function of an option, or None.

    Raises `ConfigurationError` if it cannot be called, or if nothing would run it: an async function that is not
    awaited, or a generator.
    """
    if function is None:
        return None
    if not callable(function):
        raise ConfigurationError(f"{option}= takes a function, not {type(function).__name__}")
    called = function
    while isinstance(called, partial):
        called = called.func
    for one in (called, getattr(type(called), "__call__", None)):  # noqa: B004  # an object's `__call__` may be async
        is_generator = inspect.isasyncgenfunction(one) or inspect.isgeneratorfunction(one)
        if is_generator or (inspect.iscoroutinefunction(one) and not may_be_async):
            kinds, kind = (
                "a plain or an async" if may_be_async else "a plain",
                "a generator" if is_generator else "async",
            )
            remedy = _ELSEWHERE.get(option.rpartition(".")[2])
            text = f"{option}= takes {kinds} function; this one is {kind}, and would never run"
            raise ConfigurationError(text if remedy is None else f"{text}: {remedy}")
    return function


def check_clock(clock: Any) -> Callable[[], float]:
    """Return the function of an option `clock=`, after it has returned a time."""
    check_function("clock", clock)
    now: object = clock() if callable(clock) else clock
    if is_unfinished(now) or isinstance(now, bool) or not (isinstance(now, (int, float)) and math.isfinite(now)):
        raise ConfigurationError(f"clock= returned {described(now)}; {_SECONDS}")
    is_of_machine = (getattr(clock, "__module__", ""), getattr(clock, "__name__", "")) == ("time", "time")
    if not _IN_2020 <= now <= _IN_2100 and not is_of_machine:  # whose clock may be wrong
        raise ConfigurationError(f"clock= returned {now!r}, which is no time between 2020 and 2100; {_SECONDS}")
    return clock  # type: ignore[no-any-return]  # it has returned one


def is_unfinished(value: object) -> bool:
    """Return whether a plain function returned something to await or to iterate in place of an answer.

    A coroutine is closed, or Python would warn that it was never awaited.
    """
    if inspect.iscoroutine(value) or inspect.isgenerator(value):
        value.close()
        return True
    return inspect.isawaitable(value) or inspect.isasyncgen(value)


def is_lost(value: object) -> bool:
    """Return whether a function returned work that nothing does, such as a generator, a function or a future."""
    is_context = hasattr(type(value), "__enter__") or hasattr(type(value), "__aenter__")
    is_work = inspect.isgenerator(value) or inspect.isasyncgen(value) or hasattr(value, "add_done_callback")
    return is_work or is_context or callable(value)


async def finish(outcome: Any, *, option: str = "on_create") -> None:
    """Await what the function of an option returned that may be async; work that nothing does is a `TypeError`."""
    if inspect.isawaitable(outcome):
        await outcome
    elif is_lost(outcome):
        raise TypeError(
            f"{option}= returned {described(outcome)}, which nothing runs: do the work in an async function"
        )


def described(value: object) -> str:
    """Return what a value is, in words for a log: its type, since the value itself may be a secret."""
    return "None" if value is None else f"a value of type {type(value).__name__}"
