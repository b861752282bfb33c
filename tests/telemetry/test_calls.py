"""`Calls` puts together once what all messages say that call the same in one session, and holds no more than it may."""

from __future__ import annotations

import json
from typing import Any, NamedTuple

import pytest
from opentelemetry.context import Context

from mcp_sessions._protocol.jsonrpc import Message, parse
from mcp_sessions.telemetry import spans
from mcp_sessions.telemetry.attributes import Stamps
from mcp_sessions.telemetry.spans import Calls, session_of

START = f"00-{0x5E:032x}-{0x51:016x}-01"


class About(NamedTuple):
    """What a token says of its session."""

    ref: str = "ses_a"
    trace: str | None = START
    client: str | None = "wire 1.0"


def message(method: str = "tools/call", id: int = 1, **params: Any) -> Message:
    parsed = parse(json.dumps({"jsonrpc": "2.0", "id": id, "method": method, "params": params}).encode())
    assert isinstance(parsed, Message)
    return parsed


def test_what_comes_again_is_not_put_together_again() -> None:
    """Whatever its id and its arguments are."""
    known = Calls(Stamps())
    call = known.of(message(name="add"), "2026-07-28", About())
    assert known.of(message(name="add", id=2, arguments={"a": 1}), "2026-07-28", About()) is call
    assert known.of(message(name="add"), None, None) is known.of(message(name="add"), None, None)


@pytest.mark.parametrize(
    ("said", "version", "about"),
    [
        (message(name="sub"), "2026-07-28", About()),
        (message("prompts/get", name="add"), "2026-07-28", About()),
        (message(), "2026-07-28", About()),
        (message(name="add"), None, About()),
        (message(name="add"), "2026-07-28", None),
        (message(name="add"), "2026-07-28", About(ref="ses_b")),
        (message(name="add"), "2026-07-28", About(trace=None)),
        (message(name="add"), "2026-07-28", About(client=None)),
    ],
)
def test_what_differs_is_told_apart(said: Message, version: str | None, about: About | None) -> None:
    """By all that a span says of it or hangs on."""
    known = Calls(Stamps())
    first = known.of(message(name="add"), "2026-07-28", About())
    other = known.of(said, version, about)
    assert (first.name, first.attributes, first.parent, first.links) != (
        other.name,
        other.attributes,
        other.parent,
        other.links,
    )


def test_in_a_session_a_sampler_is_told_of_it_and_outside_of_one_of_none() -> None:
    """Where nothing is around, the context that it starts in says the session and nothing else."""
    known = Calls(Stamps())
    assert session_of(known.of(message(), None, About()).parent) == "ses_a"
    assert known.of(message(), None, None).parent == Context()


def test_a_session_id_that_is_somebody_elses_stays_that() -> None:
    """Ours is in the other attribute alone then."""
    ours, theirs = Calls(Stamps()).of(message("ping"), None, About(client=None)).attributes
    assert ours["session.id"] == theirs["mcp.session.id"] == "ses_a"
    assert ours.keys() - theirs.keys() == {"session.id"}


def test_how_much_is_remembered_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is called all the time is kept while others come and go."""
    monkeypatch.setattr(spans, "_REMEMBERED", 4)
    known = Calls(Stamps())
    often = known.of(message(name="often"), None, None)
    for number in range(20):
        known.of(message(name=f"once {number}"), None, None)
        assert known.of(message(name="often"), None, None) is often
        assert len(known._young) + len(known._old) <= 4


@pytest.mark.parametrize("said", [message(name="x" * 600), message("x" * 600), message(name="\u2028" * 100)])
def test_long_texts_are_not_remembered(said: Message) -> None:
    """A client may write anything, as often as it likes; what a span says of it is short."""
    known = Calls(Stamps())
    call = known.of(said, None, About())
    assert not known._young
    assert len(call.name) < 200
