"""Ticks: whole multiples of the period on the clock that all processes share."""

import asyncio
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.chassis.ticks import EARLY, next_tick, until_tick


@given(now=st.floats(0, 1e7), period_s=st.sampled_from([0.05, 0.25, 0.5, 1.0]))
def test_the_next_tick_is_a_multiple_of_the_period_and_at_most_a_period_away(
    now: float, period_s: float
) -> None:
    wait_s = until_tick(now, period_s)

    assert 0 < wait_s <= period_s * (1 + EARLY) + 1e-6
    assert (now + wait_s) / period_s == pytest.approx(round((now + wait_s) / period_s), abs=1e-4)


def test_a_timer_that_fires_early_does_not_have_its_tick_twice() -> None:
    assert until_tick(7.9999, 1.0) == pytest.approx(1.0001)


async def test_two_sleepers_with_one_period_wake_together() -> None:
    async def wake_at(late_s: float) -> float:
        await asyncio.sleep(late_s)
        await next_tick(1.0)
        return time.monotonic()

    begin_s = until_tick(time.monotonic(), 1.0) + 0.05
    first, second = await asyncio.gather(wake_at(begin_s), wake_at(begin_s + 0.3))

    assert abs(second - first) < 0.25
