"""One planned step as a value: the whole interface between the policy and whoever runs it.

Knows nothing of how the rows were chosen or of devices.
"""

from dataclasses import dataclass
from typing import NamedTuple

from worker.engine.sequence import Sequence


class Row(NamedTuple):
    """Consecutive tokens of one sequence to compute. A tuple: made for each sequence in each step."""

    sequence: Sequence
    run: int
    """The sequence's run this row belongs to: results are applied by identity, never by place."""
    start: int
    """Position of the first token."""
    num_tokens: int
    is_decode: bool
    """Generation goes on, one token; otherwise prefill (also of a resumed sequence)."""
    samples: bool
    """The last token's logits give the next token."""


@dataclass(frozen=True, slots=True)
class StepPlan:
    """Rows of one step, decode before prefill."""

    step: int
    rows: tuple[Row, ...]
    num_decode_tokens: int
    num_prefill_tokens: int
    preempted: tuple[Sequence, ...]
    """Lost their pages while this step was planned; none of them has a row."""
    has_outputs: bool
    """There is something to tell even when there are no rows."""
