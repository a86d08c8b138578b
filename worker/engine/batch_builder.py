"""Lays a step plan out as the arrays an executor takes. Knows nothing of scheduling."""

import numpy as np

from worker.engine.batch import Batch, SampleRow
from worker.engine.sequence import Sequence
from worker.engine.step_plan import StepPlan

_NOTHING: frozenset[int] = frozenset()


def build_batch(plan: StepPlan) -> Batch:
    """Return the batch of a plan that has rows."""
    starts: list[int] = []
    counts: list[int] = []
    ids: list[int] = []
    tables: list[bytes] = []
    out_rows: list[int] = []
    sampling: list[SampleRow] = []
    # One pass, whose cost is every step's: tuples are unpacked, and nothing is made twice.
    for sequence, _, start, num_tokens, is_decode, samples in plan.rows:
        starts.append(start)
        counts.append(num_tokens)
        if is_decode:
            ids.append(sequence.output_ids[-1])
        else:
            ids.extend(sequence.ids(start, num_tokens))
        tables.append(sequence.page_bytes())
        if samples:
            out_rows.append(len(ids) - 1)
            sampling.append(_sample_row(sequence))
    num_rows = len(counts)
    query_start = np.zeros(num_rows + 1, np.int32)
    np.cumsum(counts, out=query_start[1:])
    first = np.array(starts, np.int32)
    # Position = index in `ids` - where the sequence begins there + where it begins in the sequence.
    positions = np.arange(len(ids), dtype=np.int32) + np.repeat(first - query_start[:-1], counts)
    width = max(map(len, tables))
    # Bytes joined once: a sixth of the cost of filling an array row by row.
    table = bytearray().join([pages.ljust(width, b"\0") for pages in tables])
    return Batch(
        ids=np.array(ids, np.int32),
        positions=positions.astype(np.int32, copy=False),
        query_start=query_start,
        context_len=first + np.array(counts, np.int32),
        page_table=np.frombuffer(table, np.int32).reshape(num_rows, width // 4),
        out_rows=np.array(out_rows, np.int32),
        sampling=tuple(sampling),
    )


def _sample_row(sequence: Sequence) -> SampleRow:
    stop = sequence.request.stop
    position = len(sequence.output_ids)
    return SampleRow(
        sequence.request.sampling,
        sequence.choice,
        position,
        sequence.prompt_ids,
        sequence.output_ids,
        stop.stop_token_ids if position < stop.min_output_tokens else _NOTHING,
    )
