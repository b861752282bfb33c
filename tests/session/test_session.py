"""What an application can do with a session and its state, what it cannot do by accident, and what identifies it."""

import copy
import json
import pickle
import subprocess
import sys
from collections.abc import Callable
from datetime import datetime, timedelta, timezone
from functools import partial
from threading import Thread
from typing import Any

import anyio
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from sources import NoServer, claims, session_of

from mcp_sessions import DataError, State, current_session
from mcp_sessions._errors import StateClosed, StateNotJSON, StateTooLarge, StoreUnavailable
from mcp_sessions._session import claims as module
from mcp_sessions._session.claims import TYP, Claims, Principal, after_ms, floor_ms, looks_like_session_id, utc
from mcp_sessions._session.events import RequestRefused, SessionCreated, SessionDeleted, SessionEvent, SessionUsed
from mcp_sessions._session.session import EndedSession
from mcp_sessions._session.state import check_size
from mcp_sessions._tokens.keys import base64url
from mcp_sessions.errors import DataGone, DataNotJSON
from mcp_sessions.testing import session_for_test

ID = "eyJ0eXAi.a-credential.that-must-not-show"


def test_a_session_says_what_the_application_may_know() -> None:
    """No text about it holds its id. One that has ended has none: it may have ended long after its id was last seen."""
    alice = Principal(client_id="app", issuer="https://idp", subject="alice")
    session = session_of(ID, principal=alice)
    assert (session.id, session.ref, session.principal) == (ID, "ses_abc", alice)
    assert session.state == {}
    assert (session.created_at, session.expires_at) == (datetime(1970, 1, 1, tzinfo=timezone.utc), utc(60))
    assert repr(session) == str(session) == f"{session}" == "<Session ses_abc>"
    assert not hasattr(session, "__dict__")  # nor is there a dict for a debugger or a serializer to walk
    assert not hasattr(EndedSession("ses_abc", created_at=utc(0), expires_at=utc(60), data=session.data), "id")


@pytest.mark.parametrize("duplicate", [pickle.dumps, copy.copy, copy.deepcopy])
def test_a_session_is_never_copied_or_stored(duplicate: Any) -> None:
    """It belongs to one request: a copy in a cache or a queue would be a stored credential."""
    with pytest.raises(TypeError, match=r"^a Session holds a credential .* to one request; keep session.ref instead$"):
        duplicate(session_of(ID))


async def test_ending_it_twice_ends_it_once_and_an_end_that_failed_can_be_tried_again() -> None:
    class Failing(NoServer):
        async def end_session(self, claims: Claims, reason: str) -> None:
            await super().end_session(claims, reason)
            if len(self.ended) == 1:
                raise OSError

    server = Failing()
    session = session_of(ID, server)
    with pytest.raises(OSError):  # noqa: PT011  # made above
        await session.end("logout")
    for _ in range(2):
        await session.end()
    assert server.ended == ["logout", "ended"]


FACTS: list[SessionEvent] = [
    SessionCreated("ses_a", 60),
    SessionUsed("ses_a", "tools/call"),
    SessionDeleted("ses_a", "deleted", 60),
    RequestRefused("expired", -32043, "tools/call"),
]


@pytest.mark.parametrize("fact", FACTS, ids=lambda fact: type(fact).__name__)
def test_a_fact_cannot_be_changed_and_has_no_place_for_a_credential_or_a_body(fact: SessionEvent) -> None:
    """Several listeners get the same object."""
    with pytest.raises(AttributeError):
        fact.ref = "ses_b"  # type: ignore[misc]  # what is shown
    allowed = {"ref", "expires_at", "method", "reason", "code", "seconds", "trace", "kind", "claim", "by", "name"}
    assert {*fact.__struct_fields__} <= allowed


# --- its state -----------------------------------------------------------------------------------


def state_of(stored: bytes | None = None) -> State:
    return State(stored, check=partial(check_size, limit=40))


def test_state_is_sent_back_where_it_was_changed() -> None:
    """It is a mapping of what the client carried; no state is an empty one."""
    assert state_of() == state_of(b"{}") == {}
    for payload in (b'{"a":1,"b":[2]}', b"{}"):
        assert state_of(payload)._changed() is None
    state = state_of(b'{"a":1,"b":[2],"c":3}')
    assert (state["a"], len(state), list(state), dict(state)) == (1, 3, ["a", "b", "c"], {"a": 1, "b": [2], "c": 3})
    assert len(state.section("cart")) == 0
    state["a"] = 9
    state["b"].append(3)
    del state["c"]
    assert state._changed() == b'{"a":9,"b":[2,3]}'


