"""Draws tokens with the native sampler: the same rows and results as `worker.engine.sampler.sample`.

Knows how rows become structs; the order of operations is in `sampler.cc`.
"""

from collections.abc import Iterable, Sequence

import numpy as np
from numpy.typing import NDArray

from worker.engine.batch import Int32, SampleRow, StepResult, TopLogprobs
from worker.executors.native.library import Library
from worker.executors.native.library import SampleRow as NativeRow


class NativeRows:
    """Rows as the library reads them: made while a step computes, since only its logits are missing then."""

    def __init__(self, rows: Sequence[SampleRow]) -> None:
        self.rows = rows
        self.max_top = max((row.params.num_logprobs or 0 for row in rows), default=0)
        """Most alternatives that a row asks for."""
        self._builder = _RowBuilder()
        self.structs = (NativeRow * len(rows))(*map(self._builder.build, rows))


def sample(
    library: Library,
    engine: int,
    logits: NDArray[np.float32],
    native: NativeRows,
    targets: Int32 | None = None,
) -> StepResult:
    """Draw one token for each row. logits: [O, V] float32, unchanged; native: [O].

    Args:
        targets: [O] see `Batch.targets`.

    Raises:
        NativeError: A row names an id outside the vocabulary.
    """
    rows, max_top = native.rows, native.max_top
    num_rows, vocab_size = logits.shape
    assert num_rows == len(rows), "one row of logits for each drawn token"
    token_ids = np.zeros(num_rows, np.int32)
    failed = np.zeros(num_rows, np.bool_)
    logprobs = np.zeros(num_rows, np.float32)
    top_ids = np.zeros((num_rows, max_top), np.int32)
    top_logprobs = np.zeros((num_rows, max_top), np.float32)
    if num_rows:
        library.check(
            "sample",
            engine,
            logits.ctypes.data,
            vocab_size,
            num_rows,
            native.structs,
            None if targets is None else targets.ctypes.data,
            max_top,
            *(array.ctypes.data for array in (token_ids, failed, logprobs, top_ids, top_logprobs)),
        )
    top = tuple(
        _top(top_ids[i], top_logprobs[i], min(row.params.num_logprobs or 0, vocab_size), failed[i])
        for i, row in enumerate(rows)
    )
    return StepResult(token_ids=token_ids, failed=failed, logprobs=logprobs, top=top)


class _RowBuilder:
    """Makes structs of rows, and keeps the arrays they point to."""

    def __init__(self) -> None:
        self._arrays: list[NDArray[np.int32] | NDArray[np.float32]] = []

    def build(self, row: SampleRow) -> NativeRow:
        params = row.params
        # History goes along only where a penalty reads it: long prompts cost nothing otherwise.
        repeats = params.repetition_penalty != 1
        penalises = params.presence_penalty != 0 or params.frequency_penalty != 0
        prompt_ids = row.prompt_ids if repeats else ()
        output_ids = row.output_ids if repeats or penalises else ()
        bias = params.logit_bias
        return NativeRow(
            params.temperature,
            params.top_p,
            params.min_p,
            params.repetition_penalty,
            params.presence_penalty,
            params.frequency_penalty,
            params.seed,
            row.position,
            row.choice,
            params.top_k,
            -1 if params.num_logprobs is None else params.num_logprobs,
            len(prompt_ids),
            len(output_ids),
            len(bias),
            len(row.forbidden_ids),
            self._ids(prompt_ids),
            self._ids(output_ids),
            self._ids(bias),
            self._address(np.fromiter(bias.values(), np.float32)) if bias else None,
            self._ids(row.forbidden_ids),
        )

    def _ids(self, ids: Iterable[int]) -> int | None:
        return self._address(np.fromiter(ids, np.int32)) if ids else None

    def _address(self, array: NDArray[np.int32] | NDArray[np.float32]) -> int:
        self._arrays.append(array)
        return int(array.ctypes.data)


def _top(
    ids: NDArray[np.int32], logprobs: NDArray[np.float32], count: int, failed: np.bool_
) -> TopLogprobs | None:
    if count == 0 or failed:
        return None
    return TopLogprobs(tuple(ids[:count].tolist()), tuple(logprobs[:count].tolist()))
