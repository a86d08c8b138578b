"""Shares one step's prefill tokens among the started prefills. Pure; knows nothing of pages."""

from collections.abc import Mapping

from worker.engine.config import EngineConfig
from worker.engine.sequence import Sequence
from worker.engine.step_plan import PrefillRow


def is_long(sequence: Sequence, budget: int, page_size: int) -> bool:
    """Say whether a started sequence had more to compute at its start than a step's prefill `budget`."""
    return sequence.num_tokens - sequence.num_found * page_size > budget


def prefill_budget(num_decodes: int, config: EngineConfig) -> int:
    """Return how many prefill tokens a step may have beside its decode rows."""
    budget = config.max_step_tokens - num_decodes
    return min(budget, config.max_prefill_tokens) if num_decodes else budget


def share_prefill(
    prefills: Mapping[Sequence, int], budget: int, config: EngineConfig, *, long_ran: bool
) -> list[PrefillRow]:
    """Return who computes how many tokens in this step: short ones first, within a fairness bound.

    Whoever got nothing for `max_prefill_skips` steps goes first; its skips start again from 0. A chunk of a
    long prompt may hold up a short one that comes while it is computed, but not twice: beside a short one of
    its band or a higher one no long one computes in two steps in a row.
    Worked number: 5,000 and 20 tokens left, budget 256: the short one gets 20, the long one 236; if a long
    one had a part in the step before, 20 and 0.

    Args:
        prefills: Each with the position of its next token to compute.
        long_ran: Whether a long one had a part in the step before.
    """
    max_scored = config.max_scored_tokens
    long = {id(seq) for seq in prefills if is_long(seq, budget, config.page_size)} if long_ran else set()
    highest = min((seq.request.band for seq in prefills if id(seq) not in long), default=None)
    order = sorted(
        prefills,
        key=lambda seq: (
            seq.skipped_steps < config.max_prefill_skips,
            seq.request.band,
            seq.num_tokens - prefills[seq],
            seq.request.arrival,
            seq.choice,
        ),
    )
    shares: list[PrefillRow] = []
    for sequence in order:
        start, num_scored = prefills[sequence], 0
        rests = id(sequence) in long and highest is not None and highest <= sequence.request.band
        num_tokens = 0 if rests else min(budget, sequence.num_tokens - start)
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
