"""How deep a JSON text is nested, told without building it.

A parser that recurses spends stack on every level, and each stops at a depth of its own. So a text
that is deeper than the deployment allows is refused before any parser sees it. Almost every text is
proved shallow by counting its brackets; only one with many has its depth measured, in linear time.
"""

from __future__ import annotations

import re
from typing import Final

_STRING: Final = re.compile(rb'"[^"\\]*(?:\\.[^"\\]*)*"', re.DOTALL)
_NOT_BRACKETS: Final = bytes(set(range(256)) - set(b"[]{}"))
_OPENING: Final = frozenset(b"[{")


def is_deeper(text: bytes, limit: int) -> bool:
    """Whether arrays and objects lie in each other more than `limit` levels deep.

    Args:
        text: JSON text, which need not be valid: an unfinished string counts as brackets.
        limit: Levels that are allowed.
    """
    if len(text) <= limit or text.count(b"[") + text.count(b"{") <= limit:
        return False
    depth = 0
    for bracket in _STRING.sub(b"", text).translate(None, _NOT_BRACKETS):
        depth += 1 if bracket in _OPENING else -1
        if depth > limit:
            return True
    return False
