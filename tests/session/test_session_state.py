"""`session.state`: compared with what came, closed when the response leaves, and one part of it for each library."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mcp_sessions._errors import StateClosed, StateNotJSON, StateTooLarge, StoreUnavailable
from mcp_sessions._session.claims import utc
from mcp_sessions._session.state import RequestState, UnreadableState


def check(payload: bytes, limit: int = 40) -> None:
    if len(payload) > limit:
        raise StateTooLarge(len(payload), limit)


def state_of(payload: bytes | None = None) -> RequestState:
    return RequestState(payload, check=check)


class TestState:
    def test_no_state_is_an_empty_one(self) -> None:
        assert state_of() == state_of(b"{}") == {}
        assert state_of(b"{}").finalize() is None

    def test_it_is_a_mapping_of_what_the_client_carried(self) -> None:
        state = state_of(b'{"a":1,"b":[2]}')
        assert (state["a"], len(state), list(state), dict(state)) == (1, 2, ["a", "b"], {"a": 1, "b": [2]})

    def test_unread_and_unchanged_state_is_not_sent_back(self) -> None:
        assert state_of(b'{"a":1}').finalize() is None
        read = state_of(b'{"a":1}')
        assert read["a"] == 1
        assert read.finalize() is None

    def test_changes_are_sent_back(self) -> None:
        state = state_of(b'{"a":1,"b":[2],"c":3}')
        state["a"] = 9
        state["b"].append(3)
        del state["c"]
        assert state.finalize() == b'{"a":9,"b":[2,3]}'

    def test_too_much_is_refused_where_it_is_written(self) -> None:
        """The application gets the error at the assignment, with size and limit, and the old value stands."""
        state = state_of()
        state["a"] = 1
        with pytest.raises(StateTooLarge, match="would take 48 bytes sealed; the limit is 40") as raised:
            state["a"] = "x" * 40
        assert (raised.value.size, raised.value.limit) == (48, 40)
        assert state["a"] == 1

    def test_a_value_that_grew_inside_is_found_at_the_end(self) -> None:
        """Growth by `append` passes no assignment, so it is measured when the response leaves."""
        state = state_of()
        state["a"] = []
        state["a"].extend(range(40))
        with pytest.raises(StateTooLarge):
            state.finalize()

    @pytest.mark.parametrize("value", [object(), {object(): 1}, "\ud800\xff\ud800", 1j])
    def test_a_value_without_a_json_form_is_refused(self, value: object) -> None:
        with pytest.raises(StateNotJSON, match="session state must be JSON"):
            state_of()["a"] = value

    @pytest.mark.parametrize("value", [float("nan"), float("inf"), b"x", (1, 2), {1: 2}, {1}, utc(0)])
    def test_a_value_that_would_come_back_as_another_is_refused(self, value: object) -> None:
        """NaN becomes null, a date a text, a tuple a list: JSON is a promise, so it is kept at the assignment."""
        of = "a key of type int" if isinstance(value, dict) else f"a value of type {type(value).__name__}"
        with pytest.raises(StateNotJSON, match=f"it holds {of} that would not come back as it is, under 'a'$"):
            state_of().update(b=1, a=value)

    def test_a_key_that_is_no_text_is_refused(self) -> None:
        state: Any = state_of()
        with pytest.raises(StateNotJSON, match=r"it holds a key of type int that would not come back as it is$"):
            state[1] = 2

    def test_after_the_response_left_it_is_closed(self) -> None:
        """A late write raises instead of being lost; reading goes on."""
        state = state_of(b'{"a":1}')
        assert repr(state) == "<State open>"
        state.finalize()
        assert repr(state) == "<State closed>"
        with pytest.raises(
            StateClosed,
            match=r"^the response was sent; session state can be changed only while the request is handled$",
        ):
            state["a"] = 2
        with pytest.raises(StateClosed):
            del state["a"]
        assert state["a"] == 1


@given(
    st.dictionaries(
        st.text(max_size=8), st.none() | st.booleans() | st.lists(st.text(max_size=4), max_size=2), max_size=4
    )
)
def test_what_was_written_is_read_by_the_next_request(values: dict[str, Any]) -> None:
    state = RequestState(None, check=lambda payload: None)
    state.update(values)
    assert RequestState(state.finalize() or b"{}", check=check) == values


def test_a_state_that_is_out_of_reach_is_not_taken_for_an_empty_one() -> None:
    state = UnreadableState("store_timeout")
    looks: list[Callable[[], object]] = [
        lambda: state.get("k"),
        lambda: len(state),
        lambda: state.section("s").update(k=1),
        lambda: state.update(k=1),
    ]
    for look in looks:
        with pytest.raises(StoreUnavailable) as caught:
            look()
        assert caught.value.reason == "store_timeout"
    assert state.finalize() is None


class TestSection:
    def test_two_libraries_do_not_meet(self) -> None:
        """Each section has its own names, and both are written back with the state."""
        state = state_of()
        cart, theme = state.section("cart"), state.section("theme")
        cart["n"] = 1
        theme["n"] = "dark"
        assert (dict(cart), len(cart), list(theme), theme["n"]) == ({"n": 1}, 1, ["n"], "dark")
        del theme["n"]
        assert state.finalize() == b'{"cart":{"n":1},"theme":{}}'

    def test_an_unused_section_changes_nothing(self) -> None:
        state = state_of()
        assert len(state.section("cart")) == 0
        assert state.finalize() is None

    def test_a_missing_name_is_a_missing_key(self) -> None:
        section = state_of().section("cart")
        with pytest.raises(KeyError):
            section["n"]
        with pytest.raises(KeyError):
            del section["n"]

    def test_a_plain_value_is_not_taken_for_a_section(self) -> None:
        """An application that used the name itself gets an error, and keeps its value."""
        with pytest.raises(StateNotJSON, match="a plain value under 'cart'"):
            state_of(b'{"cart":3}').section("cart")["n"] = 1
