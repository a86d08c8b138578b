"""Shares one step's prefill tokens among the started prefills. Pure; knows nothing of pages."""

from collections.abc import Iterable

from worker.engine.sequence import Sequence


def share_prefill(prefills: Iterable[Sequence], budget: int, max_skips: int) -> list[tuple[Sequence, int]]:
    """Return who computes how many tokens in this step: short ones first, within a fairness bound.

    Whoever got nothing for `max_skips` steps goes first; its skips start again from 0.
    Worked number: 5,000 and 20 tokens left, budget 256: the short one gets 20, the long one 236.
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
    shares: list[tuple[Sequence, int]] = []
    for sequence in order:
        num_tokens = min(budget, sequence.num_tokens - sequence.num_computed)
        if num_tokens == 0:
            sequence.skipped_steps += 1
            continue
        sequence.skipped_steps = 0
        shares.append((sequence, num_tokens))
        budget -= num_tokens
    return shares
