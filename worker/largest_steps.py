"""The steps that take the most memory, as batches on one page: what a profile run measures.

Knows the engine's limits; knows nothing of executors or devices. What such a step computes is nonsense.
"""

from collections.abc import Sequence

import numpy as np

from services.domain.capacity import pages_for
from services.domain.generation import MAX_LOGPROBS, SamplingParams
from worker.engine.batch import Batch, SampleRow
from worker.executors.base import StepLimits


def largest_steps(limits: StepLimits) -> tuple[Batch, ...]:
    """Return the largest mixed step and the largest decode.

    The mixed one has the most tokens and the most rows of logits (one for each sequence, and those of a
    prompt that is scored); the decode has every seat at the end of its context. Every page is page 0.
    """
    seats = limits.max_sequences
    counts = spread(limits.max_step_tokens, seats, limits.max_context_tokens)
    return (
        batch_of(counts, limits, num_outputs=limits.max_outputs),
        batch_of([1] * seats, limits),
    )


def batch_of(counts: Sequence[int], limits: StepLimits, *, num_outputs: int | None = None) -> Batch:
    """Return a step with `counts` tokens of as many sequences, each of which ends its context with them.

    Args:
        counts: Tokens of each sequence; none is longer than the context.
        num_outputs: Rows that give logits, as far as there are such: the last of each sequence draw, others
            are scored. None: only the last ones.
    """
    num_tokens, context = sum(counts), limits.max_context_tokens
    ends = np.cumsum(counts)
    positions = np.concatenate([np.arange(context - count, context) for count in counts])
    last_rows = ends - 1
    others = np.setdiff1d(np.arange(num_tokens), last_rows)
    wanted = len(counts) if num_outputs is None else num_outputs
    out_rows = np.sort(np.concatenate((last_rows, others))[:wanted])
    is_scored = np.isin(out_rows, others)
    params = SamplingParams(temperature=1.0, top_p=0.9, num_logprobs=MAX_LOGPROBS)
    row = SampleRow(params=params, choice=0, position=0, prompt_ids=(0,), output_ids=())
    return Batch(
        ids=np.zeros(num_tokens, np.int32),
        positions=positions.astype(np.int32),
        query_start=np.concatenate(([0], ends)).astype(np.int32),
        context_len=np.full(len(counts), context, np.int32),
        page_table=np.zeros((len(counts), pages_for(context, limits.page_size)), np.int32),
        out_rows=out_rows.astype(np.int32),
        sampling=(row,) * len(out_rows),
        targets=np.where(is_scored, 0, -1).astype(np.int32) if is_scored.any() else None,
    )


def spread(num_tokens: int, num_sequences: int, context: int) -> list[int]:
    """Return how many tokens each sequence has, at least one and at most its context.

    Worked number: 512 tokens, 32 sequences, context 300: 30 have one, one has 182 and one 300.
    """
    counts = [1] * num_sequences
    left = num_tokens - num_sequences
    for i in reversed(range(num_sequences)):
        more = min(left, context - 1)
        counts[i] += more
        left -= more
    return counts
