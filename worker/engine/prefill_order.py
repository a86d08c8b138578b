"""Shares one step's prefill tokens among the started prefills. Pure; knows nothing of pages."""

from collections.abc import Iterable

from worker.engine.sequence import Sequence
from worker.engine.step_plan import PrefillRow


def share_prefill(
    prefills: Iterable[Sequence], budget: int, max_skips: int, max_scored: int
) -> list[PrefillRow]:
    """Return who computes how many tokens in this step: short ones first, within a fairness bound.

    Whoever got nothing for `max_skips` steps goes first; its skips start again from 0.
    Worked number: 5,000 and 20 tokens left, budget 256: the short one gets 20, the long one 236.

    Args:
        max_scored: Most prompt tokens that all of them together may score.
    """
    order = sorted(
        prefills,
        key=lambda seq: (
            seq.skipped_steps < max_skips,
            seq.request.band,
            seq.num_tokens - seq.num_computed,
            seq.request.arrival,
            seq.choice,
        ),
    )
    shares: list[PrefillRow] = []
    for sequence in order:
        start, num_scored = sequence.num_computed, 0
        num_tokens = min(budget, sequence.num_tokens - start)
        if sequence.scores is not None:
            num_tokens = sequence.scores.longest_chunk(start, num_tokens, max_scored)
            num_scored = sequence.scores.num_in(start + num_tokens)
        if num_tokens == 0:
            sequence.skipped_steps += 1
            continue
        sequence.skipped_steps = 0
        is_last = start + num_tokens == sequence.num_tokens
        samples = is_last and sequence.num_free_tokens > 0
        shares.append(PrefillRow(sequence, start, num_tokens, samples, num_scored))
        budget -= num_tokens
        max_scored -= num_scored
    return shares
