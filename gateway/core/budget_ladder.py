"""How far a tenant's spent soft budgets alone let its requests degrade.

A step is held from its threshold on, and let go only once the spent part has fallen `GAP` below it: numbers
that jump about a threshold, as those of answers that pass each other do, move nothing. No step takes time,
unlike on the scheduler's ladder: what was spent does not fall by spending less, so waiting would climb to the
top whatever the overdraft. Never beyond what changes content: a soft budget refuses nothing. Knows no clock
and no store.
"""

from services.domain.degradation import Step

STEPS = (Step.CAP_OUTPUT, Step.CUT_CONTEXT, Step.SMALLER_MODEL)
"""What is climbed, one after the other."""
RISE = 0.1
"""Part of the budget from one threshold to the next."""
GAP = 0.05
"""Part of the budget by which the spent part must be below a threshold again."""


def thresholds(budget_at: float) -> tuple[float, ...]:
    """Return the spent part from which each of `STEPS` is held.

    Worked number: with 1.0 answers are capped once the budget is spent, prompts cut from 110 % on, and a
    smaller model serves from 120 % on.
    """
    return tuple(round(budget_at + RISE * index, 6) for index in range(len(STEPS)))


def next_step(step: Step, spent: float, budget_at: float) -> Step:
    """Return the step after `step`, now that `spent` of the fullest soft budget is spent.

    Args:
        spent: 1.0 is all of it.
        budget_at: Where the first step begins; the tenant's own.
    """
    held = Step.NONE
    for one, threshold in zip(STEPS, thresholds(budget_at), strict=True):
        if spent >= (threshold - GAP if step >= one else threshold):
            held = one
    return held
