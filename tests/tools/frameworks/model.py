"""A scripted model on loopback, for hosts that cannot run without one: it puts bread, milk and tea into the cart.

It speaks the wire formats of Anthropic (messages), OpenAI (chat completions, responses) and Google (generateContent),
with JSON answers and with streams, and needs no account. It keeps nothing between requests: what to do next depends on
the results of tools in the request alone. At last it repeats these results, a line each, which the host prints.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from secrets import token_hex
from typing import Any, Final, NamedTuple

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

ITEMS: Final = "bread", "milk", "tea"
_CART: Final = re.compile(r"\b(?:bread(?:, milk)?(?:, tea)?|milk(?:, tea)?|tea)\b")
_HANDLE: Final = re.compile(r"New session `([^`]+)` started")  # which the model is asked to copy
_MAX_ERROR: Final = 300  # characters of a result that is no cart


class Tool(NamedTuple):
    """The tool of the shop, under the name that the host gives it."""

    name: str
    namespace: str | None = None


class Call(NamedTuple):
    """A call of the tool."""

    tool: Tool
    arguments: str  # JSON


Step = Call | str
"""What the model does next: a call, or its last words."""


def next_step(tool: Tool | None, results: Sequence[Any]) -> Step:
    """Return what follows the results of the tool so far. Without the tool, the host asks for something else."""
    if tool is None:
        return "nothing to do"
    texts = [result if isinstance(result, str) else json.dumps(result) for result in results]
    if len(texts) < len(ITEMS):
        handle = _HANDLE.search(" ".join(texts))
        copied = {} if handle is None else {"session": handle[1]}
        return Call(tool, json.dumps({"item": ITEMS[len(texts)], **copied}))
    return "\n".join(map(_line, texts))


def _line(text: str) -> str:
    carts = _CART.findall(text)
    return carts[-1] if carts else " ".join(text.split())[:_MAX_ERROR]


def _add(names: Iterator[str]) -> Tool | None:
    """Return the tool of the shop: hosts put the name of the server in front of its own."""
    return next((Tool(name) for name in names if name.rpartition("_")[2] == "add" or name.endswith(".add")), None)


# --- Anthropic: POST /v1/messages ----------------------------------------------------------------


async def messages(request: Request) -> Response:
    asked = await request.json()
    results = [
        block.get("content")
        for message in asked["messages"]
        if isinstance(message["content"], list)
        for block in message["content"]
        if block.get("type") == "tool_result"
    ]
    step = next_step(_add(tool.get("name", "") for tool in asked.get("tools", ())), results)
    is_call = isinstance(step, Call)
    block: dict[str, Any] = {"type": "text", "text": step}
    if isinstance(step, Call):
        arguments = json.loads(step.arguments)
        block = {"type": "tool_use", "id": f"toolu_{token_hex(8)}", "name": step.tool.name, "input": arguments}
    answer = {
        "id": f"msg_{token_hex(8)}",
        "type": "message",
        "role": "assistant",
        "model": asked["model"],
        "content": [block],
        "stop_reason": "tool_use" if is_call else "end_turn",
        "stop_sequence": None,
        "usage": {"input_tokens": 1, "output_tokens": 1},
    }
    if not asked.get("stream"):
        return JSONResponse(answer)
    begun = {**block, "input": {}} if is_call else {**block, "text": ""}
    delta = {"type": "text_delta", "text": step}
    if isinstance(step, Call):
        delta = {"type": "input_json_delta", "partial_json": step.arguments}
    ends = {"stop_reason": answer["stop_reason"], "stop_sequence": None}
    events: list[dict[str, Any]] = [
        {"type": "message_start", "message": {**answer, "content": [], "stop_reason": None}},
        {"type": "content_block_start", "index": 0, "content_block": begun},
        {"type": "content_block_delta", "index": 0, "delta": delta},
        {"type": "content_block_stop", "index": 0},
        {"type": "message_delta", "delta": ends, "usage": {"output_tokens": 1}},
        {"type": "message_stop"},
    ]
    return _stream((event["type"], event) for event in events)


# --- OpenAI: POST /v1/chat/completions, POST /v1/responses ---------------------------------------


async def completions(request: Request) -> Response:
    asked = await request.json()
    results = [message.get("content") for message in asked["messages"] if message["role"] == "tool"]
    names = (tool.get("function", {}).get("name", "") for tool in asked.get("tools") or ())
    step = next_step(_add(names), results)
    message: dict[str, Any] = {"role": "assistant", "content": step}
    if isinstance(step, Call):
        function = {"name": step.tool.name, "arguments": step.arguments}
        called = {"index": 0, "id": f"call_{token_hex(8)}", "type": "function", "function": function}
        message = {"role": "assistant", "content": None, "tool_calls": [called]}
    reason = "tool_calls" if isinstance(step, Call) else "stop"
    head = {"id": f"chatcmpl-{token_hex(8)}", "created": 1_800_000_000, "model": asked["model"]}
    usage = {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2}
    if not asked.get("stream"):
        choice = {"index": 0, "message": message, "finish_reason": reason, "logprobs": None}
        return JSONResponse({**head, "object": "chat.completion", "choices": [choice], "usage": usage})
    chunk = {**head, "object": "chat.completion.chunk"}
    choices = [
        {"index": 0, "delta": message, "finish_reason": None},
        {"index": 0, "delta": {}, "finish_reason": reason},
    ]
    events = [*({**chunk, "choices": [choice]} for choice in choices), {**chunk, "choices": [], "usage": usage}]
    return _stream(((None, event) for event in events), ends="data: [DONE]\n\n")


async def responses(request: Request) -> Response:
    asked = await request.json()
    given = asked["input"] if isinstance(asked["input"], list) else []
    results = [item["output"] for item in given if item.get("type") == "function_call_output"]
    step = next_step(_of_responses(asked.get("tools") or ()), results)
    item: dict[str, Any]
    if isinstance(step, Call):
        called = {"name": step.tool.name, "arguments": step.arguments, "call_id": f"call_{token_hex(8)}"}
        item = {"type": "function_call", "id": f"fc_{token_hex(8)}", "status": "completed", **called}
        if step.tool.namespace is not None:
            item["namespace"] = step.tool.namespace
    else:
        content = [{"type": "output_text", "text": step, "annotations": []}]
        item = {"type": "message", "id": f"msg_{token_hex(8)}", "status": "completed", "role": "assistant"}
        item["content"] = content
    usage = {
        "input_tokens": 1,
        "input_tokens_details": {"cached_tokens": 0},
        "output_tokens": 1,
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": 2,
    }
    answer = {
        "id": f"resp_{token_hex(8)}",
        "object": "response",
        "created_at": 1_800_000_000,
        "status": "completed",
        "model": asked["model"],
        "output": [item],
        "parallel_tool_calls": False,
        "tool_choice": "auto",
        "tools": [],
        "usage": usage,
    }
    if not asked.get("stream"):
        return JSONResponse(answer)
    events: list[dict[str, Any]] = [
        {"type": "response.created", "response": {**answer, "status": "in_progress", "output": [], "usage": None}},
        {"type": "response.output_item.added", "output_index": 0, "item": item},
        {"type": "response.output_item.done", "output_index": 0, "item": item},
        {"type": "response.completed", "response": answer},
    ]
    return _stream((event["type"], {**event, "sequence_number": number}) for number, event in enumerate(events))


def _of_responses(tools: Sequence[Mapping[str, Any]]) -> Tool | None:
    """Return the tool of the shop, which Codex puts into a namespace of its server."""
    for tool in tools:
        if tool.get("type") == "namespace" and (inner := _add(one.get("name", "") for one in tool["tools"])):
            return Tool(inner.name, tool["name"])
    return _add(tool.get("name", "") for tool in tools)


# --- Google: POST /v1beta/models/NAME:generateContent --------------------------------------------


async def contents(request: Request) -> Response:
    asked = await request.json()
    parts = [part for content in asked["contents"] for part in content.get("parts", ())]
    results = [part["functionResponse"]["response"] for part in parts if "functionResponse" in part]
    declared = (one for tool in asked.get("tools") or () for one in tool.get("functionDeclarations") or ())
    step = next_step(_add(one.get("name", "") for one in declared), results)
    part: dict[str, Any] = {"text": step}
    if isinstance(step, Call):
        part = {"functionCall": {"name": step.tool.name, "args": json.loads(step.arguments)}}
    content = {"role": "model", "parts": [part]}
    usage = {"promptTokenCount": 1, "candidatesTokenCount": 1, "totalTokenCount": 2}
    answer = {"candidates": [{"content": content, "finishReason": "STOP", "index": 0}], "usageMetadata": usage}
    if request.path_params["verb"] == "streamGenerateContent":
        return _stream([(None, answer)])
    return JSONResponse(answer if request.path_params["verb"] == "generateContent" else {"totalTokens": 1})


def _stream(events: Any, ends: str = "") -> Response:
    texts = (
        f"{'' if name is None else f'event: {name}' + chr(10)}data: {json.dumps(event)}\n\n" for name, event in events
    )
    return Response("".join(texts) + ends, media_type="text/event-stream")


async def models(_request: Request) -> Response:
    listed = [{"id": "scripted", "object": "model", "created": 0, "owned_by": "tests"}]
    return JSONResponse({"object": "list", "data": listed, "models": []})


async def tokens(_request: Request) -> Response:
    return JSONResponse({"input_tokens": 1})


app = Starlette(
    routes=[
        Route("/v1/messages", messages, methods=["POST"]),
        Route("/v1/messages/count_tokens", tokens, methods=["POST"]),
        Route("/v1/chat/completions", completions, methods=["POST"]),
        Route("/v1/responses", responses, methods=["POST"]),
        Route("/v1/models", models),
        Route("/v1beta/models/{model}:{verb}", contents, methods=["POST"]),
    ]
)
