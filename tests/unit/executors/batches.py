"""Batches by hand and the logits that an executor gives for them."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from services.domain.generation import SamplingParams
from worker.engine.batch import Batch, SampleRow, StepResult

GREEDY = SamplingParams(temperature=0)


class TappedExecutor(Protocol):
    """An executor that shows its logits."""

    on_logits: Callable[[Batch, NDArray[np.float32]], None] | None

    def execute(self, batch: Batch) -> StepResult: ...


@dataclass(frozen=True)
class Part:
    """Tokens of one sequence in a step: those from `start` on, with the pages of the whole sequence."""

    ids: Sequence[int]
    start: int
    pages: Sequence[int]


def make_batch(parts: Sequence[Part], *, every_row: bool = True) -> Batch:
    """Return a greedy batch that wants logits of every row, or of each part's last one."""
    lengths = [len(part.ids) for part in parts]
    query_start = np.concatenate([[0], np.cumsum(lengths)])
    page_table = np.zeros((len(parts), max(len(part.pages) for part in parts)), np.int32)
    for i, part in enumerate(parts):
        page_table[i, : len(part.pages)] = part.pages
    out_rows = np.arange(query_start[-1]) if every_row else query_start[1:] - 1
    row = SampleRow(params=GREEDY, choice=0, position=0, prompt_ids=(), output_ids=())
    return Batch(
        ids=np.concatenate([np.array(part.ids, np.int32) for part in parts]),
        positions=np.concatenate(
            [np.arange(part.start, part.start + len(part.ids), dtype=np.int32) for part in parts]
        ),
        query_start=query_start.astype(np.int32),
        context_len=np.array([part.start + len(part.ids) for part in parts], np.int32),
        page_table=page_table,
        out_rows=out_rows.astype(np.int32),
        sampling=(row,) * len(out_rows),
    )


def logits_of(
    executor: TappedExecutor, parts: Sequence[Part], *, every_row: bool = True
) -> NDArray[np.float32]:
    """Execute one step and return its logits [O, vocab]."""
    seen: list[NDArray[np.float32]] = []
    executor.on_logits = lambda batch, logits: seen.append(logits.copy())
    executor.execute(make_batch(parts, every_row=every_row))
    executor.on_logits = None
    return seen[0]


def assert_any_schedule_gives(
    expected: Sequence[NDArray[np.float32]],
    logits: Callable[[Sequence[Part]], NDArray[np.float32]],
    sequences: Sequence[Sequence[int]],
    pages: Sequence[NDArray[np.int64]],
    rng: np.random.Generator,
) -> None:
    """Compute sequences in chunks of any size and company; each row is what it is `expected` to be."""
    done = [0] * len(sequences)
    while any(done[i] < len(ids) for i, ids in enumerate(sequences)):
        parts, owners = [], []
        for i in rng.permutation(len(sequences)):
            left = len(sequences[i]) - done[i]
            if left and rng.random() < 0.7:
                count = min(left, int(rng.choice([1, 1, 2, 5, 16, 33, 64, 100])))
                parts.append(Part(sequences[i][done[i] : done[i] + count], done[i], pages[i].tolist()))
                owners.append(i)
        if not parts:
            continue
        rows = logits(parts)
        for i, part in zip(owners, parts, strict=True):
            mine, rows = np.split(rows, [len(part.ids)])
            assert np.array_equal(mine, expected[i][done[i] : done[i] + len(part.ids)])
            done[i] += len(part.ids)
