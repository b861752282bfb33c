"""The conformance server's questions to its client: during a call in the older era, by a second call in the newer.

A question of the newer era is a result of its own (`input_required`); the client answers by repeating the request.
The state in between travels with the client, sealed by the SDK.
"""

import json
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final

import mcp_types as types
from mcp.server.context import ServerRequestContext
from mcp.shared.exceptions import MCPError
from mcp.shared.message import ServerMessageMetadata

from . import content
from .content import Json, result, text

Context = ServerRequestContext[Any, Any]
Params = types.CallToolRequestParams
Request = types.CallToolRequestParams | types.GetPromptRequestParams


def form(message: str, **properties: Json) -> Json:
    """Make an elicitation."""
    schema = {"type": "object", "properties": properties, "required": list(properties)}
    return {"method": "elicitation/create", "params": {"message": message, "requestedSchema": schema}}


def sampling(prompt: str) -> Json:
    """Make a question to the client's model."""
    message = {"role": "user", "content": text(prompt)}
    return {"method": "sampling/createMessage", "params": {"messages": [message], "maxTokens": 100}}


TEXT: Final = {"type": "string"}
NAME: Final = form("What is your name?", name=TEXT)
ROOTS: Final = {"method": "roots/list", "params": {}}


# --- the newer era: asked by a result, answered by a second request ------------------------------


def ask(questions: Json, state: str | None = None) -> Json:
    """Make a result that asks."""
    asked = {"resultType": "input_required", "inputRequests": questions}
    return asked if state is None else {**asked, "requestState": state}


def _answers(params: Request) -> Json:
    """Return the client's answers, by question."""
    given = params.input_responses or {}
    return {name: answer.model_dump(by_alias=True, mode="json") for name, answer in given.items()}


def _asking(
    questions: Json, written: Callable[[Json], str], state: str | None = None
) -> Callable[[Context, Params], Awaitable[Json]]:
    """Make a tool that asks until it has every answer, and then returns a text made from them."""

    async def tool(_context: Context, params: Params) -> Json:
        answers = _answers(params)
        if not (questions.keys() <= answers.keys() and params.request_state == state):
            return ask(questions, state)
        return result(text(written(answers)))

    return tool


def _name(answers: Json) -> str:
    return f"Hello, {(answers['user_name'].get('content') or {}).get('name', 'nobody')}!"


async def _rounds(_context: Context, params: Params) -> Json:
    """Ask two questions, one after the other."""
    if params.request_state is None:
        return ask({"step1": form("Step 1: What is your name?", name=TEXT)}, "1")
    if params.request_state == "1":
        return ask({"step2": form("Step 2: What is your favorite color?", color=TEXT)}, "2")
    return result(text(json.dumps(_answers(params))))


async def _within_capabilities(context: Context, _params: Params) -> Json:
    """Ask only within the client's capabilities."""
    able = context.session.client_capabilities or types.ClientCapabilities()
    questions = {
        "user_name": NAME if able.elicitation is not None else None,
        "greeting": sampling("Generate a greeting") if able.sampling is not None else None,
    }
    return ask({name: question for name, question in questions.items() if question is not None})


async def _needs_sampling(context: Context, _params: Params) -> Json:
    able = context.session.client_capabilities
    assert able is None or able.sampling is None
    needed: Json = {"requiredCapabilities": {"sampling": {}}}
    raise MCPError(code=types.MISSING_REQUIRED_CLIENT_CAPABILITY, message="Sampling is needed", data=needed)


PROMPT: Final = content.listed("test_input_required_result_prompt")


def prompt(params: types.GetPromptRequestParams) -> Json:
    """Make a prompt that asks first."""
    answers = _answers(params)
    if "user_context" not in answers:
        return ask({"user_context": form("What context should the prompt use?", context=TEXT)})
    return content.messages(text(json.dumps(answers["user_context"])))


# --- the older era: asked while the call waits ---------------------------------------------------


def _beside(context: Context) -> ServerMessageMetadata:
    """Send on the stream of the call itself, since the client may not have opened another yet."""
    return ServerMessageMetadata(related_request_id=context.request_id)


async def _sample(context: Context, params: Params) -> Json:
    asked = types.CreateMessageRequest.model_validate(sampling((params.arguments or {})["prompt"]))
    answer = await context.session.send_request(asked, types.CreateMessageResult, metadata=_beside(context))
    return result(text(f"LLM response: {answer.model_dump_json(by_alias=True)}"))


def _eliciting(**properties: Json) -> Callable[[Context, Params], Awaitable[Json]]:
    async def tool(context: Context, params: Params) -> Json:
        message = (params.arguments or {}).get("message", "Please fill this in")
        asked = types.ElicitRequest.model_validate(form(message, **properties))
        answer = await context.session.send_request(asked, types.ElicitResult, metadata=_beside(context))
        return result(text(f"action={answer.action}, content={json.dumps(answer.content)}"))

    return tool


def _titled(*names: str) -> list[Json]:
    return [{"const": f"value{place}", "title": name} for place, name in enumerate(names, 1)]


_OPTIONS: Final = ["option1", "option2", "option3"]

TOOLS: Final[Mapping[str, Callable[[Context, Params], Awaitable[Json]]]] = {
    "test_sampling": _sample,
    "test_elicitation": _eliciting(username=TEXT, email=TEXT),
    "test_elicitation_sep1034_defaults": _eliciting(
        name={"type": "string", "default": "John Doe"},
        age={"type": "integer", "default": 30},
        score={"type": "number", "default": 95.5},
        status={"type": "string", "enum": ["active", "inactive", "pending"], "default": "active"},
        verified={"type": "boolean", "default": True},
    ),
    "test_elicitation_sep1330_enums": _eliciting(
        untitledSingle={"type": "string", "enum": _OPTIONS},
        titledSingle={"type": "string", "oneOf": _titled("First Option", "Second Option", "Third Option")},
        legacyEnum={"type": "string", "enum": ["opt1", "opt2", "opt3"], "enumNames": ["One", "Two", "Three"]},
        untitledMulti={"type": "array", "items": {"type": "string", "enum": _OPTIONS}},
        titledMulti={"type": "array", "items": {"anyOf": _titled("First Choice", "Second Choice", "Third Choice")}},
    ),
    **dict.fromkeys(
        ("test_streaming_elicitation", "test_input_required_result_elicitation"), _asking({"user_name": NAME}, _name)
    ),
    "test_missing_capability": _needs_sampling,
    "test_input_required_result_sampling": _asking(
        {"capital_question": sampling("What is the capital of France?")}, json.dumps
    ),
    "test_input_required_result_list_roots": _asking({"client_roots": ROOTS}, json.dumps),
    **dict.fromkeys(
        ("test_input_required_result_request_state", "test_input_required_result_tampered_state"),
        _asking({"confirm": form("Please confirm", ok={"type": "boolean"})}, lambda answers: "state-ok", "confirming"),
    ),
    "test_input_required_result_multiple_inputs": _asking(
        {"user_name": NAME, "greeting": sampling("Generate a greeting"), "client_roots": ROOTS}, json.dumps, "three"
    ),
    "test_input_required_result_multi_round": _rounds,
    "test_input_required_result_capabilities": _within_capabilities,
}
