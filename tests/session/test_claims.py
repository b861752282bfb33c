"""Claims, and what looks like a session id."""

from __future__ import annotations

import json
import string
from threading import Event, Thread
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from signers import NEW, OLD
from sources import claims

from mcp_sessions._session import claims as module
from mcp_sessions._session.claims import TYP, after_ms, floor_ms, looks_like_session_id, utc
from mcp_sessions._tokens.jwt import Tokens
from mcp_sessions._tokens.keys import KeyRing, base64url

RINGS = [KeyRing([secret]) for secret in (OLD, NEW)]
TOKENS = Tokens(issuer="mcp-sessions", audience="mcp-sessions")
TOKEN = TOKENS.mint(RINGS[0], claims(jti="A" * 22))
HEADER, PAYLOAD, SIGNATURE = TOKEN.split(".")


def envelope(header: Any) -> str:
    raw = header if isinstance(header, bytes) else json.dumps(header).encode()
    return f"{base64url(raw)}.{PAYLOAD}.{SIGNATURE}"


def test_no_thread_waits_until_another_has_found_a_public_name(monkeypatch: pytest.MonkeyPatch) -> None:
    """A process that is forked meanwhile would wait for ever, since it has not that other thread."""
    slow, quick = claims(jti="A" * 22), claims(jti="B" * 22)
    begun, go_on = Event(), Event()

    def ref_of(jti: str) -> str:
        if jti == slow.jti:
            begun.set()
            go_on.wait(60)
        return f"ses_{jti}"

    monkeypatch.setattr(module, "ref_of", ref_of)
    first, second = (Thread(target=lambda one=one: one.ref, daemon=True) for one in (slow, quick))
    first.start()
    assert begun.wait(60)
    second.start()
    second.join(10)
    waits = second.is_alive()
    go_on.set()
    first.join()
    assert not waits
    assert (slow.ref, quick.ref) == (f"ses_{slow.jti}", f"ses_{quick.jti}")


@pytest.mark.parametrize(
    "value",
    [
        TOKEN,
        *(TOKEN.encode(), f"{HEADER}==.{PAYLOAD}.{SIGNATURE}", f"{'x' * 4000}{TOKEN}", f"{TOKEN}\ud800"),
        *(envelope({"x" * n: 1, "typ": TYP}) for n in (1, 2, 3)),
    ],
)
def test_a_token_of_ours_is_known_by_its_typ_however_it_is_dressed(value: str | bytes) -> None:
    """Whether it verifies does not matter: it is never forwarded."""
    assert looks_like_session_id(value)


@pytest.mark.parametrize(
    "value",
    [
        *("0123456789abcdef0123456789abcdef", "...", "\ud800.\ud800.\ud800", b"\xff.\xff.\xff", TYP),
        *(envelope({"alg": "HS256", "typ": "JWT"}), envelope(b"\xff\xff")),
    ],
)
def test_what_is_not_ours_is_the_servers_own(value: str | bytes) -> None:
    assert not looks_like_session_id(value)


@given(st.text() | st.binary())
def test_no_value_makes_the_question_raise(value: str | bytes) -> None:
    assert not looks_like_session_id(value)


@given(st.permutations(["alg", "kid", "typ"]), st.integers(0, 4))
def test_order_and_spacing_do_not_hide_a_token(order: list[str], indent: int) -> None:
    header = {name: TYP if name == "typ" else "x" * 8 for name in order}
    assert looks_like_session_id(envelope(json.dumps(header, indent=indent).encode()))


@given(st.text(string.printable), st.text(string.printable), st.sampled_from(RINGS))
def test_no_text_around_a_token_hides_it(before: str, after: str, ring: KeyRing) -> None:
    """A list, a scheme, quotes, another id right before it: the token could still be read out of it."""
    assert looks_like_session_id(f"{before}{TOKENS.mint(ring, claims(jti='A' * 22))}{after}")


@given(st.floats(0, 253_402_300_799), st.floats(0, 1))
def test_a_cut_off_ends_what_was_issued_by_then(now: float, later: float) -> None:
    """In the same millisecond or before; what is issued a millisecond later, by the same clock, lives."""
    assert floor_ms(now) < after_ms(now)
    assert floor_ms(now) <= floor_ms(now + later)
    assert after_ms(now) <= floor_ms(now + 0.0021)
    assert round(floor_ms(now) * 1000) / 1000 == floor_ms(now)


def test_a_cut_off_is_the_next_millisecond_and_a_date_is_in_utc() -> None:
    assert (floor_ms(1.0005), after_ms(1.0005)) == (1.0, 1.001)
    assert utc(1.5).isoformat() == "1970-01-01T00:00:01.500000+00:00"
