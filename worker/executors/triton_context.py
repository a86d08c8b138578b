"""What the operations of a bound plan share: the memory that steps work in, and one step's part of it.

Knows shapes' owners alone; knows nothing of operations or of how memory is laid out.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from torch import Tensor

from worker.executors.triton_step import TritonStep
from worker.kernels.kv_pages_torch import LayerKv
from worker.kernels.paged_attention_triton import SplitMemory


@dataclass(frozen=True, slots=True)
class StepContext:
    """What operations of one step share."""

    step: TritonStep
    slots: Sequence[Tensor]
    kv: Sequence[LayerKv]
    """By layer."""
    splits: SplitMemory
    """For the largest step that decodes."""
    pieces: Tensor
    """Room for the sums of any product, which leaves nothing there."""


@dataclass(frozen=True, slots=True)
class PlanMemory:
    """What steps work in, each part as large as the largest step needs it."""

    slots: Sequence[Tensor]
    splits: SplitMemory
    pieces: Tensor
    logits: Tensor
    """The slot that a run returns rows of."""


Run = Callable[[StepContext], None]
"""Launches one operation."""
