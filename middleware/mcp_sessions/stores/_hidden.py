"""Calls of a store's driver that leave no spans.

An application may have OpenTelemetry instrument Redis, SQLite or psycopg for queries of its own. What a store sends is
not among them: most of it belongs to no request, and would be a trace each.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Final, TypeVar

T = TypeVar("T")

_PLAIN: Final = "suppress_instrumentation"  # the key of older instrumentations


@contextmanager
def hidden() -> Iterator[None]:
    """Keep instrumentations, where there can be any, from making spans."""
    contexts: Any = sys.modules.get("opentelemetry.context")  # what was never imported instruments nothing
    if contexts is None:
        yield
        return
    key = getattr(contexts, "_SUPPRESS_INSTRUMENTATION_KEY", _PLAIN)
    token = contexts.attach(contexts.set_value(_PLAIN, True, contexts.set_value(key, True)))
    try:
        yield
    finally:
        contexts.detach(token)


def call_hidden(work: Callable[..., T], *arguments: Any) -> T:
    """Return what a call returns that is made on a thread, which has a context of its own."""
    with hidden():
        return work(*arguments)
