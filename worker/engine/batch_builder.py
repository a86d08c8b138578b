"""Lays a step plan out as the arrays an executor takes. Knows nothing of scheduling."""

import numpy as np

from worker.engine.batch import Batch, SampleRow
from worker.engine.sequence import Sequence
from worker.engine.step_plan import StepPlan

_NOTHING: frozenset[int] = frozenset()


def build_batch(plan: StepPlan) -> Batch:
    """Return the batch of a plan that has rows."""
    rows = plan.rows
    num_rows = len(rows)
    counts = np.fromiter((row.num_tokens for row in rows), np.int32, num_rows)
    starts = np.fromiter((row.start for row in rows), np.int32, num_rows)
    query_start = np.zeros(num_rows + 1, np.int32)
    np.cumsum(counts, out=query_start[1:])
    num_tokens = int(query_start[-1])
    ids: list[int] = []
    width = max(len(row.sequence.pages) for row in rows)
    table: list[bytes] = []
    for row in rows:
        sequence = row.sequence
        if row.is_decode:
            ids.append(sequence.output_ids[-1])
        else:
            ids.extend(sequence.ids(row.start, row.num_tokens))
        # Bytes joined once: a sixth of the cost of filling an array row by row.
        table.append(sequence.page_bytes().ljust(4 * width, b"\0"))
    # Position = index in `ids` - where the sequence begins there + where it begins in the sequence.
    positions = np.arange(num_tokens, dtype=np.int32) + np.repeat(starts - query_start[:-1], counts)
    samples = np.fromiter((row.samples for row in rows), np.bool_, num_rows)
    return Batch(
        ids=np.array(ids, np.int32),
        positions=positions.astype(np.int32, copy=False),
        query_start=query_start,
        context_len=starts + counts,
        page_table=np.frombuffer(bytearray().join(table), np.int32).reshape(num_rows, width),
        out_rows=(query_start[1:] - 1)[samples],
        sampling=tuple(_sample_row(row.sequence) for row in rows if row.samples),
    )


def _sample_row(sequence: Sequence) -> SampleRow:
    request = sequence.request
    position = len(sequence.output_ids)
    return SampleRow(
        params=request.sampling,
        choice=sequence.choice,
        position=position,
        prompt_ids=sequence.prompt_ids,
        output_ids=sequence.output_ids,
        forbidden_ids=request.stop.stop_token_ids if position < request.stop.min_output_tokens else _NOTHING,
    )
