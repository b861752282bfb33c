"""`Hearing` lets a message's answer be heard, whatever its form, and passes it on as the very same objects."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from clients import Answer
from starlette.types import Message

from mcp_sessions._protocol.jsonrpc import Message as Request
from mcp_sessions._protocol.jsonrpc import parse
from mcp_sessions.telemetry import outcome
from mcp_sessions.telemetry.outcome import Hearing, Outcome, RequestTelemetry

ERROR = b'{"jsonrpc":"2.0","id":1,"error":{"code":-32602,"message":"no"}}'
FAILED = Outcome("-32602", "-32602")
JSON, EVENTS, TEXT = b"Application/JSON; charset=utf-8", b"text/event-stream", b"text/plain"
STREAM = b": hello\n\ndata: " + ERROR + b"\n\n"


def pieces(body: bytes, size: int) -> Iterator[bytes]:
    return (body[start : start + size] for start in range(0, len(body), size))


def response(media_type: bytes, *bodies: bytes, status: int = 200) -> list[Message]:
    start = {"type": "http.response.start", "status": status, "headers": [(b"Content-Type", media_type)]}
    last = {"type": "http.response.body", "body": b""}
    return [start, *({"type": "http.response.body", "body": body, "more_body": True} for body in bodies), last]


class Told:
    """Is told how a message ended."""

    def __init__(self) -> None:
        self.outcomes: list[Outcome] = []

    def operation(
        self, message: Request, version: str | None, outcome: Outcome, *, seconds: float, ref: object
    ) -> None:
        self.outcomes.append(outcome)


async def heard(*messages: Message) -> Outcome:
    """What was heard of a response that passed as it was."""
    request = parse(b'{"jsonrpc":"2.0","id":1,"method":"ping"}')
    assert isinstance(request, Request)
    told = Told()
    answer, handling = Answer(), RequestTelemetry(request, None, [told])
    through = Hearing(answer, handling)
    for message in messages:
        await through(message)
    assert all(one is other for one, other in zip(answer.messages, messages, strict=True))
    handling.end()
    (outcome,) = told.outcomes
    return outcome


@pytest.mark.parametrize("size", [1, 7, 1000])
@pytest.mark.parametrize(("media_type", "body"), [(JSON, ERROR), (EVENTS, STREAM)], ids=["json", "events"])
async def test_an_answer_is_heard_however_it_is_cut(media_type: bytes, body: bytes, size: int) -> None:
    """As a whole, or when its event is complete."""
    assert await heard(*response(media_type, *pieces(body, size))) == FAILED


@pytest.mark.parametrize(
    ("media_type", "body", "outcome"),
    [(JSON, ERROR, FAILED), (EVENTS, STREAM, FAILED), (TEXT, ERROR, Outcome()), (JSON, b"{}", Outcome())],
    ids=["json", "events", "text", "success"],
)
async def test_an_answer_that_comes_whole_is_heard_if_it_tells_of_an_error(
    media_type: bytes, body: bytes, outcome: Outcome
) -> None:
    """Its form is looked at only then; what comes after it is nothing of it."""
    start, part, _ = response(media_type, body)
    whole = {"type": part["type"], "body": part["body"]}
    assert await heard(start, whole) == outcome
    assert await heard(start, whole, {"type": "http.response.trailers", "headers": []}) == outcome


async def test_what_is_no_answer_is_told_by_its_status() -> None:
    """A page of some proxy; a message without a body, and other ASGI messages, pass, too."""
    assert await heard(*response(TEXT, ERROR, status=502)) == Outcome("502")
    bare: Message = {"type": "http.response.start", "status": 202}
    assert await heard(bare, {"type": "http.response.body"}) == Outcome()
    untold: Message = {**bare, "headers": [(b"x-content-type", JSON)]}
    assert await heard(untold, *response(JSON, ERROR)[1:]) == Outcome()
    assert await heard({"type": "http.response.debug"}, *response(JSON, ERROR)) == FAILED


@pytest.mark.parametrize(("media_type", "body"), [(JSON, ERROR), (EVENTS, STREAM)], ids=["json", "events"])
async def test_what_is_too_long_goes_by_unheard(
    media_type: bytes, body: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing of it is kept either."""
    monkeypatch.setattr(outcome, "MAX_BYTES", 30)
    assert await heard(*response(media_type, *pieces(body, 20))) == Outcome()
