"""How many further attempts a gateway's requests may make together."""

import random

import pytest

from gateway.core.retry_budget import MOST, RESERVE, RetryBudget


def test_attempts_are_a_tenth_of_the_traffic_above_a_reserve() -> None:
    told: list[bool] = []
    budget = RetryBudget(10.0, told.append)
    for _ in range(500):
        budget.arrived()
        budget.take()
    assert sum(told) <= RESERVE + 50
    assert sum(told) >= 50
    assert len(told) == 500


def test_zero_per_cent_allows_none() -> None:
    budget = RetryBudget(0.0)
    for _ in range(1000):
        budget.arrived()
        assert not budget.take()


@pytest.mark.parametrize("seed", range(10))
def test_no_stretch_of_traffic_has_more_attempts_than_its_share_and_what_was_saved(seed: int) -> None:
    draw, budget = random.Random(seed), RetryBudget(10.0)
    num_requests = num_taken = 0
    for _ in range(5000):
        if draw.random() < 0.5:
            budget.arrived()
            num_requests += 1
        else:
            num_taken += budget.take()
        assert num_taken <= MOST + 0.1 * num_requests
