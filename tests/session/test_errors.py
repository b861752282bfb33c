"""Every refusal reaches the client as the one table says, and the documentation is that table."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from refusals import CASES, Case, errors_page, protocol_page

from mcp_sessions import errors
from mcp_sessions.errors import ConfigurationError, MCPSessionsError, Refusal, StateError

ROOT = Path(__file__).resolve().parent.parent.parent
RAISED_THEMSELVES = {errors.ParseError, errors.InvalidParams, errors.SessionNotFound, errors.StoreUnavailable}


def family(parent: type[Refusal]) -> Iterator[type[Refusal]]:
    for child in parent.__subclasses__():
        yield child
        yield from family(child)


EVERY = list(family(Refusal))


PROMISED = [
    pytest.param(case, modern, status, id=f"{case.name} ({'modern' if modern else 'legacy'})")
    for case in CASES
    for modern, status in ((False, case.legacy), (True, case.modern))
    if status is not None
]


@pytest.mark.parametrize(("case", "modern", "expected"), PROMISED)
async def test_a_refusal_is_what_the_table_says(case: Case, modern: bool, expected: int) -> None:
    """HTTP status, code and text, from the first byte of the request to the last of the answer."""
    answer = await case.run(modern=modern)
    assert (answer.status, answer.error["code"]) == (expected, case.code)
    assert answer.error["message"] == case.told
    assert answer.json["jsonrpc"] == "2.0"
    assert (b"retry-after" in answer.headers) is (expected in {429, 503})


def test_no_refusal_is_missing_from_the_table() -> None:
    """A new class without a case fails here."""
    leaves = {refusal for refusal in EVERY if not refusal.__subclasses__()}
    assert {case.refusal for case in CASES} == leaves | RAISED_THEMSELVES


@pytest.mark.parametrize("refusal", EVERY, ids=lambda refusal: refusal.__name__)
def test_a_refusal_carries_all_that_its_answer_needs(refusal: type[Refusal]) -> None:
    """One `except` serves: code, status, text and reason stand on the class."""
    made = refusal()
    assert (made.code, made.ref, str(made)) == (refusal.code, None, refusal.message)
    assert 200 <= made.http_status < 600
    assert made.reason.isidentifier()


def test_a_reason_may_be_more_exact_and_is_never_sent() -> None:
    """It goes to logs and spans; the text stays that of the class."""
    refused = errors.SessionNotFound("token_principal", ref="ses_a")
    assert (refused.reason, refused.ref, str(refused)) == ("token_principal", "ses_a", "Session not found")
    assert errors.SessionNotFound.reason == "unknown"


def test_reasons_tell_refusals_apart() -> None:
    """No two leaves share one, or a log could not say which it was."""
    reasons = [refusal.reason for refusal in EVERY if not refusal.__subclasses__()]
    assert len(reasons) == len(set(reasons))


def test_mistakes_of_the_deployment_and_of_the_application_are_value_errors() -> None:
    """And all are of one family."""
    for error in (ConfigurationError, StateError, errors.StateTooLarge, errors.StateNotJSON, errors.StateClosed):
        assert issubclass(error, MCPSessionsError)
        assert issubclass(error, ValueError)
    assert not issubclass(Refusal, ValueError)


def test_state_that_is_too_large_says_by_how_much() -> None:
    """Size and limit, in the text and as numbers."""
    error = errors.StateTooLarge(5000, 4096)
    assert (error.size, error.limit) == (5000, 4096)
    assert "5000" in str(error)
    assert "4096 (max_state_bytes)" in str(error)


def test_the_documentation_is_the_table(tmp_path: Path) -> None:
    """Rewrite the pages with `python tests/refusals.py docs`."""
    command = [sys.executable, str(ROOT / "tests" / "refusals.py"), str(tmp_path)]
    subprocess.run(command, check=True, cwd=ROOT)
    for name, page in (("errors.md", errors_page()), ("protocol.md", protocol_page())):
        assert (tmp_path / name).read_text("utf-8") == page
        assert (ROOT / "docs" / name).read_text("utf-8") == page
