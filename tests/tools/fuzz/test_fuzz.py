"""A bounded run of each target, and proof that each can fail."""

from __future__ import annotations

import asyncio

import pytest
from environments import require

require("joserfc>=1")

from fuzz import campaign, jose, jsonrpc, paths, sse, state, tokens, trials, uris
from fuzz.trials import Disagreement

SEED = 1


TRIALS = {"tokens": 8_000, "jsonrpc": 4_000, "sse": 4_000, "state": 4_000, "paths": 1_000, "uris": 4_000}
REACHED = {"tokens": 30, "jsonrpc": 10, "sse": 4, "state": 7, "paths": 30, "uris": 3}


@pytest.mark.parametrize("target", campaign.TARGETS)
def test_no_input_is_judged_differently_from_the_oracle(target: str) -> None:
    """Some thousand inputs, always the same ones, and most of the outcomes among them."""
    outcomes = trials.run(campaign.TARGETS[target], target, SEED, 0, trials=TRIALS[target])
    assert outcomes.total() == TRIALS[target]
    assert len(outcomes) >= REACHED[target], outcomes


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
