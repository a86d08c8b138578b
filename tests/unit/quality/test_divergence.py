"""KL, agreement, perplexity and repetition against figures worked out by hand."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from worker.quality.divergence import DivergenceSum, kl_divergence, log_softmax, repetition_rate

LOGITS = arrays(np.float32, (3, 7), elements=st.floats(-30, 30, width=32))


def test_a_worked_divergence() -> None:
    base = np.log(np.array([[0.5, 0.5]]))
    ours = np.log(np.array([[0.9, 0.1]]))
    assert kl_divergence(base, ours)[0] == pytest.approx(0.5108, abs=1e-4)


@given(LOGITS, LOGITS)
def test_divergence_is_never_negative_and_zero_for_the_same(base: np.ndarray, ours: np.ndarray) -> None:
    assert (kl_divergence(log_softmax(base), log_softmax(ours)) >= 0).all()
    assert kl_divergence(log_softmax(base), log_softmax(base)).max() == 0
    # A constant added to all logits changes no probability.
    shifted = log_softmax(base + np.float32(3))
    assert kl_divergence(log_softmax(base), shifted).max() < 1e-5


def test_a_sum_over_two_additions_is_that_of_one() -> None:
    draw = np.random.default_rng(1)
    base, ours = draw.normal(size=(2, 10, 5)).astype(np.float32)
    targets = draw.integers(0, 5, 10).astype(np.int32)
    whole, parts, merged = DivergenceSum(), DivergenceSum(), DivergenceSum()
    whole.add(base, ours, targets)
    merged.add(base[:4], ours[:4], targets[:4])
    parts.add(base[4:], ours[4:], targets[4:])
    merged.merge(parts)
    one, two = whole.result(), merged.result()
    assert (one.num_positions, one.agreement) == (two.num_positions, two.agreement)
    assert one.mean_kl == pytest.approx(two.mean_kl)
    assert one.perplexity == pytest.approx(two.perplexity)
    assert one.worst_kl == two.worst_kl >= one.mean_kl


def test_perplexity_of_certain_and_of_even_guesses() -> None:
    sure, even = np.array([[50.0, 0, 0, 0]], np.float32), np.zeros((1, 4), np.float32)
    measured = DivergenceSum()
    measured.add(sure, even, np.array([0], np.int32))
    result = measured.result()
    assert result.baseline_perplexity == pytest.approx(1.0)
    assert result.perplexity == pytest.approx(4.0)


def test_nothing_measured_is_an_error() -> None:
    with pytest.raises(ValueError, match="no position"):
        DivergenceSum().result()


@pytest.mark.parametrize(
    ("ids", "rate"),
    [([1, 2, 3], 0.0), ([1, 2, 3, 4, 5, 6], 0.0), ([1, 2, 3, 4] * 3, 5 / 9), ([7] * 8, 4 / 5)],
)
def test_repetition(ids: list[int], rate: float) -> None:
    assert repetition_rate(ids) == pytest.approx(rate)
