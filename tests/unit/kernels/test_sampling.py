"""The device's sampler, interpreted, against the reference in Python: same ids from the same rows."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch

from tests.fakes.sampler_rows import row
from worker.engine import sampler
from worker.engine.batch import SampleRow, StepResult
from worker.engine.counter_random import uniform
from worker.executors.triton_sampling import result_of, rows_as_arrays
from worker.kernels import sampling_triton
from worker.kernels.sampling_triton import Drawn, SamplingScratch

VOCAB = 500


def logits(num_rows: int, seed: int = 0, vocab: int = VOCAB, scale: float = 3.0) -> np.ndarray:
    return (np.random.default_rng(seed).standard_normal((num_rows, vocab)) * scale).astype(np.float32)


def sample(table: np.ndarray, rows: Sequence[SampleRow], targets: np.ndarray | None = None) -> StepResult:
    scratch = SamplingScratch.allocate(len(table), table.shape[1], torch.device("cpu"))
    for part in (scratch.work, scratch.state, scratch.cuts):
        part.fill_(torch.nan)
    scratch.ids.fill_(-1)
    given = table.copy()
    arrays = rows_as_arrays(rows, table.shape[1], targets)
    inputs = [torch.from_numpy(x) for x in (arrays.numbers, arrays.integers, arrays.entries, arrays.biases)]
    drawn = Drawn.allocate(len(rows), max(arrays.max_top, 1), torch.device("cpu"))
    sampling_triton.sample(torch.from_numpy(given), *inputs, scratch, drawn)
    result = result_of(lambda name: getattr(drawn, name).numpy(), rows, table.shape[1])
    assert np.array_equal(given, table, equal_nan=True), "logits stay as they are"
    return result


def assert_equal(ours: StepResult, theirs: StepResult) -> None:
    assert ours.token_ids.tolist() == theirs.token_ids.tolist()
    np.testing.assert_allclose(ours.logprobs, theirs.logprobs, rtol=2e-6, atol=2e-6)
    for mine, other in zip(ours.top, theirs.top, strict=True):
        assert (mine is None) == (other is None)
        if mine is not None and other is not None:
            assert mine.token_ids == other.token_ids
            assert mine.logprobs == pytest.approx(other.logprobs, rel=2e-6, abs=2e-6)


@pytest.mark.parametrize(
    "scale", [3.0, *(pytest.param(scale, marks=pytest.mark.slow) for scale in (0.3, 10.0))]
)
def test_rows_of_every_kind_draw_what_the_reference_draws(scale: float) -> None:
    rng = np.random.default_rng(int(scale * 10))
    table = logits(10, seed=5, scale=scale)
    table[::7, 100:400] = -np.inf
    rows = []
    for i in range(len(table)):
        prompt, output = (tuple(rng.integers(0, VOCAB, n).tolist()) for n in rng.integers(1, 30, 2))
        params = {
            "temperature": float(rng.choice([0.0, 0.3, 1.0, 2.0])),
            "top_p": [1.0, 0.95, 0.5][i % 3],
            "top_k": [0, 40, 1, 0, VOCAB - 1][i % 5],
            "min_p": [0.0, 0.05][i % 2],
            "repetition_penalty": [1.0, 1.3][i // 2 % 2],
            "presence_penalty": [0.0, 0.5][i // 4 % 2],
            "frequency_penalty": [0.0, -0.5][i // 3 % 2],
            "logit_bias": {int(rng.integers(VOCAB)): 2.0, prompt[0]: -1.5} if i % 3 else {},
            "seed": int(rng.integers(2**62)),
            "num_logprobs": [None, 0, 3][i % 3],
        }
        rows.append(row(i, prompt, output, frozenset(rng.integers(0, VOCAB, i % 4).tolist()), **params))
    assert_equal(sample(table, rows), sampler.sample(table, rows))


def test_a_large_vocabulary_goes_block_by_block() -> None:
    table = logits(3, vocab=9_000, scale=1.0)
    rows = [
        row(0, top_p=0.6, top_k=5_000, min_p=0.001, temperature=0.9),
        row(1, top_p=0.3, seed=7, num_logprobs=2),
        row(2, seed=8),
    ]
    assert_equal(sample(table, rows), sampler.sample(table, rows))


@pytest.mark.failure("B090")
@pytest.mark.parametrize(
    "vocab", [7, 4097, *(pytest.param(vocab, marks=pytest.mark.slow) for vocab in (1, 2, 4095, 8193))]
)
def test_ties_impossible_ids_and_nan_in_odd_vocabularies_are_as_in_the_reference(vocab: int) -> None:
    """Whole logits tie hundreds of times, on both sides of a block's end; the last id is one of its own."""
    table = np.round(logits(8, seed=vocab, vocab=vocab))
    table[0, :-1][np.random.default_rng(vocab).random(vocab - 1) < 0.5] = -np.inf
    table[1, :-1] = -np.inf
    table[2] = -np.inf
    table[3, -1] = np.nan
    rows = [
        row(0, seed=3, top_k=vocab // 3, num_logprobs=2),
        row(1, seed=4, top_p=0.5, num_logprobs=1),
        row(2, seed=5),
        row(3, temperature=0),
        row(4, seed=6, top_k=vocab // 2, top_p=0.4, num_logprobs=3),
        row(5, seed=7, min_p=0.2, temperature=2.0),
        row(6, temperature=0, forbidden=frozenset({vocab // 2}) if vocab > 1 else frozenset()),
        row(7, seed=8, top_p=0.9, presence_penalty=1.0, output=(vocab - 1,)),
    ]
    ours, theirs = sample(table, rows), sampler.sample(table, rows)
    assert ours.failed.tolist() == theirs.failed.tolist() == [place in (2, 3) for place in range(8)]
    usable = ~ours.failed
    assert ours.token_ids[usable].tolist() == theirs.token_ids[usable].tolist()
    assert ours.token_ids[1] == vocab - 1
    np.testing.assert_allclose(ours.logprobs[usable], theirs.logprobs[usable], rtol=2e-6, atol=2e-6)
    assert [top and top.token_ids for top in ours.top] == [top and top.token_ids for top in theirs.top]


def test_a_draw_is_the_pinned_one() -> None:
    """Over a flat distribution the drawn id is the draw itself."""
    size = 1 << 14
    counters = [(0, 0, 0), (1234, 1, 7), (2**64 - 1, 15, 2**33)]
    rows = [row(position, choice=choice, seed=seed) for seed, choice, position in counters]
    drawn = sample(np.zeros((len(rows), size), np.float32), rows).token_ids.tolist()
    assert drawn == [int(uniform(*counter) * size) for counter in counters]


def test_ties_go_to_the_lowest_ids() -> None:
    flat = np.zeros((6, 300), np.float32)
    late = {"position": 2**33, "choice": 15, "seed": 2**64 - 1}
    rows = [
        row(temperature=0),
        row(**late, top_k=10),
        row(**late, top_p=0.5),
        row(**late, top_k=10, top_p=0.35),
        row(**late, min_p=1.0),
        row(**late, top_p=0.5, min_p=1.0),
    ]
    draw_of = uniform(2**64 - 1, 15, 2**33)
    expected = [0, *(int(draw_of * kept) for kept in (10, 150, 4, 300, 150))]
    assert sample(flat, rows).token_ids.tolist() == expected
    assert sampler.sample(flat, rows).token_ids.tolist() == expected


@pytest.mark.failure("B090")
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_row_that_is_not_finite_fails_alone(temperature: float) -> None:
    table = logits(5)
    rows = [row(i, temperature=temperature, num_logprobs=2) for i in range(5)]
    clean = sample(table, rows)
    table[0, :] = np.nan
    table[1, 77] = np.nan
    table[2, 3] = np.inf
    table[3, :] = -np.inf
    result = sample(table, rows)
    assert result.failed.tolist() == [True, True, True, True, False]
    assert result.token_ids[4] == clean.token_ids[4]
    assert result.top[:4] == (None,) * 4
    assert result.top[4] == clean.top[4]


@pytest.mark.failure("B084")
@pytest.mark.failure("B094")
@pytest.mark.parametrize(
    "params",
    [
        {"temperature": 0.0},
        {"seed": 5, "top_p": 0.7, "top_k": 50, "min_p": 0.01},
        {"seed": 5, "repetition_penalty": 1.5, "presence_penalty": 2.0, "num_logprobs": 3},
    ],
)
def test_a_row_draws_the_same_alone_and_in_any_company(params: dict[str, Any]) -> None:
    table = logits(4)
    mine = row(3, (1, 2, 3), (4, 4, 5), **params)
    alone = sample(table[2:3], [mine])
    table[0] = np.nan
    others = [row(i, tuple(range(i + 1)), seed=i, top_k=i % 2, repetition_penalty=1.2) for i in range(4)]
    together = sample(table, [*others[:2], mine, others[3]])
    assert together.token_ids[2] == alone.token_ids[0]
    assert together.logprobs[2] == alone.logprobs[0]
    assert together.top[2] == alone.top[0]


def test_a_given_id_is_scored_and_not_drawn() -> None:
    table, rows = logits(2), [row(num_logprobs=1), row(1, num_logprobs=0, seed=3)]
    targets = np.array([77, -1], np.int32)
    ours, free = sample(table, rows, targets), sample(table, rows)
    exact = table[0].astype(np.float64) - np.log(np.exp(table[0].astype(np.float64)).sum())
    assert ours.token_ids[0] == 77
    assert ours.logprobs[0] == pytest.approx(exact[77], abs=1e-6)
    assert ours.token_ids[1] == free.token_ids[1]


def test_an_id_outside_the_vocabulary_is_refused() -> None:
    with pytest.raises(ValueError, match=f"row 1 names an id that is not in the vocabulary of {VOCAB}"):
        rows_as_arrays([row(), row(repetition_penalty=2.0, prompt=(VOCAB,))], VOCAB)


def test_no_rows_draw_nothing() -> None:
    assert len(sample(logits(0), []).token_ids) == 0
