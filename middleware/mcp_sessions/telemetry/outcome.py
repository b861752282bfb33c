"""How a request ended, as telemetry tells it: a success, a class of error, and never a text of the server's.

The answer is looked at, not kept. Error rules are those of OpenTelemetry's conventions for MCP: a
JSON-RPC error is its code, a tool's own failure `tool_error`; a refusal of ours is its code, and its
reason stands beside it. What an error says may quote what a client wrote, so it is left out.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import msgspec

from ..errors import Refusal
from .attributes import TOOL_ERROR


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a request ended.

    Args:
        error: The class of error (`error.type`), or None for a success.
        code: The JSON-RPC error code as text, or None.
        reason: Why we refused it, or None where it was not us.
        message: Our own fixed text of the refusal, or None.
    """

    error: str | None = None
    code: str | None = None
    reason: str | None = None
    message: str | None = None


SUCCESS: Final = Outcome()
_TOOL_ERROR: Final = Outcome(TOOL_ERROR)


class _Error(msgspec.Struct, gc=False):
    code: int


class _Result(msgspec.Struct, gc=False):
    isError: bool = False  # noqa: N815  # the protocol's spelling


class _Answer(msgspec.Struct, gc=False):
    """What an answer's outcome hangs on; everything else is skipped."""

    method: str | None = None
    error: _Error | None = None
    result: _Result | None = None


_answer: Final = msgspec.json.Decoder(_Answer).decode


def may_have_failed(text: bytes) -> bool:
    """Whether it is worth while to read a message of a response, to find whether it tells of an error."""
    # `in` would take twice as long: it first asks whether it is given a number.
    return text.find(b'"error"') >= 0 or (text.find(b"true") >= 0 and text.find(b'"isError"') >= 0)


def answered(text: bytes) -> Outcome | None:
    """The outcome that one JSON-RPC message of a response tells.

    Args:
        text: The message, as the server wrote it.

    Returns:
        The outcome, or None for a message that is no answer: a notification, or a request of the server.
    """
    if b'"method"' not in text and not may_have_failed(text):
        return SUCCESS  # by far the most, and not read at all
    try:
        answer = _answer(text)
    except (ValueError, RecursionError):  # somebody else's JSON
        return None
    if answer.error is not None:
        return Outcome(str(answer.error.code), str(answer.error.code))
    if answer.result is None:
        return None
    return _TOOL_ERROR if answer.result.isError else SUCCESS


def responded(status: int) -> Outcome:
    """The outcome that an HTTP status tells, where no answer was seen: 202 for a notification, 401 from a guard."""
    return SUCCESS if status < 400 else Outcome(str(status))


def refused(refusal: Refusal, code: int) -> Outcome:
    """The outcome of a request that we refused.

    Args:
        refusal: Why.
        code: The JSON-RPC code that this deployment answers it with.
    """
    return Outcome(str(code), str(code), refusal.reason, refusal.message)


def raised(error: BaseException) -> Outcome:
    """The outcome of a request whose application raised: the name of the class, not its text."""
    return Outcome(type(error).__qualname__)
