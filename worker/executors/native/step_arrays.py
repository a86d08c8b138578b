"""A batch as the library reads it: arrays of our own, which nobody changes while a step runs.

Knows `QuireBatch`; knows no engine.
"""

from dataclasses import dataclass

import numpy as np

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
