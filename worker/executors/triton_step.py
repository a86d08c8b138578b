"""Turns a batch into what the GPU's kernels read, on the device, once per step.

Knows batches and pages; knows nothing of layers or weights.
"""

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from worker.engine.batch import Batch
from worker.kernels.paged_attention_triton import PagedBatch


@dataclass(frozen=True, slots=True, kw_only=True)
class TritonStep:
    """One batch on a device. No row is padding."""

    ids: Tensor
    """[T] int32"""
    positions: Tensor
    """[T] int32"""
    slots: Tensor
    """[T] int32: page * page_size + token of the page, where a token's keys and values go."""
    out_rows: Tensor
    """[O] int32"""
    batch: PagedBatch
    is_decode: bool
    """Whether every sequence has one row."""
    max_context: int

    @classmethod
    def of(cls, batch: Batch, *, page_size: int, device: torch.device) -> "TritonStep":
        """Return the step of a batch."""
        counts = np.diff(batch.query_start)
        sequence = np.repeat(np.arange(len(counts)), counts)
        pages = batch.page_table[sequence, batch.positions // page_size]
        slots = pages * page_size + batch.positions % page_size

        def on_device(values: NDArray[np.int32]) -> Tensor:
            return torch.from_numpy(np.ascontiguousarray(values, np.int32)).to(device)

        return cls(
            ids=on_device(batch.ids),
            positions=on_device(batch.positions),
            slots=on_device(slots),
            out_rows=on_device(batch.out_rows),
            batch=PagedBatch(
                query_start=on_device(batch.query_start),
                context_len=on_device(batch.context_len),
                page_table=on_device(batch.page_table),
            ),
            is_decode=bool((counts == 1).all()),
            max_context=int(batch.context_len.max()),
        )
