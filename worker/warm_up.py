"""The steps after which every kernel is compiled that a step can launch: a worker runs them before it serves.

Triton compiles a kernel when it is first launched with other types, tiles, or numbers of another kind: 1, a
multiple of 16, any other. So a few steps cover all: each kind of number on each step of the products' ladder,
of tokens, of rows of logits and of sequences. Knows the tuning table's rows and how Triton tells numbers
apart; knows nothing of kernels. `tests/unit/worker/test_warm_up.py` proves that nothing is left.

Source: triton/runtime/jit.py, `create_function_from_signature`.
"""

from collections.abc import Iterator, Sequence

from worker.engine.batch import Batch
from worker.executors.base import StepLimits
from worker.kernels import linear_tuning
from worker.largest_steps import batch_of, largest_steps, spread

_ALIGNED = 16
"""Triton compiles another kernel for numbers that this divides."""


def warm_up_steps(limits: StepLimits) -> tuple[Batch, ...]:
    """Return the steps, the largest ones last; every page is page 0."""
    return (*_steps(limits, linear_tuning.row_steps()), *largest_steps(limits))


def _steps(limits: StepLimits, row_steps: Sequence[int]) -> Iterator[Batch]:
    outputs = _kinds(row_steps, min(limits.max_outputs, limits.max_step_tokens))
    sequences = _kinds((), limits.max_sequences)
    tokens = [rows for rows in _kinds(row_steps, limits.max_step_tokens) if rows > 1]
    for i in range(max(len(outputs), len(sequences), len(tokens))):
        # A kernel looks at one of the three, so each goes through its kinds by itself.
        seats, rows = sequences[i % len(sequences)], outputs[i % len(outputs)]
        for num_tokens in {tokens[i % len(tokens)], max(rows, seats + 1)}:
            counts = spread(num_tokens, min(seats, num_tokens - 1), limits.max_context_tokens)
            yield batch_of(counts, limits, num_outputs=rows)
    for seats in _kinds(row_steps, limits.max_sequences):
        # Without a row of logits it is none of those that are captured.
        yield batch_of([1] * seats, limits, num_outputs=0)
        yield batch_of([1] * seats, limits)


def _kinds(steps: Sequence[int], most: int) -> list[int]:
    """Return, of the numbers up to `most`, one of each kind in each of the ranges that end with `steps`.

    Worked number: steps at 16 and 64 and at most 100: 1, 2, 16, 17, 32, 65, 80.
    """
    found = [1]
    low = 0
    for high in (*(step for step in steps if step < most), most):
        aligned = low + _ALIGNED - low % _ALIGNED
        odd = max(low + 1, 2)
        found += [number for number in (odd + (odd % _ALIGNED == 0), aligned) if number <= high]
        low = high
    return sorted(set(found))
