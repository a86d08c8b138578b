"""What narrows or bends a distribution before a token is drawn, for every sampler.

Knows filters, penalties, biases and forbidden ids; `test_sampler_contract.py` holds the drawing itself.
"""

import math

import numpy as np
import pytest

from tests.fakes.sampler_rows import Sample, draws, logits, row
from worker.engine.batch import SampleRow
from worker.engine.counter_random import uniform


def test_forbidden_ids_are_never_drawn_and_forbidding_all_fails(sample: Sample) -> None:
    table = np.array([[9, 1, 0]], np.float32)
    assert sample(table, [row(temperature=0, forbidden=frozenset({0}))]).token_ids[0] == 1
    assert sample(table, [row(forbidden=frozenset({0, 1, 2}))]).failed[0]
    assert table[0, 0] == 9, "the caller's logits are left alone"


def test_top_k_keeps_the_best_and_breaks_ties_by_id(sample: Sample) -> None:
    assert draws(sample, [1.0, 3.0, 3.0, 3.0, 0.0], 300, top_k=2).nonzero()[0].tolist() == [1, 2]


def test_top_p_keeps_the_smallest_set_that_holds_the_mass(sample: Sample) -> None:
    probabilities = [0.5, 0.3, 0.15, 0.05]
    values = [math.log(p) for p in probabilities]
    assert draws(sample, values, 300, top_p=0.49).nonzero()[0].tolist() == [0]
    assert draws(sample, values, 300, top_p=0.75).nonzero()[0].tolist() == [0, 1]
    assert draws(sample, values, 2000, top_p=0.9).nonzero()[0].tolist() == [0, 1, 2]
    assert draws(sample, values, 20, top_p=1e-6).nonzero()[0].tolist() == [0]


def test_top_p_over_a_flat_distribution_keeps_its_share(sample: Sample) -> None:
    kept = draws(sample, [0.0] * 1000, 5000, top_p=0.5)
    assert kept[:500].min() >= 0
    assert kept[500:].sum() == 0, "among equals the lowest ids are kept"


def test_min_p_is_relative_to_the_best(sample: Sample) -> None:
    values = [math.log(p) for p in (0.6, 0.3, 0.07, 0.03)]
    assert draws(sample, values, 2000, min_p=0.1).nonzero()[0].tolist() == [0, 1, 2]
    assert draws(sample, values, 50, min_p=1.0).nonzero()[0].tolist() == [0]


@pytest.mark.failure("B088")
def test_penalties_of_rows_with_very_different_histories_do_not_mix(sample: Sample) -> None:
    """One row has a history of three ids, its neighbour one of thousands; each draws as it does alone."""
    table = logits(2)
    num_ids = table.shape[1]
    bends = {"presence_penalty": 2.0, "frequency_penalty": 2.0, "repetition_penalty": 1.5, "temperature": 0}
    best = np.argsort(-table, axis=1)[:, :40]
    short = row(prompt=(int(best[0, 0]),), output=tuple(map(int, best[0, 1:3])), **bends)
    long = row(prompt=tuple(range(num_ids)) * 3, output=tuple(map(int, best[1, :39])) * 5, **bends)
    together = sample(table, [short, long]).token_ids.tolist()
    alone = [int(sample(table[i : i + 1], [one]).token_ids[0]) for i, one in enumerate((short, long))]
    assert together == alone
    assert together[0] not in short.output_ids, "it was bent by its own history"
    assert together[1] not in long.output_ids
    unbent = [int(best[0, 0]), int(best[1, 0])]
    assert together != unbent


@pytest.mark.failure("B088")
def test_penalties_read_their_own_history(sample: Sample) -> None:
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


def test_logit_bias_moves_the_choice(sample: Sample) -> None:
    table = np.array([[5.0, 0.0, 0.0]], np.float32)
    assert sample(table, [row(temperature=0, logit_bias={2: 100.0})]).token_ids[0] == 2
    assert draws(sample, [5.0, 0.0, 0.0], 300, logit_bias={0: -100.0})[0] == 0


def test_a_large_vocabulary_matches_a_plain_reference(sample: Sample) -> None:
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
