"""Whether `session.id` is somebody else's on a span, such as a chat application's, so that ours must not stand there.

Tools give a trace to the first session that they see in it. Nothing here writes on a span.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from opentelemetry import baggage
from opentelemetry.context import Context, create_key, get_current, set_value
from opentelemetry.trace import get_current_span

from .attributes import MCP_SESSION_ID, SESSION_ID

_CLAIMED: Final = create_key("mcp_sessions.claimed")


def noting(context: Context | None) -> Context | None:
    """A context that says so where it is, for what starts in it: a session that is created there is known later on."""
    return set_value(_CLAIMED, True, context) if is_claimed(None, "", context) else context


def is_claimed(span: Any, ref: str, context: Context | None) -> bool:
    """Whether `session.id` on this span is not ours to set.

    Args:
        span: A span that has just started.
        ref: Our session.
        context: The context that its parent came from; None is the current one.
    """
    within = get_current() if context is None else context
    named = None if span is None else _attributes(span).get(SESSION_ID)
    if not within:  # so neither baggage nor a parent
        return bool(named and named != ref)
    if within.get(_CLAIMED):
        return True
    named = named or baggage.get_baggage(SESSION_ID, within)
    if named:
        return bool(named != ref)
    parent = _attributes(get_current_span(within))
    above, ours_above = parent.get(SESSION_ID), parent.get(MCP_SESSION_ID)
    if above is None:  # a parent that was left without it: the baggage that said so may have ended there
        return bool(ours_above == ref)
    return bool(above not in (ref, ours_above))


def _attributes(span: Any) -> Mapping[str, Any]:
    """What a span says, where it can be read: those of other processes and those not recorded say nothing."""
    said: Mapping[str, Any] = getattr(span, "attributes", None) or {}
    try:
        return said.copy()  # type: ignore[attr-defined,no-any-return]  # to find one of the SDK's takes as long
    except AttributeError:
        return said
