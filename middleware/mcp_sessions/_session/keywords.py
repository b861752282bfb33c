"""A misspelt keyword says which one was meant, as a misspelt variable of the environment does.

Python says so from 3.13 on, and only if nothing takes `**options`. The value is never shown: it may be a secret.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection, Iterable
from difflib import get_close_matches
from functools import wraps
from typing import Any, TypeVar, cast

from .._errors import UnknownKeyword
from .confidential import confidential

F = TypeVar("F", bound=Callable[..., Any])


def check_keywords(callee: str, keywords: Iterable[str], known: Collection[str]) -> None:
    """Check that a call has no keywords but the known ones.

    Raises:
        UnknownKeyword: One is not known; the message has the nearest that is.
    """
    for keyword in keywords:
        if keyword not in known:
            near = get_close_matches(keyword, known, n=1)
            remedy = f"did you mean {near[0]}=?" if near else f"these are known: {'=, '.join(known)}="
            raise UnknownKeyword(f"{callee}() got an unexpected keyword argument {keyword!r}; {remedy}")


def known_keywords(callee: F) -> F:
    """Check the keywords of a function's calls, or of a class's. Its signature stays as it is written.

    Its failures are `confidential`, since among the arguments may be secrets.
    """
    if isinstance(callee, type):
        callee.__init__ = known_keywords(callee.__init__)  # type: ignore[misc]
        return callee
    known = [name for name in inspect.signature(callee).parameters if name != "self"]
    name = callee.__qualname__.removesuffix(".__init__")

    @wraps(callee)
    def checked(*values: Any, **keywords: Any) -> Any:
        check_keywords(name, keywords, known)
        return callee(*values, **keywords)

    return cast(F, confidential(checked))
