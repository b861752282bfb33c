"""The trials themselves: a bounded run of each target, the campaign's command line, and proof that they can fail."""

from __future__ import annotations

import asyncio
from collections import Counter
from functools import cache
from pathlib import Path

import pytest
from environments import require

require("joserfc>=1")

from fuzz import campaign, jose, jsonrpc, paths, sse, state, tokens, trials, uris
from fuzz.trials import Disagreement

ROOT = Path(__file__).resolve().parents[3]
SEED = 1


TRIALS = {
    "tokens": 8_000,
    "jsonrpc": 4_000,
    "sse": 4_000,
    "state": 4_000,
    "paths": 1_000,
    "uris": 4_000,
}
REACHED = {"tokens": 30, "jsonrpc": 10, "sse": 4, "state": 7, "paths": 30, "uris": 3}


@cache
def outcomes_of(target: str) -> Counter[str]:
    """What became of each trial of a target."""
    return trials.run(campaign.TARGETS[target], target, SEED, 0, trials=TRIALS[target])


@pytest.mark.parametrize("target", campaign.TARGETS)
def test_no_input_is_judged_differently_from_the_oracle(target: str) -> None:
    """Some thousand inputs, always the same ones, and most of the outcomes among them."""
    outcomes = outcomes_of(target)
    assert outcomes.total() == TRIALS[target]
    assert len(outcomes) >= REACHED[target], outcomes


def test_the_same_seed_is_the_same_run() -> None:
    """So a disagreement can be seen again."""
    runs = [trials.run(sse.trial, "sse", SEED, batch, trials=50) for batch in (0, 0, 1)]
    assert runs[0] == runs[1] != runs[2]


def test_half_of_the_tokens_are_signed_again_and_reach_the_checks_behind_the_signature() -> None:
    """Every check of a token is met by some mutant, and a part of the mutants is good."""
    outcomes = outcomes_of("tokens")
    again = Counter({name: n for name, n in outcomes.items() if name.startswith("signed again")})
    assert 0.48 < again.total() / outcomes.total() < 0.52
    reached = {outcome.split(": ")[1] for outcome in outcomes}
    assert reached >= {
        *("accepted", "expired", "token_shape", "token_header", "token_key_unknown", "token_algorithm"),
        *("token_signature", "token_claims", "token_issuer", "token_audience", "token_kind", "token_principal"),
        "token_from_the_future",
        *(f"token_claim_{name}" for name in jose.GRAMMAR),
    }
    assert again["signed again: accepted"] > 0.1 * again.total()


# --- a disagreement is seen ----------------------------------------------------------------------


def test_an_oracle_that_says_otherwise_is_a_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    """For each target, in both directions where there are two; the text shows how to see it again."""
    good = tokens.ORIGINALS[0]
    monkeypatch.setattr(jose, "accepts", lambda *_, **__: True)
    with pytest.raises(Disagreement, match="'token_shape', and the oracle accepts"):
        tokens.judge("x", None, "session", tokens.NOW)
    monkeypatch.setattr(jose, "accepts", lambda *_, **__: False)
    with pytest.raises(Disagreement, match="'accepted', and the oracle refuses"):
        tokens.judge(good.token, good.caller, good.kind, tokens.NOW)
    monkeypatch.setattr(state, "opens", lambda *_: True)
    with pytest.raises(Disagreement, match="'state_shape', and the oracle says True"):
        state.judge("x", state.BOUNDS[0], state.NOW)
    monkeypatch.setattr(sse, "by_the_book", lambda _: [b"other"])
    with pytest.raises(Disagreement, match="sse"):
        sse.judge(b"data: a\n\n", [b"data: a\n\n"])
    monkeypatch.setattr(uris, "served_alike", lambda *_: "made up")
    with pytest.raises(Disagreement, match="made up serves 'res:8' as 'res:7'"):
        uris.judge("res:7", "res:8")
    shop = paths.Shop()
    with pytest.raises(Disagreement, match="'/x' under '' reaches the endpoint unjudged"):
        asyncio.run(paths.judge(shop, shop, shop, "/x", ""))
    monkeypatch.setattr(jsonrpc, "read", lambda _: [])
    with pytest.raises(Disagreement, match="not_json, and the oracle reads"):
        jsonrpc.judge(b"{")
    with pytest.raises(Disagreement, match="and the oracle says"):
        jsonrpc.judge(b'{"jsonrpc":"2.0","method":"a"}')
    with pytest.raises(Disagreement, match=r"again: python -m tests\.tools\.fuzz --target jsonrpc --seed 7 --batch 3"):
        trials.run(jsonrpc.trial, "jsonrpc", 7, 3)


def test_what_only_some_parsers_read_may_be_refused() -> None:
    """A lone surrogate in what is read: the standard library takes it, and the package may not."""
    assert jsonrpc.judge(rb'{"jsonrpc":"2.0","method":"\ud800"}') == "lone_surrogate"
    assert jsonrpc.judge(b'{"jsonrpc":"2.0","result":' + b"[" * 995 + b"]" * 995 + b"}") in {"read", "nesting_too_deep"}


# --- the oracle for tokens -----------------------------------------------------------------------


def test_the_oracle_derives_keys_as_the_standard_says() -> None:
    """RFC 5869, appendix A.3, cut to 32 bytes: SHA-256, no salt, no info."""
    derived = jose.hkdf(b"\x0b" * 22, "")
    assert derived.hex() == "8da4e775a563c18f715f802a063c5a31b8a11f5c5ee1879ec3454e5f3c738d2d"


@pytest.mark.parametrize(
    ("text", "read"),
    [
        (b'{"a":1,"a":[{}]}', (("a", 1), ("a", [()]))),
        (b"[]", None),
        (b'"a"', None),
        (b"{", None),
        (b"\xff", None),
        (b'{"a":NaN}', None),
        (b'{"a":"\\ud800"}', None),
        (b"[" * 100_000, None),
    ],
)
def test_the_oracle_reads_objects_and_nothing_else(text: bytes, read: object) -> None:
    """With every member as it is written."""
    assert jose._members(text) == read


def test_the_oracle_knows_its_own_good_tokens_and_no_others() -> None:
    """Each for its caller, kind and time; a segment has one spelling."""
    for original in tokens.ORIGINALS[-16:]:
        now = tokens.NOW
        how = {"now": now, "principal": original.caller, "kind": original.kind, "issuer": "us", "audience": "here"}
        assert jose.accepts(tokens.KNOWN, original.token, **how)  # type: ignore[arg-type]
        assert not jose.accepts(tokens.KNOWN, original.token + "=", **how)  # type: ignore[arg-type]
        assert not jose.accepts(tokens.KNOWN, original.token[:-4] + "é" * 4, **how)  # type: ignore[arg-type]
        assert not jose.accepts({}, original.token, **how)  # type: ignore[arg-type]
        assert not jose.accepts(tokens.KNOWN, "a" * 2049, **how)  # type: ignore[arg-type]
    assert {original.key.algorithm for original in tokens.ORIGINALS} == {"HS256", "ES256", "EdDSA"}


def test_a_key_of_no_caller_hides_nobody() -> None:
    """Anonymous is a claim that is absent."""
    assert jose.Known("HS256", None, b"").subject(None) is None


# --- the campaign --------------------------------------------------------------------------------
