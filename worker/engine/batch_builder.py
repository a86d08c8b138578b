"""Lays a step plan out as the arrays an executor takes. Knows nothing of scheduling."""

from typing import NamedTuple

import numpy as np

from worker.engine.batch import Batch, Int32, SampleRow
from worker.engine.step_plan import StepPlan


def build_batch(plan: StepPlan) -> Batch:
    """Return the batch of a plan that has rows. Its arrays change when the plan is taken in."""
    decodes, prefills = plan.decodes, plan.prefills
    if not prefills:
        return Batch(
            ids=decodes.ids,
            positions=decodes.positions,
            query_start=decodes.query_start,
            context_len=decodes.context_len,
            page_table=decodes.page_table,
            out_rows=decodes.query_start[:-1],
            sampling=tuple(decodes.sample_rows),
        )
    num_decodes, num_rows = plan.num_decodes, plan.num_rows
    counts = np.ones(num_rows, np.int32)
    starts = np.empty(num_rows, np.int32)
    starts[:num_decodes] = decodes.positions
    for row, prefill in enumerate(prefills, num_decodes):
        counts[row] = prefill.num_tokens
        starts[row] = prefill.start
    query_start = np.zeros(num_rows + 1, np.int32)
    np.cumsum(counts, out=query_start[1:])
    chunks = [np.array(row.sequence.ids(row.start, row.num_tokens), np.int32) for row in prefills]
    ids = np.concatenate([decodes.ids, *chunks])
    # Position = index in `ids` - where the sequence begins there + where it begins in the sequence.
    positions = np.arange(len(ids), dtype=np.int32) + np.repeat(starts - query_start[:-1], counts)
    if any(row.num_scored for row in prefills):
        outputs = _scoring_outputs(plan, query_start)
    else:
        samples = [True] * num_decodes + [row.samples for row in prefills]
        sampling = [*decodes.sample_rows, *(row.sequence.sample_row for row in prefills if row.samples)]
        outputs = Outputs((query_start[1:] - 1)[samples], tuple(sampling), None)
    return Batch(
        ids=ids,
        positions=positions,
        query_start=query_start,
        context_len=starts + counts,
        page_table=_page_table(plan),
        out_rows=outputs.rows,
        sampling=outputs.sampling,
        targets=outputs.targets,
    )


def build_ahead(plan: StepPlan, feeds: Int32) -> Batch:
    """Return the batch of a step that is planned while the one before it runs.

    Args:
        plan: Its rows are still where the step before has them.
        feeds: See `Batch.feeds`.
    """
    decodes = plan.decodes
    return Batch(
        ids=np.zeros(len(feeds), np.int32),
        positions=decodes.positions + 1,
        query_start=decodes.query_start,
        context_len=decodes.context_len + 1,
        page_table=decodes.page_table,
        out_rows=decodes.query_start[:-1],
        sampling=tuple(decodes.sample_rows),
        feeds=feeds,
    )


class Outputs(NamedTuple):
    """The part of a batch that says of which rows logits are wanted, and for what."""

    rows: Int32
    sampling: tuple[SampleRow, ...]
    targets: Int32 | None


def _scoring_outputs(plan: StepPlan, query_start: Int32) -> Outputs:
    """Return the outputs of a step that scores prompts: of each chunk its scored rows, then the drawn one."""
    rows = list(range(plan.num_decodes))
    sampling = list(plan.decodes.sample_rows)
    targets = [-1] * plan.num_decodes
    starts = query_start[plan.num_decodes :].tolist()
    for prefill, start, end in zip(plan.prefills, starts[:-1], starts[1:], strict=True):
        scores = prefill.sequence.scores
        if prefill.num_scored and scores is not None:
            first = start + scores.num_scored - prefill.start
            rows += range(first, first + prefill.num_scored)
            sampling += [scores.row] * prefill.num_scored
            targets += scores.targets(prefill.num_scored)
        if prefill.samples:
            rows.append(end - 1)
            sampling.append(prefill.sequence.sample_row)
            targets.append(-1)
    return Outputs(np.array(rows, np.int32), tuple(sampling), np.array(targets, np.int32))


def _page_table(plan: StepPlan) -> Int32:
    decoding = plan.decodes.page_table
    width = max(decoding.shape[1], *(len(row.sequence.pages) for row in plan.prefills))
    table = np.zeros((plan.num_rows, width), np.int32)
    table[: plan.num_decodes, : decoding.shape[1]] = decoding
    for row, prefill in enumerate(plan.prefills, plan.num_decodes):
        table[row, : len(prefill.sequence.pages)] = prefill.sequence.pages
    return table
