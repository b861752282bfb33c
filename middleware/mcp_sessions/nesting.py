"""How deep a JSON text is nested, told without building it.

A parser that recurses spends stack on every level, and each stops at a depth of its own. So a text
that is deeper than the deployment allows is refused before any parser sees it. Almost every text is
proved shallow by counting its brackets; only one with many has its depth measured, in linear time.
"""

from __future__ import annotations

import re
from typing import Final

_KEPT: Final = b'[]{}"'
_OTHERS: Final = bytes(set(range(256)) - set(_KEPT))
_ONE_KIND: Final = bytes.maketrans(b"{}", b"[]")
_STRING: Final = re.compile(rb'"[^"]*"')
_OPENING: Final = ord("[")
_MANY: Final = 8  # the part of the brackets that a pass takes off, or each by itself is counted in less time


def is_deeper(text: bytes, limit: int) -> bool:
    """Whether arrays and objects lie in each other more than `limit` levels deep.

    Args:
        text: JSON text; of one that is not valid any answer may come, since it is refused all the same.
        limit: Levels that are allowed.
    """
    if len(text) <= limit or text.count(b"[") + text.count(b"{") <= limit:
        return False
    brackets, levels = _brackets(text), 0
    # Leaves are taken off level by level while many come off; a deep text would take a pass for each of its levels.
    while brackets:
        shorter = brackets.replace(b"[]", b"")
        if len(brackets) - len(shorter) <= len(brackets) // _MANY:
            return _is_deeper(brackets, limit - levels)
        brackets, levels = shorter, levels + 1
    return levels > limit


def _brackets(text: bytes) -> bytes:
    """The brackets of a text that stand outside of strings, all of one kind."""
    if b"\\" in text:
        text = text.replace(b"\\\\", b"").replace(b'\\"', b"")
    skeleton = text.translate(None, _OTHERS)
    # Two quotes side by side are an empty string, or the end of one and the beginning of the next; neither matters.
    return _STRING.sub(b"", skeleton.replace(b'""', b"")).translate(_ONE_KIND, b'"')


def _is_deeper(brackets: bytes, limit: int) -> bool:
    depth = 0
    for bracket in brackets:
        depth += 1 if bracket == _OPENING else -1
        if depth > limit:
            return True
    return False
