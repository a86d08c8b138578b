"""One planned step: the whole interface between the policy and whoever runs it.

Knows nothing of how the rows were chosen or of devices.
"""

from collections.abc import Sequence as SequenceOf
from dataclasses import dataclass
from typing import NamedTuple

from worker.engine.decode_rows import DecodeRows
from worker.engine.sequence import Sequence


class PrefillRow(NamedTuple):
    """Consecutive tokens to compute of a prompt, or of a sequence that is computed again."""

    sequence: Sequence
    start: int
    """Position of the first token."""
    num_tokens: int
    samples: bool
    """The last token's logits give the next token."""
    num_scored: int
    """Prompt tokens that this chunk's logits score: those that follow the scored ones of earlier chunks."""


@dataclass(frozen=True, slots=True)
class StepPlan:
    """Rows of one step, decode before prefill. Nothing that it refers to changes until it is taken in."""

    step: int
    decodes: DecodeRows
    num_decodes: int
    prefills: tuple[PrefillRow, ...]
    num_prefill_tokens: int
    preempted: tuple[Sequence, ...]
    """Lost their pages while this step was planned; none of them has a row."""
    has_outputs: bool
    """There is something to tell even when there are no rows."""
    rows: tuple[Sequence, ...] | None = None
    """Of a step planned while the one before it ran: whose rows it has, some of which that one may end."""

    @property
    def generating(self) -> SequenceOf[Sequence]:
        """Whose rows the first `num_decodes` are."""
        return self.decodes.sequences if self.rows is None else self.rows

    @property
    def num_rows(self) -> int:
        return self.num_decodes + len(self.prefills)
