"""Drawing tokens from logits."""

import math

import numpy as np
import pytest

from services.domain.generation import SamplingParams
from worker.engine.batch import SampleRow
from worker.engine.counter_random import philox4x32, uniform
from worker.engine.sampler import LOWEST_LOGPROB, sample

VOCAB = 2000


def row(
    position: int = 0,
    prompt: tuple[int, ...] = (1,),
    output: tuple[int, ...] = (),
    forbidden: frozenset[int] = frozenset(),
    choice: int = 0,
    **params: object,
) -> SampleRow:
    return SampleRow(
        params=SamplingParams(**params),  # type: ignore[arg-type]
        choice=choice,
        position=position,
        prompt_ids=prompt,
        output_ids=output,
        forbidden_ids=forbidden,
    )


def logits(num_rows: int, seed: int = 0, vocab: int = VOCAB, scale: float = 3.0) -> np.ndarray:
    return (np.random.default_rng(seed).standard_normal((num_rows, vocab)) * scale).astype(np.float32)


def draws(values: list[float], count: int, **params: object) -> np.ndarray:
    """Counts of each id over `count` draws from one distribution."""
    table = np.tile(np.array(values, np.float32), (count, 1))
    result = sample(table, [row(position=i, seed=9, **params) for i in range(count)])
    return np.bincount(result.token_ids, minlength=len(values))


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


def test_greedy_takes_the_best_and_the_lowest_id_of_a_tie() -> None:
    table = np.array([[0, 5, 5, 1], [2, 1, 0, 2]], np.float32)
    assert sample(table, [row(temperature=0), row(temperature=0)]).token_ids.tolist() == [1, 0]


@pytest.mark.failure("B085")
@pytest.mark.parametrize("temperature", [0.5, 1.0, 2.0])
def test_frequencies_follow_the_distribution(temperature: float) -> None:
    values = [0.0, 1.0, 2.0, -1.0, 0.5]
    count = 20_000
    weights = np.exp(np.array(values) / temperature)
    expected = weights / weights.sum() * count
    observed = draws(values, count, temperature=temperature)
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
def test_a_row_draws_the_same_alone_and_in_any_company(params: dict[str, object]) -> None:
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
def test_a_bad_row_fails_alone(temperature: float) -> None:
    table = logits(5)
    clean = sample(table, [row(temperature=temperature, position=i) for i in range(5)])
    table[0, :] = np.nan
    table[1, 77] = np.nan
    table[2, 3] = np.inf
    table[3, :] = -np.inf
    result = sample(table, [row(temperature=temperature, position=i, num_logprobs=2) for i in range(5)])
    assert result.failed.tolist() == [True, True, True, True, False]
    assert result.token_ids[4] == clean.token_ids[4]


def test_some_ids_may_be_impossible() -> None:
    table = np.array([[-np.inf, 1, -np.inf, 1]], np.float32)
    result = sample(table, [row(num_logprobs=4)])
    assert not result.failed[0]
    assert result.token_ids[0] in (1, 3)


def test_forbidden_ids_are_never_drawn_and_forbidding_all_fails() -> None:
    table = np.array([[9, 1, 0]], np.float32)
    assert sample(table, [row(temperature=0, forbidden=frozenset({0}))]).token_ids[0] == 1
    assert sample(table, [row(forbidden=frozenset({0, 1, 2}))]).failed[0]
    assert table[0, 0] == 9, "the caller's logits are left alone"


def test_top_k_keeps_the_best_and_breaks_ties_by_id() -> None:
    assert draws([1.0, 3.0, 3.0, 3.0, 0.0], 300, top_k=2).nonzero()[0].tolist() == [1, 2]


