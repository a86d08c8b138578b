"""One ragged step as arrays: the whole interface between the step loop and an executor.

Knows nothing of requests, tenants or why a row is in the step.
"""

from collections.abc import Sequence as SequenceOf
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from services.domain.generation import SamplingParams

Int32 = NDArray[np.int32]


@dataclass(slots=True)
class SampleRow:
    """How to draw the token that follows one output row.

    Its sequence makes it once and moves it on after each step: whoever draws only reads it, keeping nothing.
    """

    params: SamplingParams
    choice: int
    """Choice index inside the request; part of the random counter."""
    position: int
    """Index of the drawn token among this choice's output tokens, from 0; part of the random counter."""
    prompt_ids: SequenceOf[int]
    output_ids: SequenceOf[int]
    """This sequence's own history, for penalties; no padding."""
    forbidden_ids: frozenset[int] = frozenset()
    """Ids that must not be drawn now (stop ids while below the minimum output)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """T tokens of S sequences, O of which give logits. Prefill, decode and mixed steps look alike."""

    ids: Int32
    """[T] token ids, sequence after sequence."""
    positions: Int32
    """[T] position of each token in its sequence, from 0."""
    query_start: Int32
    """[S + 1] where each sequence's tokens begin in `ids`; the last entry is T."""
    context_len: Int32
    """[S] tokens of the sequence in KV once this step has stored its own."""
    page_table: Int32
    """[S, P] page ids; entries past a sequence's pages are 0 and never read."""
    out_rows: Int32
    """[O] rows of `ids` whose logits are wanted, ascending."""
    sampling: tuple[SampleRow, ...]
    """[O] parallel to `out_rows`."""
    targets: Int32 | None = None
    """[O] ids that follow and are scored instead of drawn; -1: one is drawn. None: all rows draw."""
    feeds: Int32 | None = None
    """[F] output rows of the step launched before, whose draws are the first F ids: those of the first F
    sequences, one each. There `ids` mean nothing, and the first F sampling rows are a token behind. None:
    all ids are known and the step launched before, if any, has been collected."""


@dataclass(frozen=True, slots=True)
class TopLogprobs:
    """Alternatives of one drawn token, most likely first: raw log-probabilities, before any filter."""

    token_ids: tuple[int, ...]
    logprobs: tuple[float, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class StepResult:
    """What one step drew."""

    token_ids: Int32
    """[O] drawn, or the row's target; undefined where `failed`."""
    failed: NDArray[np.bool_]
    """[O] the row's logits held NaN or +Inf, or were all -Inf: that request ends, the others go on."""
    logprobs: NDArray[np.float32]
    """[O] raw log-probability of that token; 0 where it was not asked for."""
    top: tuple[TopLogprobs | None, ...]
    """[O] alternatives where asked for."""

    def select(self, rows: Int32) -> "StepResult":
        """Return some of the rows, in the order given."""
        return StepResult(
            token_ids=self.token_ids[rows],
            failed=self.failed[rows],
            logprobs=self.logprobs[rows],
            top=tuple(self.top[row] for row in rows.tolist()),
        )
