"""A batch as the library reads it, and where its logits go: arrays that nobody changes while a step runs.

Knows `QuireBatch`; knows no engine.
"""

import mmap
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from worker.engine.batch import Batch, Int32
from worker.executors.native.library import Batch as NativeBatch


@dataclass(frozen=True, slots=True)
class StepArrays:
    """What a step reads; to be kept until it has ended."""

    struct: NativeBatch
    arrays: tuple[Int32, ...]
    """What the struct points to, field by field."""


def copy_of(batch: Batch) -> StepArrays:
    """Copy a batch: it changes when the step before is taken in, which may be while this one runs."""
    arrays = tuple(
        np.array(array, np.int32, order="C")
        for array in (
            batch.ids,
            batch.positions,
            batch.query_start,
            batch.context_len,
            batch.page_table,
            batch.out_rows,
            () if batch.feeds is None else batch.feeds,
        )
    )
    num_sequences, table_width = batch.page_table.shape
    sizes = (len(batch.ids), num_sequences, len(batch.out_rows), table_width, len(arrays[-1]))
    return StepArrays(NativeBatch(*sizes, *(array.ctypes.data for array in arrays)), arrays)


def room_for_logits(num_rows: int, vocab_size: int) -> NDArray[np.float32]:
    """Return memory for logits [num_rows, vocab_size] that the system has back when it is dropped.

    Rows that nobody has written take none. From the heap, which keeps what a buffer leaves that outgrew it, a
    worker came to hold them twice.

    Raises:
        MemoryError: There is not so much.
    """
    try:
        room = mmap.mmap(-1, 4 * num_rows * vocab_size)
    except OSError as exc:
        raise MemoryError(f"{num_rows} rows of {vocab_size} logits: {exc}") from exc
    return np.frombuffer(room, np.float32).reshape(num_rows, vocab_size)
