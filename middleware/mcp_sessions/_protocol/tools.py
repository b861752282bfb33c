"""Tools: one more argument in the schemas of a list, taken out of calls again, and a text at the end of a result.

A schema that a further property could contradict stays as it is. Values stay slices of the text that they were in.
Sources: MCP 2026-07-28 ("Tools", "Multi Round-Trip Requests"); JSON Schema 2020-12, sections 9.3 and 10.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from types import EllipsisType
from typing import Any, Final

import msgspec
from msgspec import UNSET, Raw

from .._errors import Refusal
from .._session.claims import RedactedRepr
from .jsonrpc import Message
from .rewrite import Answer, object_in, result_of
from .strict_json import NULL, check_level, few_members, items, join, last_members, string

_DECIDING: Final = frozenset({"$ref", "$dynamicRef", "maxProperties", "propertyNames", "patternProperties"})
"""What may refuse a further property wherever it stands."""
_COMBINING: Final = ("allOf", "anyOf", "oneOf", "not", "if", "then", "else", "dependentSchemas")
_CLOSING: Final = re.compile(
    rb'"(?:additionalProperties|unevaluatedProperties|maxProperties|propertyNames|patternProperties|\$\w+)"|\\'
)
"""What makes a part of a combined schema refuse a further property; or an escape, in which it could hide."""
INPUT_REQUIRED: Final = "input_required"


class ToolList(RedactedRepr, msgspec.Struct, frozen=True):
    """One page of a list of tools, as it leaves."""

    text: bytes
    carries: Mapping[str, bool]  # whether each tool has the argument now, by its name
    cursor: str | None  # of the next page


def extend_list(answer: Answer, argument: str, schema: bytes, own_tool: tuple[str, bytes] | None) -> ToolList | None:
    """Return a list of tools with one more argument, the last in each schema that allows it; None if it is unreadable.

    Args:
        answer: The answer of the server.
        argument: The name of the argument.
        schema: Its schema, as JSON.
        own_tool: The name and the JSON of a tool to add, unless the page has one of that name.
    """
    result = result_of(answer)
    if result is None:
        return None
    try:
        tools: list[dict[str, Any]] = [last_members(tool) for tool in items(result["tools"])]
        carries = dict[str, bool]()
        for tool in tools:
            wider = _with_property(tool.get("inputSchema", NULL), argument, schema)
            carries[string(tool["name"]) or ""] = wider is not None
            if wider is not None:
                tool["inputSchema"] = Raw(wider)
        cursor = string(result.get("nextCursor", NULL))
    except (Refusal, KeyError):
        return None
    more = [Raw(own_tool[1])] if own_tool is not None and own_tool[0] not in carries else []
    result["tools"] = [*tools, *more]
    return ToolList(join({**answer.envelope, "result": result}), carries, cursor)


def _with_property(schema: bytes, argument: str, added: bytes) -> bytes | None:
    if not bytes(schema).startswith(b"{"):
        return None
    members: dict[str, Any] = last_members(schema)
    properties = bytes(members.get("properties", b"{}"))
    closes = any(_CLOSING.search(bytes(members[name])) for name in _COMBINING if name in members)
    if closes or not _DECIDING.isdisjoint(members) or not properties.startswith(b"{"):
        return None
    named = last_members(properties)
    if argument in named:  # the tool's own
        return None
    members["properties"] = {**named, argument: Raw(added)}
    return join(members)


def argument_of(message: Message, name: str) -> Raw | None:
    """Return an argument of a call, as JSON, or None without it; refuse one that is given twice.

    Case variants are other arguments: those may be the tool's own.
    """
    arguments = message.params.arguments
    if arguments is UNSET or not bytes(arguments).startswith(b"{"):
        return None
    text = bytes(arguments)
    if name.encode() not in text and b"\\" not in text:
        return None
    found = few_members(arguments)
    if name in found:
        check_level(arguments, found)
    return found.get(name)


def edited_call(body: bytes, argument: str, state: str | EllipsisType | None) -> bytes:
    """Return a call without an argument, and with this `requestState`: None for none, `...` for the one that it has."""
    envelope: dict[str, Any] = last_members(body)
    params = object_in(envelope, "params")
    object_in(params, "arguments").pop(argument, None)
    if state is None:
        params.pop("requestState", None)
    elif not isinstance(state, EllipsisType):
        params["requestState"] = state
    return join(envelope)


def with_text(answer: Answer, text: str, handle: str) -> bytes | None:
    """Return a result with a text for the model at its end, or None if it has no list of content.

    A result that asks for input is not the last one of its call, so there the handle goes before its `requestState`.
    """
    result = result_of(answer)
    if result is None:
        return None
    try:
        if string(result.get("resultType", NULL)) == INPUT_REQUIRED:
            state = string(result.get("requestState", NULL))
            result["requestState"] = handle if state is None else f"{handle}.{state}"
        else:
            block = {"type": "text", "text": text, "annotations": {"audience": ["assistant"]}}
            result["content"] = [*items(result.get("content", b"[]")), block]
    except Refusal:
        return None
    return join({**answer.envelope, "result": result})
