"""Draws tokens with the native sampler: the same rows and results as `worker.engine.sampler.sample`.

Knows how rows become structs; the order of operations is in `sampler.cc`.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from worker.engine.batch import Int32, SampleRow, StepResult, TopLogprobs
from worker.executors.native.library import Library
from worker.executors.native.library import SampleRow as NativeRow


class NativeRows:
    """Rows as the library reads them: made while a step computes, since only its logits are missing then."""

    def __init__(self, rows: Sequence[SampleRow], *, num_behind: int = 0) -> None:
        """Args:
        num_behind: How many of the first rows are a token behind (see `Batch.feeds`).
        """
        self.num_logprobs = [row.params.num_logprobs or 0 for row in rows]
        """[O] alternatives that each row asks for."""
        self._builder = _RowBuilder()
        self.structs = (NativeRow * len(rows))(*map(self._builder.build, rows))
        for struct in self.structs[:num_behind]:
            struct.position += 1


@dataclass(frozen=True, slots=True)
class Draw:
    """Tokens that the library draws, and all that it reads and writes meanwhile."""

    number: int
    """To be waited for."""
    logits: NDArray[np.float32]
    rows: NativeRows
    targets: Int32 | None
    token_ids: Int32
    failed: NDArray[np.bool_]
    logprobs: NDArray[np.float32]
    top_ids: Int32
    top_logprobs: NDArray[np.float32]

    def result(self) -> StepResult:
        """Return what was drawn, once it has been waited for."""
        vocab_size = self.logits.shape[1]
        top = tuple(
            _top(self.top_ids[i], self.top_logprobs[i], min(count, vocab_size), self.failed[i])
            for i, count in enumerate(self.rows.num_logprobs)
        )
        return StepResult(token_ids=self.token_ids, failed=self.failed, logprobs=self.logprobs, top=top)


def begin_sample(
    library: Library,
    engine: int,
    logits: NDArray[np.float32],
    rows: NativeRows,
    targets: Int32 | None = None,
) -> Draw:
    """Draw one token for each row, behind all that has begun. logits: [O, V] float32, unchanged; rows: [O].

    Whoever waits for it gets a NativeError where a row names an id outside the vocabulary.

    Args:
        targets: [O] see `Batch.targets`.
    """
    num_rows, vocab_size = logits.shape
    assert num_rows == len(rows.num_logprobs), "one row of logits for each drawn token"
    max_top = max(rows.num_logprobs, default=0)
    token_ids = np.zeros(num_rows, np.int32)
    failed = np.zeros(num_rows, np.bool_)
    logprobs = np.zeros(num_rows, np.float32)
    top_ids = np.zeros((num_rows, max_top), np.int32)
    top_logprobs = np.zeros((num_rows, max_top), np.float32)
    number = library.begin(
        "begin_sample",
        engine,
        logits.ctypes.data,
        vocab_size,
        num_rows,
        rows.structs,
        None if targets is None else targets.ctypes.data,
        max_top,
        *(array.ctypes.data for array in (token_ids, failed, logprobs, top_ids, top_logprobs)),
    )
    return Draw(number, logits, rows, targets, token_ids, failed, logprobs, top_ids, top_logprobs)


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
