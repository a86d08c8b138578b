"""Ticks: whole multiples of the period on the clock that all processes share."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.chassis.ticks import EARLY, until_tick


@given(now=st.floats(0, 1e7), period_s=st.sampled_from([0.05, 0.25, 0.5, 1.0]))
def test_the_next_tick_is_a_multiple_of_the_period_and_at_most_a_period_away(
    now: float, period_s: float
) -> None:
    wait_s = until_tick(now, period_s)

    assert 0 < wait_s <= period_s * (1 + EARLY) + 1e-6
    assert (now + wait_s) / period_s == pytest.approx(round((now + wait_s) / period_s), abs=1e-4)


def test_a_timer_that_fires_early_does_not_have_its_tick_twice() -> None:
    assert until_tick(7.9999, 1.0) == pytest.approx(1.0001)


@given(now=st.floats(0, 0.98), later=st.floats(0, 0.98))
def test_two_sleepers_with_one_period_wake_together(now: float, later: float) -> None:
    assert now + until_tick(now, 1.0) == pytest.approx(later + until_tick(later, 1.0))
