"""A step planned while the one before it still runs: when that may be, and what of it then counts.

It computes what follows: a token of each generating sequence, also of those whose prompt ends in the step
that runs, and further chunks of prompts. What is being drawn only the device knows yet, so such a step is
planned only where no token could change the plan but by ending its row. A row that has ended in the meantime
was computed for nothing: its result is dropped. What it stored lies in a page that was its own when the step
was launched, and whoever gets that page writes to it in a step that the device runs later.

Knows rows, pages and the line; knows nothing of devices.
"""

from collections.abc import Sequence as SequenceOf
from dataclasses import replace

import numpy as np

from services.domain.generation import SamplingParams
from worker.engine.batch import Int32, StepResult
from worker.engine.config import EngineConfig
from worker.engine.prefill_order import prefill_budget, share_prefill
from worker.engine.seating import Seating
from worker.engine.sequence import PREFILL, Sequence
from worker.engine.step_plan import StepPlan


def _ends_next(sequence: Sequence) -> bool:
    """Say whether the token that is being drawn is a sequence's last one, whichever it is."""
    return len(sequence.output_ids) + 1 >= sequence.request.stop.max_output_tokens


def _reads_outputs(params: SamplingParams) -> bool:
    return params.repetition_penalty != 1 or params.presence_penalty != 0 or params.frequency_penalty != 0


def _generating(seating: Seating, in_flight: StepPlan) -> list[Sequence] | None:
    """Return who generates after `in_flight`, present rows first; None where it depends on what they draw.

    Nobody reaches its minimum with the token that is being drawn, and is drawn by what it has drawn before.
    """
    decodes = seating.decodes
    begun = [row.sequence for row in in_flight.prefills if row.samples and row.sequence.state is PREFILL]
    due = [*decodes.due_next, *(sequence for sequence in begun if sequence.num_free_tokens <= 1)]
    if not all(map(_ends_next, due)):
        return None
    rows = [*decodes.sequences, *begun]
    if due:
        ended = set(due)
        rows = [sequence for sequence in rows if sequence not in ended]
    return None if any(_reads_outputs(sequence.sample_row.params) for sequence in rows) else rows


def _prefilling(seating: Seating, in_flight: StepPlan) -> dict[Sequence, int] | None:
    """Return whose prompt goes on after `in_flight`, and where; None where somebody waits to start.

    Nor where a prompt is scored: how far that has got is known once a step is taken in.
    """
    computed = {row.sequence: row.start + row.num_tokens for row in in_flight.prefills}
    starts = {}
    for sequence in seating.prefilling:
        if sequence.state is not PREFILL or sequence.scores is not None:
            return None
        start = computed.get(sequence, sequence.num_computed)
        if start < sequence.num_tokens:
            starts[sequence] = start
    return starts


def _growing(seating: Seating, rows: SequenceOf[Sequence]) -> list[Sequence] | None:
    """Return who needs a page for the token that is being drawn; None where somebody had to yield."""
    pool = seating.pool
    at_page_start = (*seating.decodes.at_next_page_start, *(each for each in rows if each.row is None))
    growing = [
        seq for seq in at_page_start if len(seq.pages) * pool.page_size <= seq.num_tokens and seq in rows
    ]
    if len(growing) > pool.num_available:
        return None
    for tenant in {seq.request.tenant for seq in growing}:
        num_pages = sum(seq.request.tenant == tenant for seq in growing)
        if pool.held_by(tenant) + num_pages > pool.slices.bound_of(tenant):
            return None
    return growing


def plan_ahead(
    seating: Seating, in_flight: StepPlan, config: EngineConfig, now: float, *, long_ran: bool
) -> StepPlan | None:
    """Return the step after `in_flight`, its rows' pages taken, or None where it must wait for tokens.

    Args:
        long_ran: See `share_prefill`.
    """
    if seating.pool.slices.has_bounds:
        return None
    prefilling = _prefilling(seating, in_flight)
    if prefilling and in_flight.prefills and seating.num_free_seats:
        # Whoever may come meanwhile is to be held up by one chunk of a prompt, not by two.
        return None
    rows = None if prefilling is None else _generating(seating, in_flight)
    if prefilling is None or rows is None or not (rows or prefilling):
        return None
    growing = _growing(seating, rows)
    if growing is None:
        return None
    for sequence in growing:
        victims = seating.grow(sequence, now)
        assert not victims, "there is a page for everybody"
    shares = share_prefill(prefilling, prefill_budget(len(rows), config), config, long_ran=long_ran)
    num_prefill = sum(row.num_tokens for row in shares)
    return StepPlan(
        in_flight.step + 1, seating.decodes, len(rows), tuple(shares), num_prefill, (), False, tuple(rows)
    )


def feeds_of(in_flight: StepPlan, rows: SequenceOf[Sequence]) -> Int32:
    """Return for each of `rows` its place among the output rows of `in_flight`."""
    place = {sequence: i for i, sequence in enumerate(in_flight.generating)}
    end = len(place)
    for prefill in in_flight.prefills:
        end += prefill.num_scored + prefill.samples
        if prefill.samples:
            place[prefill.sequence] = end - 1
    return np.array([place[sequence] for sequence in rows], np.int32)


def without_ended(plan: StepPlan, result: StepResult) -> tuple[StepPlan, StepResult]:
    """Return a step that ran ahead as it counts: the rows that are left, in their present order."""
    assert plan.rows is not None, "only of a step that ran ahead"
    left = plan.decodes.sequences
    if list(plan.rows) == left:
        return plan, result
    of_prefills = np.arange(len(plan.rows), len(result.token_ids), dtype=np.int32)
    outputs = np.concatenate((feeds_of(plan, left), of_prefills))
    return replace(plan, num_decodes=len(left)), result.select(outputs)
