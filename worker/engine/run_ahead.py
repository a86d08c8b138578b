"""A decode step planned while the one before it still runs: when that may be, and what of it then counts.

Such a step has the rows of the one before, each a token further; which token that is only the device knows
yet. So it is planned only where no token could change the plan but by ending its row. A row that has ended in
the meantime was computed for nothing: its result is dropped. What it stored lies in a page that was its own
when the step was launched, and whoever gets that page writes to it in a step that the device runs later.

Knows rows, pages and the line; knows nothing of devices.
"""

from dataclasses import replace

import numpy as np

from services.domain.generation import SamplingParams
from worker.engine.batch import Int32, StepResult
from worker.engine.seating import Seating
from worker.engine.sequence import Sequence
from worker.engine.step_plan import StepPlan


def _may_run_ahead(seating: Seating, in_flight: StepPlan) -> bool:
    """Say whether the step after `in_flight` is a decode of the same rows, whatever those draw.

    Nobody prefills; no row reaches a minimum or its length with the token that is being drawn, and
    none is drawn by what it has drawn before.
    """
    decodes = seating.decodes
    if in_flight.prefills or not len(decodes) or len(seating.seated) != len(decodes):
        return False
    if seating.pool.slices.has_bounds or decodes.most_due >= -1:
        return False
    return not any(_reads_outputs(row.params) for row in decodes.sample_rows)


def _reads_outputs(params: SamplingParams) -> bool:
    return params.repetition_penalty != 1 or params.presence_penalty != 0 or params.frequency_penalty != 0


def _growing_ahead(seating: Seating) -> list[Sequence] | None:
    """Return who needs a page for the step after the one in flight; None where somebody had to yield."""
    decodes, pool = seating.decodes, seating.pool
    growing = [
        seq for seq in decodes.at_next_page_start if len(seq.pages) * pool.page_size <= seq.num_computed + 1
    ]
    if len(growing) > pool.num_available:
        return None
    for tenant in {seq.request.tenant for seq in growing}:
        num_pages = sum(seq.request.tenant == tenant for seq in growing)
        if pool.held_by(tenant) + num_pages > pool.slices.bound_of(tenant):
            return None
    return growing


def plan_ahead(seating: Seating, in_flight: StepPlan, now: float) -> StepPlan | None:
    """Return the step after `in_flight`, its rows' pages taken, or None where it must wait for tokens."""
    if not _may_run_ahead(seating, in_flight):
        return None
    growing = _growing_ahead(seating)
    if growing is None:
        return None
    for sequence in growing:
        victims = seating.grow(sequence, now)
        assert not victims, "there is a page for everybody"
    rows = tuple(seating.decodes.sequences)
    return StepPlan(in_flight.step + 1, seating.decodes, len(rows), (), 0, (), False, rows)


def feeds_of(in_flight: StepPlan) -> Int32:
    """Return for each present row its place among the rows that `in_flight` draws."""
    rows = in_flight.decodes.sequences
    if in_flight.rows is None:
        return np.arange(len(rows), dtype=np.int32)
    place = {sequence: i for i, sequence in enumerate(in_flight.rows)}
    return np.array([place[sequence] for sequence in rows], np.int32)


def without_ended(plan: StepPlan, result: StepResult) -> tuple[StepPlan, StepResult]:
    """Return a step that ran ahead as it counts: the rows that are left, in their present order."""
    assert plan.rows is not None, "only of a step that ran ahead"
    if list(plan.rows) == plan.decodes.sequences:
        return plan, result
    left = feeds_of(plan)
    return replace(plan, num_decodes=len(left)), result.select(left)
