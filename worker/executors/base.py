"""What every executor promises to the step loop: torch, native, triton and sim alike.

Knows nothing of scheduling; an executor does what the batch says, in one call per step.
"""

import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from services.domain.ids import Namespace
from worker.engine.batch import Batch, StepResult
from worker.engine.config import MAX_SCORED_TOKENS

LogitsTap = Callable[[Batch, NDArray[np.float32]], None]
"""Given a step's batch and its logits [O, vocab] float32."""


class Tiles(StrEnum):
    """Where a kernel's tiles come from."""

    TUNED = "tuned"
    """Measured on this kind of chip (`bench/tune`)."""
    UNTUNED = "untuned"
    """Chosen without one at hand."""
    NONE = "none"
    """It has no tiles that could be tuned."""


@dataclass(frozen=True, slots=True)
class KernelUse:
    """Which code really reads the weights, or the KV, of a kind of layer."""

    layer_kind: str
    """`embedding`, `attention`, `logits`, or roles of the weights, e.g. `q+k+v` (see `kernel_uses`)."""
    kernel: str
    count: int
    """Operations of the plan that run it."""
    tiles: Tiles = Tiles.NONE


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelProfile:
    """What the loaded model is and costs. Fixed for the life of the worker."""

    model: str
    """Name callers use, e.g. `smollm2-135m-instruct`."""
    revision: str
    """Digest of the weights, hex, 16 characters."""
    namespace: Namespace
    """Digest of weights, KV format, layout and numerics."""
    numerics: str
    """Digest of what decides the bits of a logit: weights, executor, compute and KV format."""
    executor: str
    """`torch`, `native`, `triton` or `sim`."""
    vocab_size: int
    max_context_tokens: int
    page_size: int
    """Tokens in a page."""
    page_bytes: int
    """Bytes of KV of all layers in one page."""
    weight_bytes: int
    kernels: tuple[KernelUse, ...] = ()
    """What layers run on; empty where nothing is computed."""
    is_batch_invariant: bool = True
    """Whether a row's bits depend on its own sequence alone. If not, `numerics` is this process's own."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepLimits:
    """What bounds a step."""

    max_sequences: int
    max_step_tokens: int
    max_context_tokens: int
    """Longest prompt + output of a sequence."""
    page_size: int

    @property
    def max_outputs(self) -> int:
        """Most rows of logits: one for each sequence, and prompt tokens that are scored."""
        return self.max_sequences + MAX_SCORED_TOKENS


class ExecutorFault(Exception):
    """The device or engine is beyond repair: the worker ends and the supervisor restarts it."""


def digest_of(*parts: str) -> str:
    """Return what names all parts together, hex, 32 characters."""
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:32]


def nothing() -> None:
    """What a caller does meanwhile that has nothing to do."""


@runtime_checkable
class OverlappingExecutor(Protocol):
    """An executor whose device runs one step while the next one is prepared. `execute` is both in one."""

    def launch(self, batch: Batch) -> Any:
        """Begin a step and return what `collect` takes; the batch may change then. Two may be under way.

        Raises:
            ExecutorFault: Nothing more can be computed here.
        """

    def collect(self, launched: Any) -> StepResult:
        """Wait for the oldest step under way.

        Raises:
            ExecutorFault: As above.
        """


class Executor(Protocol):
    """A model on a device with its KV memory. Called from one thread only."""

    @property
    def profile(self) -> ModelProfile: ...

    def allocate(self, num_pages: int, *, captures: bool = True) -> None:
        """Allocate the KV memory, once, before the first step.

        Args:
            captures: Whether steps are captured, where a device can: they hold for this memory alone, so a
                profile run, which drops it again, does without.
        """

    def execute(self, batch: Batch, meanwhile: Callable[[], None] = nothing) -> StepResult:
        """Store the batch's keys and values, compute logits of `out_rows` and draw (or score) their tokens.

        A hit equals a miss: a row's logits depend on its own sequence's tokens only, bit for bit,
        whatever else is in the batch and however the prompt was cut into chunks.

        Args:
            meanwhile: Called once, in this thread, as soon as the device computes (before that, where this
                thread is what computes). It leaves the batch as it is.

        Raises:
            ExecutorFault: Nothing more can be computed here. `meanwhile` has been called unless not even the
                step's beginning was possible.
        """

    def close(self) -> None:
        """Release memory and threads."""
