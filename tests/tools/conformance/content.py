"""The constant results, resources and prompts of the conformance server.

The suite fixes their names and some of their texts; everything else is as short as possible.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from typing import Any, Final

Json = dict[str, Any]

PIXEL: Final = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mP8z8DwHwAFBQIAX8jx0gAAAABJRU5ErkJggg=="
SILENCE: Final = "UklGRiQAAABXQVZFZm10IBAAAAABAAEAQB8AAEAfAAABAAgAZGF0YQAAAAA="


def text(value: str) -> Json:
    """Make a text block."""
    return {"type": "text", "text": value}


def image() -> Json:
    """Make an image block of one pixel."""
    return {"type": "image", "data": PIXEL, "mimeType": "image/png"}


def embedded(uri: str, value: str, mime_type: str = "text/plain") -> Json:
    """Make a resource within a result."""
    return {"type": "resource", "resource": {"uri": uri, "mimeType": mime_type, "text": value}}


def result(*content: Json, **more: Any) -> Json:
    """Make the result of a tool."""
    return {"content": list(content), **more}


def prompt(*content: Json) -> Json:
    """Make the result of a prompt, with the user's role alone."""
    return {"messages": [{"role": "user", "content": block} for block in content]}


# --- tools with a constant result ----------------------------------------------------------------

_MIXED: Final = embedded("test://mixed-content-resource", '{"test":"data","value":123}', "application/json")
_EMBEDDED: Final = embedded("test://embedded-resource", "This is an embedded resource content.")

RESULTS: Final[Mapping[str, Json]] = {
    "test_simple_text": result(text("This is a simple text response for testing.")),
    "test_image_content": result(image()),
    "test_audio_content": result({"type": "audio", "data": SILENCE, "mimeType": "audio/wav"}),
    "test_embedded_resource": result(_EMBEDDED),
    "test_multiple_content_types": result(text("Several kinds at once:"), image(), _MIXED),
    "test_error_handling": result(text("This tool intentionally returns an error for testing"), isError=True),
    "test_custom_headers": result(text("The header agrees with the argument.")),
    "json_schema_2020_12_tool": result(text("The schema is what matters.")),
}
"""Tools whose result never varies."""

ADDRESS: Final = {
    "$anchor": "addressDef",
    "type": "object",
    "properties": {"street": {"type": "string"}, "city": {"type": "string"}},
}
SCHEMAS: Final[Mapping[str, Json]] = {
    "test_custom_headers": {
        "type": "object",
        "properties": {"region": {"type": "string", "x-mcp-header": "Region"}},
        "required": ["region"],
    },
    "json_schema_2020_12_tool": {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "type": "object",
        "$defs": {"address": ADDRESS},
        "properties": {
            "name": {"type": "string"},
            "address": {"$ref": "#/$defs/address"},
            "contactMethod": {"type": "string", "enum": ["phone", "email"]},
            "phone": {"type": "string"},
            "email": {"type": "string"},
        },
        "allOf": [{"anyOf": [{"required": ["phone"]}, {"required": ["email"]}]}],
        "if": {"properties": {"contactMethod": {"const": "phone"}}, "required": ["contactMethod"]},
        "then": {"required": ["phone"]},
        "else": {"required": ["email"]},
        "additionalProperties": False,
    },
    "test_sampling": {"type": "object", "properties": {"prompt": {"type": "string"}}, "required": ["prompt"]},
    "test_elicitation": {"type": "object", "properties": {"message": {"type": "string"}}, "required": ["message"]},
}
"""Input schemas of the tools that take arguments."""

# --- resources -----------------------------------------------------------------------------------

_TEXT_RESOURCE: Final = {
    "uri": "test://static-text",
    "mimeType": "text/plain",
    "text": "This is the content of the static text resource.",
}
_RESOURCES: Final[Mapping[str, Json]] = {
    "test://static-text": _TEXT_RESOURCE,
    "test://static-binary": {"uri": "test://static-binary", "mimeType": "image/png", "blob": PIXEL},
    "test://watched-resource": {"uri": "test://watched-resource", "mimeType": "text/plain", "text": "watched"},
}
_TEMPLATE: Final = re.compile(r"test://template/([^/]+)/data")

RESOURCES: Final = [
    {"uri": uri, "name": uri.partition("//")[2], "description": "A resource of the suite", "mimeType": one["mimeType"]}
    for uri, one in _RESOURCES.items()
]
TEMPLATES: Final = [
    {
        "uriTemplate": "test://template/{id}/data",
        "name": "template",
        "description": "A resource for each id",
        "mimeType": "application/json",
    }
]


def resource(uri: str) -> Json | None:
    """Return the content of a resource, or None where it does not exist."""
    found = _TEMPLATE.fullmatch(uri)
    if found is None:
        return _RESOURCES.get(uri)
    value = json.dumps({"id": found[1], "templateTest": True, "data": f"Data for ID: {found[1]}"})
    return {"uri": uri, "mimeType": "application/json", "text": value}


# --- prompts -------------------------------------------------------------------------------------

_SHOWN: Final = "Embedded resource content for testing."

PROMPTS: Final[Mapping[str, Callable[[Mapping[str, str]], Json]]] = {
    "test_simple_prompt": lambda given: prompt(text("This is a simple prompt for testing.")),
    "test_prompt_with_arguments": lambda given: prompt(
        text(f"Prompt with arguments: arg1='{given['arg1']}', arg2='{given['arg2']}'")
    ),
    "test_prompt_with_embedded_resource": lambda given: prompt(
        embedded(given["resourceUri"], _SHOWN), text("Please process the embedded resource above.")
    ),
    "test_prompt_with_image": lambda given: prompt(image(), text("Please analyze the image above.")),
}
"""Each prompt, made from its arguments."""

ARGUMENTS: Final[Mapping[str, tuple[str, ...]]] = {
    "test_prompt_with_arguments": ("arg1", "arg2"),
    "test_prompt_with_embedded_resource": ("resourceUri",),
}
