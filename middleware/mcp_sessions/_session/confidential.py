"""Failures without secrets: whoever reports an exception may send every local variable of its frames.

Sentry does so by default. What takes keys, passwords or addresses with them is decorated, or forgets what it was given.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from traceback import clear_frames
from typing import Any, TypeVar, cast

from .._errors import MCPSessionsError

F = TypeVar("F", bound=Callable[..., Any])


def confidential(callee: F) -> F:
    """Decorate what is called with secrets: what it raises has no local variables, and no cause that may quote them."""

    @wraps(callee)
    def call(*args: Any, **kwargs: Any) -> Any:
        try:
            return callee(*args, **kwargs)
        except BaseException as error:
            del args, kwargs  # of this frame, which still runs
            forget(error)
            raise

    return cast(F, call)


def forget(error: BaseException) -> None:
    """Clear the local variables of all frames that an exception has left, and the cause of one of our own."""
    chain: list[BaseException | None] = [error]
    seen = set[int]()
    while chain:
        one = chain.pop()
        if one is None or id(one) in seen:
            continue
        seen.add(id(one))
        clear_frames(one.__traceback__)
        chain += [one.__cause__, one.__context__]
        if isinstance(one, MCPSessionsError):
            one.__cause__ = one.__context__ = None
