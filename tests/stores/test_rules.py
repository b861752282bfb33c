"""What every store decides alike."""

from __future__ import annotations

import math

import pytest
from clients import START
from hypothesis import given
from hypothesis import strategies as st

from mcp_sessions._session.data import Namespace
from mcp_sessions.errors import DataNotInteger, DataTooLarge
from mcp_sessions.stores import base
from mcp_sessions.stores.base import grain

MOST = 2**63 - 1


@given(idle_timeout=st.integers(1, 100_000), late=st.floats(0, 1), rest=st.floats(0, 1))
def test_no_session_is_idle_before_its_time(idle_timeout: int, late: float, rest: float) -> None:
    """A note may lag behind the use by the grain; counted from the use, the time is whole."""
    noted = START
    used = noted + late * grain(idle_timeout) * 0.999
    assert used + rest * idle_timeout * 0.999 < base.idle_at(noted, idle_timeout)
    assert used + idle_timeout + grain(idle_timeout) >= base.idle_at(noted, idle_timeout)


def test_without_a_timeout_no_session_is_idle() -> None:
    """Neither by its end nor by its last use."""
    assert base.idle_at(START, None) == math.inf
    assert base.seen_by(START, None) == -math.inf


@pytest.mark.parametrize("idle_timeout", [1, 59, 60, 3600])
def test_idle_sessions_are_found_by_their_last_use(idle_timeout: int) -> None:
    """The two ways to say it agree to the second."""
    now = base.idle_at(START, idle_timeout)
    assert base.seen_by(now, idle_timeout) == START
    assert base.seen_by(now - 1, idle_timeout) < START


@pytest.mark.parametrize(("idle_timeout", "after"), [(None, 60), (10, 0), (60, 1), (3600, 60)])
def test_a_use_is_noted_once_in_a_grain(idle_timeout: int | None, after: int) -> None:
    """Where the grain is nothing, each is."""
    assert base.is_due_again(START, START + after, idle_timeout)
    assert not base.is_due_again(START, START + after - 0.1, idle_timeout)


@given(value=st.integers(-MOST - 1, MOST), by=st.integers(-MOST - 1, MOST))
def test_a_sum_is_exact_or_refused(value: int, by: int) -> None:
    """There is no rounding and no wrapping round."""
    if -MOST - 1 <= value + by <= MOST:
        assert base.added(b"%d" % value, by) == value + by
    else:
        with pytest.raises(DataNotInteger, match="64 bits at most"):
            base.added(b"%d" % value, by)


def test_nothing_counts_as_zero() -> None:
    """A counter begins by itself."""
    assert base.added(None, 7) == 7


@pytest.mark.parametrize(
    "value",
    [b"", b"-", b"01", b"-0", b"+1", b" 1", b"1\n", b"1_0", b"1.0", b"0x1", "\u0661".encode(), b"9" * 20, b"null"],
)
def test_only_a_plain_whole_number_is_added_to(value: bytes) -> None:
    """What Python's `int` reads beyond that is no JSON integer."""
    with pytest.raises(DataNotInteger, match="whole number"):
        base.added(value, 0)


def test_a_value_that_fits_no_64_bits_is_refused_even_if_the_sum_does() -> None:
    """It was no integer to begin with."""
    with pytest.raises(DataNotInteger):
        base.added(b"%d" % (MOST + 1), -1)


def test_sizes_are_bytes_of_name_and_value() -> None:
    """In UTF-8."""
    assert base.size_of("käse", b"1234") == 9
    base.check_size(Namespace("ses_a", START, max_bytes=9), 9)
    with pytest.raises(DataTooLarge, match="would take 10 bytes; the limit is 9"):
        base.check_size(Namespace("ses_a", START, max_bytes=9), 10)
