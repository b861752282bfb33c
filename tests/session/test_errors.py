"""Every refusal reaches the client as the one table says, and the documentation agrees."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from refusals import CASES, Case

from mcp_sessions import _errors as errors
from mcp_sessions._errors import ConfigurationError, MCPSessionsError, Refusal, StateError
from mcp_sessions._protocol.decision import LISTS, TABLE, Action, SessionPresence
from mcp_sessions._refusals import ENDS, REFUSALS, refusal
from mcp_sessions._session.claims import Claims

ROOT = Path(__file__).resolve().parent.parent.parent


def family(parent: type[Refusal]) -> Iterator[type[Refusal]]:
    for child in parent.__subclasses__():
        yield child
        yield from family(child)


EVERY = list(family(Refusal))
SENT = {reason: row for reason, row in REFUSALS.items() if row.code is not None}
RAISING = {"refusal", "refusal_for", "SessionNotFound", "StateUnreadable", "StoreUnavailable"}
STORE = re.compile("store_[a-z_]+")


PROMISED = [
    pytest.param(case, modern, status, id=f"{case.name} ({'modern' if modern else 'legacy'})")
    for case in CASES
    for modern, status in ((False, case.legacy), (True, case.modern))
    if status is not None
]


@pytest.mark.parametrize(("case", "modern", "expected"), PROMISED)
async def test_a_refusal_is_what_the_table_says(case: Case, modern: bool, expected: int) -> None:
    answer = await case.run(modern=modern)
    assert (answer.status, answer.error["code"]) == (expected, case.code)
    assert answer.error["message"] == case.client_message
    assert answer.json["jsonrpc"] == "2.0"
    assert (b"retry-after" in answer.headers) is (expected in {429, 503})


def test_no_refusal_is_missing_from_the_table() -> None:
    """A new class or a new row without a case fails here."""
    assert {case.refusal.reason for case in CASES} == {refusal.reason for refusal in EVERY} | set(SENT)


def test_a_reason_may_be_more_exact_and_is_never_sent() -> None:
    """What an application says is sent, and is not for others."""
    refused = errors.SessionNotFound("token_principal", ref="ses_a")
    assert (refused.reason, refused.ref, str(refused)) == ("token_principal", "ses_a", "Session not found")
    assert errors.SessionNotFound.reason == "unknown"
    row = refusal("required", ref="ses_a", retry_after=7)
    assert (row.reason, row.ref, row.retry_after) == ("required", "ses_a", 7)
    said = errors.CreateRefused("one basket each")
    assert (said.client_message, said.message) == ("one basket each", errors.CreateRefused.message)


def test_reasons_tell_refusals_apart() -> None:
    """No two share one, or a log could not say which it was; what handlers raise is what the policy answers."""
    classes = [refusal.reason for refusal in EVERY]
    assert len(classes) == len(set(classes))
    assert set(classes) & set(SENT) == {"required"}
    required, row = errors.SessionRequired(), SENT["required"]
    assert (required.code, required.message, required.http_status) == (row.code, row.message, row.http_status)


def test_every_reason_is_in_the_table_of_reasons() -> None:
    """Those of classes and rows, those that any file of the package gives, and those of a token's claims."""
    given = {refusal.reason for refusal in EVERY} | {*SENT}
    claims = {f"token_claim_{name}" for name in Claims.__struct_encode_fields__} | {"token_claims"}
    for path in (ROOT / "middleware" / "mcp_sessions").glob("*/*.py"):
        if path.parent.name in {"client", "_cli"}:  # they refuse no request
            continue
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if isinstance(node, ast.Call) and getattr(node.func, "id", "") in RAISING:
                given |= {str(each.value) for each in node.args[:1] if isinstance(each, ast.Constant)}
            elif isinstance(node, ast.Constant) and STORE.fullmatch(str(node.value)):
                given.add(str(node.value))
    assert given | claims == {*REFUSALS}


def test_mistakes_of_the_deployment_and_of_the_application_are_value_errors() -> None:
    for error in (ConfigurationError, StateError, errors.StateTooLarge, errors.StateNotJSON, errors.StateClosed):
        assert issubclass(error, MCPSessionsError)
        assert issubclass(error, ValueError)
    assert not issubclass(Refusal, ValueError)


def page(name: str) -> str:
    return (ROOT / "docs" / name).read_text("utf-8")


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_the_page_has_what_a_client_gets(case: Case) -> None:
    """The row of its code has the statuses, and the message or its beginning."""
    (row,) = re.findall(rf"^\| `{case.code}` \| (.*) \|$", page("errors.md"), re.MULTILINE)
    statuses, messages = row.split(" | ")
    assert {str(status) for status in (case.legacy, case.modern) if status} <= set(re.findall(r"\d+", statuses))
    begins, colon, _ = case.client_message.partition(":")
    assert case.message or f"; {begins}{': ...' if colon else ''}; " in f"; {messages}; "


def test_the_page_has_every_reason_and_end() -> None:
    """Each with its meaning, below what to do; `token_claims` stands for those that name a claim."""
    reasons, _, ends = page("errors.md").partition("## Reasons")[2].partition("## Ends")
    shown = {
        name: (meaning, remedy.lower())
        for remedy, lines in re.findall(r"^\*\*(.+)\.\*\*.*\n\n((?:- .+\n)+)", reasons, re.MULTILINE)
        for name, meaning in re.findall(r"^- `(\w+)`: (.+)$", lines, re.MULTILINE)
    }
    assert shown == {
        name: (row.meaning, row.remedy.lower()) for name, row in REFUSALS.items() if "token_claim_" not in name
    }
    assert dict(re.findall(r"^- `(\w+)`: (.+)$", ends, re.MULTILINE)) == ENDS


def test_the_page_of_the_wire_has_the_decisions() -> None:
    """Each row of the table, and what `Wire.lists` makes of a list."""

    def shown(outcome: Action | str) -> str:
        if not isinstance(outcome, Action):
            return f"refuse with `{refusal(outcome).code}`"
        return "as the option `lists` says" if outcome is Action.LIST else outcome.value

    for about, outcomes in TABLE.items():
        without, required, with_one = (shown(outcomes[presence]) for presence in SessionPresence)
        unless = "" if required == without else f"; if one is required, {required}"
        assert f"\n| {about.value} | {without}{unless} | {with_one} |\n" in page("wire.md")
    for lists, action in LISTS.items():
        assert f'\n| `"{lists}"` | {action.value} | ' in page("wire.md")