def test_too_much_is_refused_where_it_is_written() -> None:
    """With size and limit, and the old value stands; growth by `append` is measured when the response leaves."""
    state = state_of()
    state["a"] = [1]
    text = r"would take 48 bytes as JSON; the limit is 40 \(Limits.state_bytes\): keep large values in session.data"
    with pytest.raises(StateTooLarge, match=text) as raised:
        state["a"] = "x" * 40
    assert (raised.value.size, raised.value.limit, state["a"]) == (48, 40, [1])
    state["a"].extend(range(40))
    with pytest.raises(StateTooLarge):
        state._changed()


@pytest.mark.parametrize(
    ("value", "part"),
    [
        (float("nan"), "a value of type float that would not come back as it is"),
        ({1: 2}, "a key of type int that would not come back as it is"),
        ("\ud800", "a value of type str that has no JSON form"),
    ],
)
def test_a_value_that_is_not_json_is_refused(value: object, part: str) -> None:
    """At the assignment: NaN would become null, a number a text. `test_data` has further values."""
    with pytest.raises(StateNotJSON, match=f"^session state must be JSON: it holds {part}, under 'a'$"):
        state_of().update(b=1, a=value)
    state: Any = state_of()
    with pytest.raises(StateNotJSON, match=r"it holds a key of type int that would not come back as it is$"):
        state[1] = 2


def test_after_the_response_left_state_is_closed() -> None:
    """A late write raises instead of being lost; reading goes on."""
    state = state_of(b'{"a":1}')
    assert repr(state) == "<State open>"
    state._close()
    assert repr(state) == "<State closed>"
    text = r"^the response was sent; session state can be changed only while the request is handled$"
    with pytest.raises(StateClosed, match=text):
        state["a"] = 2
    with pytest.raises(StateClosed):
        del state["a"]
    assert state["a"] == 1


def test_a_state_that_is_out_of_reach_is_not_taken_for_an_empty_one() -> None:
    state = state_of()
    state._fault = "store_timeout"
    looks: list[Callable[[], object]] = [
        *(lambda: state.get("k"), lambda: len(state)),
        *(lambda: state.section("s").update(k=1), lambda: state.update(k=1)),
    ]
    for look in looks:
        with pytest.raises(StoreUnavailable) as caught:
            look()
        assert caught.value.reason == "store_timeout"
    assert state._changed() is None


def test_two_libraries_do_not_meet_in_their_sections() -> None:
    """Each has its own names, and both are written back; a plain value under one of them is kept, and no section."""
    state = state_of()
    cart, theme = state.section("cart"), state.section("theme")
    cart["n"] = 1
    theme["n"] = "dark"
    assert (dict(cart), len(cart), list(theme), theme["n"]) == ({"n": 1}, 1, ["n"], "dark")
    del theme["n"]
    for missing in (lambda: theme["n"], lambda: theme.__delitem__("n")):
        with pytest.raises(KeyError):
            missing()
    assert state._changed() == b'{"cart":{"n":1},"theme":{}}'
    with pytest.raises(StateNotJSON, match="a plain value under 'cart'"):
        state_of(b'{"cart":3}').section("cart")["n"] = 1


# --- its id among other texts, and its times ------------------------------------------------------


def envelope(header: bytes) -> str:
    return f"{base64url(header)}.e30.c2ln"


def test_no_thread_waits_until_another_has_found_a_public_name(monkeypatch: pytest.MonkeyPatch) -> None:
    """A process that is forked meanwhile would wait for ever, since it has not that other thread."""
    slow, quick = claims(jti="A" * 22), claims(jti="B" * 22)

    def ref_of(jti: str) -> str:
        if jti == slow.jti:
            other = Thread(target=lambda: quick.ref, daemon=True)
            other.start()
            other.join(10)
            assert not other.is_alive()
        return f"ses_{jti}"

    monkeypatch.setattr(module, "ref_of", ref_of)
    assert (slow.ref, quick.ref) == (f"ses_{slow.jti}", f"ses_{quick.jti}")


