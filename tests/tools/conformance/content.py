"""The constant results, resources and prompts of the conformance server.

The suite fixes their names and some of their texts; everything else is as short as possible.
"""

import json
import re
from collections.abc import Mapping
from typing import Any, Final

import mcp_types as types
from mcp.shared.exceptions import MCPError

Json = dict[str, Any]

PIXEL: Final = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mP8z8DwHwAFBQIAX8jx0gAAAABJRU5ErkJggg=="
SILENCE: Final = "UklGRiQAAABXQVZFZm10IBAAAAABAAEAQB8AAEAfAAABAAgAZGF0YQAAAAA="


def text(value: str) -> Json:
    """Make a text block."""
    return {"type": "text", "text": value}


IMAGE: Final = {"type": "image", "data": PIXEL, "mimeType": "image/png"}


def embedded(uri: str, value: str, mime_type: str = "text/plain") -> Json:
    """Make a resource within a result."""
    return {"type": "resource", "resource": {"uri": uri, "mimeType": mime_type, "text": value}}


def result(*content: Json, **more: Any) -> Json:
    """Make the result of a tool."""
    return {"content": list(content), **more}


# --- tools with a constant result ----------------------------------------------------------------

_MIXED: Final = embedded("test://mixed-content-resource", '{"test":"data","value":123}', "application/json")
_EMBEDDED: Final = embedded("test://embedded-resource", "This is an embedded resource content.")

RESULTS: Final[Mapping[str, Json]] = {
    "test_simple_text": result(text("This is a simple text response for testing.")),
    "test_image_content": result(IMAGE),
    "test_audio_content": result({"type": "audio", "data": SILENCE, "mimeType": "audio/wav"}),
    "test_embedded_resource": result(_EMBEDDED),
    "test_multiple_content_types": result(text("Several kinds at once:"), IMAGE, _MIXED),
    "test_error_handling": result(text("This tool intentionally returns an error for testing"), isError=True),
    "test_custom_headers": result(text("The header agrees with the argument.")),
    "json_schema_2020_12_tool": result(text("The schema is what matters.")),
}

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


def schema(tool: str) -> Json:
    """Return the schema of a tool's arguments."""
    return SCHEMAS.get(tool, {"type": "object"})


# --- resources -----------------------------------------------------------------------------------

_TEXT: Final = "This is the content of the static text resource."
_RESOURCES: Final[Mapping[str, Json]] = {
    "test://static-text": {"mimeType": "text/plain", "text": _TEXT},
    "test://static-binary": {"mimeType": "image/png", "blob": PIXEL},
    "test://watched-resource": {"mimeType": "text/plain", "text": "watched"},
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


def resource(uri: str) -> Json:
    """Return the content of a resource."""
    if uri in _RESOURCES:
        return {"uri": uri, **_RESOURCES[uri]}
    found = _TEMPLATE.fullmatch(uri)
    if found is None:
        raise MCPError(code=types.INVALID_PARAMS, message="Resource not found", data={"uri": uri})
    value = json.dumps({"id": found[1], "templateTest": True, "data": f"Data for ID: {found[1]}"})
    return {"uri": uri, "mimeType": "application/json", "text": value}


# --- prompts -------------------------------------------------------------------------------------


def listed(name: str, *arguments: str) -> Json:
    """Make a prompt as it is listed."""
    given = [{"name": argument, "description": "A text", "required": True} for argument in arguments]
    return {"name": name, "description": "A prompt of the suite", "arguments": given}


PROMPTS: Final = (
    listed("test_simple_prompt"),
    listed("test_prompt_with_arguments", "arg1", "arg2"),
    listed("test_prompt_with_embedded_resource", "resourceUri"),
    listed("test_prompt_with_image"),
)


def messages(*content: Json) -> Json:
    """Make the result of a prompt, with the user's role alone."""
    return {"messages": [{"role": "user", "content": block} for block in content]}


def prompt(name: str, given: Mapping[str, str]) -> Json:
    """Return the result of a prompt."""
    if name == "test_prompt_with_arguments":
        return messages(text(f"Prompt with arguments: arg1='{given['arg1']}', arg2='{given['arg2']}'"))
    if name == "test_prompt_with_embedded_resource":
        shown = embedded(given["resourceUri"], "Embedded resource content for testing.")
        return messages(shown, text("Please process the embedded resource above."))
    if name == "test_prompt_with_image":
        return messages(IMAGE, text("Please analyze the image above."))
    return messages(text("This is a simple prompt for testing."))