def test_top_p_keeps_the_smallest_set_that_holds_the_mass() -> None:
    probabilities = [0.5, 0.3, 0.15, 0.05]
    values = [math.log(p) for p in probabilities]
    assert draws(values, 300, top_p=0.5).nonzero()[0].tolist() == [0]
    assert draws(values, 300, top_p=0.75).nonzero()[0].tolist() == [0, 1]
    assert draws(values, 2000, top_p=0.9).nonzero()[0].tolist() == [0, 1, 2]
    assert draws(values, 20, top_p=1e-6).nonzero()[0].tolist() == [0]


def test_top_p_over_a_flat_distribution_keeps_its_share() -> None:
    kept = draws([0.0] * 1000, 5000, top_p=0.5)
    assert kept[:500].min() >= 0
    assert kept[500:].sum() == 0, "among equals the lowest ids are kept"


def test_min_p_is_relative_to_the_best() -> None:
    values = [math.log(p) for p in (0.6, 0.3, 0.07, 0.03)]
    assert draws(values, 2000, min_p=0.1).nonzero()[0].tolist() == [0, 1, 2]
    assert draws(values, 50, min_p=1.0).nonzero()[0].tolist() == [0]


@pytest.mark.failure("B088")
def test_penalties_read_their_own_history() -> None:
    table = np.array([[2.0, 2.0, 2.0, -2.0]], np.float32)
    greedy = {"temperature": 0}
    assert sample(table, [row(prompt=(0, 1), repetition_penalty=1.5, **greedy)]).token_ids[0] == 2
    assert sample(table, [row(prompt=(0,), output=(1,), repetition_penalty=1.5, **greedy)]).token_ids[0] == 2
    assert sample(table, [row(prompt=(0,), presence_penalty=2.0, **greedy)]).token_ids[0] == 0
    assert sample(table, [row(output=(0,), presence_penalty=2.0, **greedy)]).token_ids[0] == 1
    twice = row(output=(0, 0, 1), frequency_penalty=0.5, presence_penalty=0.0, **greedy)
    assert sample(table, [twice]).token_ids[0] == 2
    negative = np.array([[-1.0, -1.2]], np.float32)
    assert sample(negative, [row(prompt=(0,), repetition_penalty=1.5, **greedy)]).token_ids[0] == 1


def test_logit_bias_moves_the_choice() -> None:
    table = np.array([[5.0, 0.0, 0.0]], np.float32)
    assert sample(table, [row(temperature=0, logit_bias={2: 100.0})]).token_ids[0] == 2
    assert draws([5.0, 0.0, 0.0], 300, logit_bias={0: -100.0})[0] == 0


@pytest.mark.failure("B080")
@pytest.mark.failure("B079")
def test_logprobs_are_of_the_raw_distribution_and_finite() -> None:
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
def test_zero_logprobs_means_the_drawn_token_only() -> None:
    result = sample(logits(2), [row(num_logprobs=0), row()])
    assert result.top == (None, None)
    assert result.logprobs[0] < 0
    assert result.logprobs[1] == 0


def test_a_large_vocabulary_matches_a_plain_reference() -> None:
    """The partitioned filters keep what a full sort would."""
    table = logits(20, vocab=50_000, scale=1.0)
    for i in range(20):
        mine = row(position=i, top_p=0.6, top_k=30_000, min_p=0.001, temperature=0.9)
        drawn = int(sample(table[i : i + 1], [mine]).token_ids[0])
        assert drawn == _reference(table[i], mine)


def _reference(values: np.ndarray, mine: SampleRow) -> int:
    scaled = (values - values.max()) / np.float32(mine.params.temperature)
    weights = np.exp(scaled.astype(np.float32)).astype(np.float64)
    order = np.argsort(-weights, kind="stable")[: mine.params.top_k]
    mass = np.cumsum(weights[order])
    order = order[: int(np.searchsorted(mass, mine.params.top_p * mass[-1])) + 1]
    kept = np.sort(order[weights[order] >= mine.params.min_p])
    cumulative = np.cumsum(weights[kept])
    target = uniform(mine.params.seed, mine.choice, mine.position) * cumulative[-1]
    return int(kept[np.searchsorted(cumulative, target, side="right")])
