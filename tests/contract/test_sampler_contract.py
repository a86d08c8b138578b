"""Drawing tokens from logits. One suite for the reference in Python and the native sampler.

An implementation joins by adding a fixture parameter; it takes logits and rows and gives a `StepResult`.
Knows draws, logprobs and rows that fail; what narrows a distribution has a file of its own.
"""

import numpy as np
import pytest

from tests.fakes.sampler_rows import VOCAB, Sample, draws, logits, row
from worker.engine import sampler
from worker.engine.counter_random import philox4x32, uniform
from worker.engine.sampler import LOWEST_LOGPROB
from worker.executors.native.library import NativeError


def test_philox_gives_the_published_known_answers() -> None:
    ones = 0xFFFFFFFF
    assert philox4x32((0, 0, 0, 0), (0, 0)) == (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)
    assert philox4x32((ones,) * 4, (ones,) * 2) == (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD)


@pytest.mark.parametrize(
    ("counter", "expected"),
    [
        ((0, 0, 0), 0.3990464708489645),
        ((1234, 0, 0), 0.12720795181893485),
        ((1234, 1, 7), 0.48372925926208654),
        ((2**64 - 1, 15, 2**33), 0.8195782282400307),
    ],
)
def test_the_draw_is_pinned(counter: tuple[int, int, int], expected: float) -> None:
    assert uniform(*counter) == expected


def test_greedy_takes_the_best_and_the_lowest_id_of_a_tie(sample: Sample) -> None:
    table = np.array([[0, 5, 5, 1], [2, 1, 0, 2]], np.float32)
    assert sample(table, [row(temperature=0), row(temperature=0)]).token_ids.tolist() == [1, 0]


@pytest.mark.failure("B085")
@pytest.mark.parametrize("temperature", [0.5, 1.0, 2.0])
def test_frequencies_follow_the_distribution(sample: Sample, temperature: float) -> None:
    values = [0.0, 1.0, 2.0, -1.0, 0.5]
    count = 8_000
    weights = np.exp(np.array(values) / temperature)
    expected = weights / weights.sum() * count
    observed = draws(sample, values, count, temperature=temperature)
    chi_square = float(((observed - expected) ** 2 / expected).sum())
    assert chi_square < 18.5, "4 degrees of freedom, p = 0.001"


def test_seeds_choices_and_positions_are_independent() -> None:
    samples = {
        uniform(seed, choice, position) for seed in range(20) for choice in range(4) for position in range(20)
    }
    assert len(samples) == 1600
    assert abs(sum(samples) / 1600 - 0.5) < 0.03


@pytest.mark.failure("B084")
@pytest.mark.failure("B094")
@pytest.mark.parametrize(
    "params",
    [
        {"temperature": 0},
        {"seed": 5},
        {"seed": 5, "top_p": 0.7, "top_k": 50, "min_p": 0.01},
        {"seed": 5, "repetition_penalty": 1.5, "presence_penalty": 2.0, "frequency_penalty": 2.0},
        {"seed": 5, "num_logprobs": 5},
    ],
)
def test_a_row_draws_the_same_alone_and_in_any_company(sample: Sample, params: dict[str, object]) -> None:
    table = logits(9)
    mine = row(position=3, prompt=(1, 2, 3), output=(4, 4, 5), **params)
    alone = sample(table[4:5], [mine])
    others = [row(position=i, seed=i, prompt=tuple(range(i + 1)), top_k=i) for i in range(9)]
    together = sample(table, [*others[:4], mine, *others[5:]])
    assert together.token_ids[4] == alone.token_ids[0]
    assert together.logprobs[4] == alone.logprobs[0]
    assert together.top[4] == alone.top[0]


@pytest.mark.failure("B090")
@pytest.mark.parametrize("temperature", [0, 1])
def test_a_bad_row_fails_alone(sample: Sample, temperature: float) -> None:
    table = logits(5)
    clean = sample(table, [row(temperature=temperature, position=i) for i in range(5)])
    table[0, :] = np.nan
    table[1, 77] = np.nan
    table[2, 3] = np.inf
    table[3, :] = -np.inf
    result = sample(table, [row(temperature=temperature, position=i, num_logprobs=2) for i in range(5)])
    assert result.failed.tolist() == [True, True, True, True, False]
    assert result.token_ids[4] == clean.token_ids[4]


def test_some_ids_may_be_impossible(sample: Sample) -> None:
    table = np.array([[-np.inf, 1, -np.inf, 1]], np.float32)
    result = sample(table, [row(num_logprobs=4)])
    assert not result.failed[0]
    assert result.token_ids[0] in (1, 3)


@pytest.mark.failure("B080")
@pytest.mark.failure("B079")
def test_logprobs_are_of_the_raw_distribution_and_finite(sample: Sample) -> None:
    table = logits(1)
    table[0, 5] = -np.inf
    mine = row(num_logprobs=5, top_k=1, logit_bias={5: 1.0}, temperature=0.3)
    result = sample(table, [mine])
    exact = table[0].astype(np.float64) - np.log(np.exp(table[0].astype(np.float64)).sum())
    best = np.argsort(-exact, kind="stable")[:5]
    assert result.logprobs[0] == pytest.approx(exact[result.token_ids[0]], abs=1e-6)
    top = result.top[0]
    assert top is not None
    assert list(top.token_ids) == best.tolist()
    assert top.logprobs == pytest.approx(exact[best], abs=1e-6)
    few = sample(np.array([[1.0, -np.inf]], np.float32), [row(num_logprobs=2)]).top[0]
    assert few is not None
    assert few.logprobs == (0.0, LOWEST_LOGPROB)


