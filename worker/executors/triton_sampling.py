"""What the device's sampler reads and writes: rows and results of `worker.engine.sampler.sample`, as arrays.

Knows how rows become arrays; what is done with them is in `worker.kernels.sampling`.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from services.domain.generation import MAX_LOGPROBS
from worker.engine.batch import Int32, SampleRow, StepResult, TopLogprobs
from worker.kernels import sampling as contract

Float32 = NDArray[np.float32]
ResultArrays = Callable[[str], NDArray[Any]]
"""Gives what a step has drawn, by the contract's names."""
_NO_ENTRIES = (np.empty((0, 3), np.int32), np.empty(0, np.float32))


@dataclass(frozen=True, slots=True)
class SamplingRows:
    """What the kernels read of a step's rows, on the host; columns as the contract names them."""

    numbers: NDArray[np.float64]
    integers: NDArray[np.int64]
    entries: Int32
    biases: Float32
    max_top: int
    """Most alternatives that a row asks for."""


def rows_as_arrays(rows: Sequence[SampleRow], vocab_size: int, targets: Int32 | None = None) -> SamplingRows:
    """Return the arrays of a step.

    Args:
        rows: One for each row of logits.
        vocab_size: Ids lie below it.
        targets: See `Batch.targets`.

    Raises:
        ValueError: A row names an id outside the vocabulary.
    """
    numbers = np.zeros((len(rows), contract.NUMBERS), np.float64)
    integers = np.zeros((len(rows), contract.INTEGERS), np.int64)
    parts = []
    first = 0
    for i, row in enumerate(rows):
        params = row.params
        numbers[i] = (
            params.temperature,
            params.top_p,
            params.min_p,
            params.repetition_penalty,
            params.presence_penalty,
            params.frequency_penalty,
        )
        entries, biases = _entries_of(row)
        if len(entries) and not (entries[:, 0].min() >= 0 and entries[:, 0].max() < vocab_size):
            raise ValueError(f"row {i} names an id that is not in the vocabulary of {vocab_size}")
        parts.append((entries, biases))
        seed = np.array(params.seed, np.uint64).astype(np.int64)
        num_logprobs = -1 if params.num_logprobs is None else params.num_logprobs
        target = -1 if targets is None else targets[i]
        last = first + len(entries)
        integers[i] = (seed, row.position, row.choice, params.top_k, num_logprobs, first, last, target)
        first = last
    max_top = max((row.params.num_logprobs or 0 for row in rows), default=0)
    assert max_top <= MAX_LOGPROBS
    all_entries, all_biases = zip(*(parts or [_NO_ENTRIES]), strict=True)
    return SamplingRows(numbers, integers, np.concatenate(all_entries), np.concatenate(all_biases), max_top)


def result_of(arrays: ResultArrays, rows: Sequence[SampleRow], vocab_size: int) -> StepResult:
    """Return what a step drew. arrays: [O, ...] on the host, named as in the contract."""
    failed = arrays("failed").astype(np.bool_)
    top: list[TopLogprobs | None] = [None] * len(rows)
    counts = [min(row.params.num_logprobs or 0, vocab_size) for row in rows]
    if any(counts):
        top_ids, top_logprobs = arrays("top_ids"), arrays("top_logprobs")
        for i, count in enumerate(counts):
            if count and not failed[i]:
                ids, logprobs = top_ids[i, :count].tolist(), top_logprobs[i, :count].tolist()
                top[i] = TopLogprobs(tuple(ids), tuple(logprobs))
    return StepResult(
        token_ids=arrays("token_ids"), failed=failed, logprobs=arrays("logprobs"), top=tuple(top)
    )


def _entries_of(row: SampleRow) -> tuple[Int32, Float32]:
    """Return every id of which a row changes the logit: [n, 3] and the biases [n]."""
    params = row.params
    # History goes along only where a penalty reads it: long prompts cost nothing otherwise.
    repeats = params.repetition_penalty != 1
    penalises = params.presence_penalty != 0 or params.frequency_penalty != 0
    output = row.output_ids if repeats or penalises else ()
    if not (output or repeats or params.logit_bias or row.forbidden_ids):
        return _NO_ENTRIES
    output_ids = np.fromiter(output, np.int64)
    seen = np.concatenate((np.fromiter(row.prompt_ids if repeats else (), np.int64), output_ids))
    bias_ids = np.fromiter(params.logit_bias, np.int64)
    forbidden = np.fromiter(row.forbidden_ids, np.int64)
    ids = np.unique(np.concatenate((seen, bias_ids, forbidden)))
    entries = np.zeros((len(ids), 3), np.int32)
    entries[:, 0] = ids
    if repeats:
        entries[np.searchsorted(ids, seen), 1] = 1
    np.add.at(entries[:, 2], np.searchsorted(ids, output_ids), 1)
    biases = np.zeros(len(ids), np.float32)
    biases[np.searchsorted(ids, bias_ids)] = np.fromiter(params.logit_bias.values(), np.float32)
    biases[np.searchsorted(ids, forbidden)] = -np.inf
    return entries, biases