@given(st.permutations(["alg", "kid", "typ"]), st.integers(1, 8), st.integers(0, 4), st.text(), st.text())
@example(["alg", "kid", "typ"], 8, 0, "x" * 4000, "\ud800")
def test_a_token_of_ours_is_known_by_its_typ_however_it_is_dressed(
    order: list[str], length: int, indent: int, before: str, after: str
) -> None:
    """A list, a scheme, quotes, another id before it: the token could still be read out of it, verified or not."""
    header = {name: TYP if name == "typ" else "x" * length for name in order}
    text = f"{before}{envelope(json.dumps(header, indent=indent).encode())}{after}"
    assert looks_like_session_id(text)
    assert looks_like_session_id(text.encode("utf-8", "surrogatepass"))


@given(st.text() | st.binary())
@example("\ud800.\ud800.\ud800")
@example(TYP)
@example(envelope(b'{"alg":"HS256","typ":"JWT"}'))
@example(envelope(b"\xff\xff"))
def test_what_is_not_ours_is_the_servers_own(value: str | bytes) -> None:
    """And nothing makes the question raise."""
    assert not looks_like_session_id(value)


@given(st.floats(0, 253_402_300_799), st.floats(0, 1))
def test_a_cut_off_ends_what_was_issued_by_then(now: float, later: float) -> None:
    """In the same millisecond or before; what is issued a millisecond later, by the same clock, lives."""
    assert floor_ms(now) < after_ms(now)
    assert floor_ms(now) <= floor_ms(now + later)
    assert after_ms(now) <= floor_ms(now + 0.0021)
    assert round(floor_ms(now) * 1000) / 1000 == floor_ms(now)
    assert (floor_ms(1.0005), after_ms(1.0005)) == (1.0, 1.001)


# --- a session for tests of tools, which no server gave ---------------------------------------------


async def shop(item: str) -> str:
    """A tool as a server has them."""
    session = current_session()
    assert session is not None
    cart = await session.data.update("cart", lambda cart: [*cart, item], default=[])
    session.state["last"] = item
    return f"{len(cart)} in the cart"


async def test_a_tool_finds_the_session_of_the_block() -> None:
    """With what it holds at first, and what the tool made of it afterwards; there is none outside."""
    with session_for_test(state={"last": None}, data={"cart": ["socks"]}) as session:
        assert await shop("shoes") == "2 in the cart"
        assert await session.data.get("cart") == ["socks", "shoes"]
        assert dict(session.state) == {"last": "shoes"}
        with session_for_test() as inner:
            assert await shop("hat") == "1 in the cart"
        assert current_session() is session
    assert current_session() is None
    assert session.ref != inner.ref
    assert session.id != inner.id


async def test_the_session_is_what_any_session_is() -> None:
    """It belongs to its principal, ends when it is ended, and has a client that stated nothing."""
    alice = Principal(subject="alice")
    with session_for_test(principal=alice, lifetime=60) as session:
        assert session.principal == alice
        assert session.expires_at - session.created_at == timedelta(seconds=60)
        assert await session.client_capabilities() is None
        await session.end()
        with pytest.raises(DataGone):
            await session.data.set("k", 1)


def test_a_plain_tool_needs_no_server() -> None:
    """`session.data.sync` works in a plain test; on an event loop it is refused, as in a server."""
    with session_for_test(data={"n": 1}) as session:
        assert session.data.sync.increment("n") == 2

        async def misused() -> None:
            session.data.sync.set("n", 5)

        with pytest.raises(DataError, match=r"await session\.data"):
            anyio.run(misused)
        assert session.data.sync.get("n") == 2


def test_what_has_no_json_form_is_refused() -> None:
    """As it would be in a tool."""
    with pytest.raises(StateNotJSON):
        session_for_test(state={"k": {1}}).__enter__()
    with pytest.raises(DataNotJSON):
        session_for_test(data={"k": {1}}).__enter__()


def test_pytest_is_not_needed_for_it() -> None:
    """In a process without it, as unittest's are."""
    source = "import sys; sys.modules['pytest'] = None; from mcp_sessions.testing import session_for_test"
    subprocess.run([sys.executable, "-c", source], check=True)
