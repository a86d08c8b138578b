"""The figure that judges the side channel: half where two samples are alike, one where they are apart."""

import random

import pytest

from bench.tenants.side_channel import auc, sigma


def test_apart_is_one_alike_is_half_and_ties_count_half() -> None:
    assert auc([1.0, 2.0], [3.0, 4.0]) == 1.0
    assert auc([3.0, 4.0], [1.0, 2.0]) == 0.0
    assert auc([1.0, 2.0], [1.0, 2.0]) == 0.5
    assert auc([1.0], [1.0, 2.0]) == 0.75


def test_samples_of_one_kind_stay_within_three_sigma_and_a_small_shift_does_not() -> None:
    draw = random.Random(1)
    one, other = ([draw.gauss(10.0, 1.0) for _ in range(1000)] for _ in range(2))
    assert sigma(1000, 1000) == pytest.approx(0.0129, abs=1e-4)
    assert abs(auc(one, other) - 0.5) <= 3 * sigma(1000, 1000)
    shifted = [value + 0.2 for value in other]
    assert auc(one, shifted) - 0.5 > 3 * sigma(1000, 1000)