@pytest.mark.failure("B081")
def test_zero_logprobs_means_the_drawn_token_only(sample: Sample) -> None:
    result = sample(logits(2), [row(num_logprobs=0), row()])
    assert result.top == (None, None)
    assert result.logprobs[0] < 0
    assert result.logprobs[1] == 0


def test_a_target_is_scored_by_the_raw_logits_and_nothing_is_drawn_for_it(sample: Sample) -> None:
    """Whatever the row's sampling is; rows beside it draw as they do without it."""
    table, rows = logits(4), [row(i, temperature=1.3, num_logprobs=3) for i in range(4)]
    targets = np.array([-1, 1999, -1, 7], np.int32)
    free, result = sample(table, rows), sample(table, rows, targets)
    assert result.token_ids.tolist() == [free.token_ids[0], 1999, free.token_ids[2], 7]
    assert result.top == free.top
    exact = table.astype(np.float64) - np.log(np.exp(table.astype(np.float64)).sum(1, keepdims=True))
    assert result.logprobs.tolist() == pytest.approx(exact[range(4), result.token_ids].tolist(), abs=1e-6)


def test_a_scored_row_without_a_usable_distribution_fails_alone(sample: Sample) -> None:
    table = logits(3)
    table[1, 5] = np.nan
    result = sample(table, [row(num_logprobs=0)] * 3, np.array([1, 2, 3], np.int32))
    assert result.failed.tolist() == [False, True, False]


@pytest.mark.parametrize("scale", [0.3, 3.0, 10.0])
def test_the_native_sampler_draws_what_the_reference_draws(native: Sample, scale: float) -> None:
    """Of many random rows a few may fall within rounding of the edge between two ids; logprobs are equal."""
    rng = np.random.default_rng(int(scale * 10))
    table = logits(400, seed=5, vocab=3000, scale=scale)
    table[::7, 100:400] = -np.inf
    rows = []
    for i in range(len(table)):
        prompt, output = (tuple(rng.integers(0, 3000, n).tolist()) for n in rng.integers(1, 50, 2))
        params = {
            "temperature": float(rng.choice([0.0, 0.3, 1.0, 2.0])),
            "top_p": float(rng.choice([1.0, 0.95, 0.5])),
            "top_k": int(rng.choice([0, 1, 40, 2999])),
            "min_p": float(rng.choice([0.0, 0.05])),
            "repetition_penalty": float(rng.choice([1.0, 1.3])),
            "presence_penalty": float(rng.choice([0.0, 0.5])),
            "frequency_penalty": float(rng.choice([0.0, -0.5])),
            "logit_bias": {int(rng.integers(3000)): 2.0} if i % 3 else {},
            "seed": int(rng.integers(2**62)),
            "num_logprobs": [None, 0, 7][i % 3],
        }
        rows.append(row(i, prompt, output, frozenset(rng.integers(0, 3000, i % 4).tolist()), **params))
    ours, theirs = native(table, rows), sampler.sample(table, rows)
    same = ours.token_ids == theirs.token_ids
    assert same.mean() > 0.99
    greedy = np.array([mine.params.temperature == 0 for mine in rows])
    assert same[greedy].all()
    assert not ours.failed.any()
    np.testing.assert_allclose(ours.logprobs[same], theirs.logprobs[same], rtol=2e-6, atol=2e-6)
    for mine, other in zip(ours.top, theirs.top, strict=True):
        assert (mine is None) == (other is None)
        if mine is not None and other is not None:
            assert mine.token_ids == other.token_ids
            assert mine.logprobs == pytest.approx(other.logprobs, rel=2e-6, abs=2e-6)


def test_an_id_outside_the_vocabulary_is_refused(native: Sample) -> None:
    with pytest.raises(NativeError, match="not in the vocabulary"):
        native(logits(3), [row(), row(repetition_penalty=2.0, prompt=(VOCAB,)), row()])
    with pytest.raises(NativeError, match="not in the vocabulary"):
        native(logits(3), [row(num_logprobs=0)] * 3, np.array([1, VOCAB, 3], np.int32))
    assert not native(logits(3), [row()] * 3).failed.any()


def test_a_native_draw_is_the_pinned_one(native: Sample) -> None:
    """Over a flat distribution the drawn id is the draw itself."""
    size = 1 << 16
    for seed, choice, position in [(0, 0, 0), (1234, 0, 0), (1234, 1, 7), (2**64 - 1, 15, 2**33)]:
        mine = row(position, choice=choice, seed=seed)
        drawn = native(np.zeros((1, size), np.float32), [mine]).token_ids[0]
        assert drawn == int(uniform(seed, choice, position) * size)
