"""Lays a step plan out as the arrays an executor takes. Knows nothing of scheduling."""

import numpy as np

from worker.engine.batch import Batch, Int32
from worker.engine.step_plan import StepPlan


def build_batch(plan: StepPlan) -> Batch:
    """Return the batch of a plan that has rows. Its arrays change when the plan is applied."""
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
    samples = [True] * num_decodes + [row.samples for row in prefills]
    sampling = [*decodes.sample_rows, *(row.sequence.sample_row for row in prefills if row.samples)]
    return Batch(
        ids=ids,
        positions=positions,
        query_start=query_start,
        context_len=starts + counts,
        page_table=_page_table(plan),
        out_rows=(query_start[1:] - 1)[samples],
        sampling=tuple(sampling),
    )


def _page_table(plan: StepPlan) -> Int32:
    decoding = plan.decodes.page_table
    width = max(decoding.shape[1], *(len(row.sequence.pages) for row in plan.prefills))
    table = np.zeros((plan.num_rows, width), np.int32)
    table[: plan.num_decodes, : decoding.shape[1]] = decoding
    for row, prefill in enumerate(plan.prefills, plan.num_decodes):
        table[row, : len(prefill.sequence.pages)] = prefill.sequence.pages
    return table
