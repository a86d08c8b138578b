"""Lays a step plan out as the arrays an executor takes. Knows nothing of scheduling."""

from collections.abc import Sequence as SequenceOf
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from worker.engine.batch import Batch, Int32, SampleRow
from worker.engine.step_plan import StepPlan


class Decoding(NamedTuple):
    """The rows of generating sequences in a step, one token each."""

    ids: Int32
    positions: Int32
    context_len: Int32
    page_table: Int32
    sample_rows: SequenceOf[SampleRow]


def build_batch(plan: StepPlan) -> Batch:
    """Return the batch of a plan that has rows. Its arrays change when the plan is taken in."""
    rows = plan.decodes
    return _lay_out(
        plan, Decoding(rows.ids, rows.positions, rows.context_len, rows.page_table, rows.sample_rows)
    )


def build_ahead(plan: StepPlan, feeds: Int32) -> Batch:
    """Return the batch of a step that is planned while the one before it runs.

    Args:
        plan: Its rows are still where the step before has them, or have none before that is taken in.
        feeds: See `Batch.feeds`.
    """
    return replace(_lay_out(plan, _a_token_further(plan)), feeds=feeds)


def _a_token_further(plan: StepPlan) -> Decoding:
    """Return the rows of a plan's sequences once each has the token that is being drawn."""
    decodes = plan.decodes
    kept = [sequence.row for sequence in plan.generating if sequence.row is not None]
    begun = [sequence for sequence in plan.generating if sequence.row is None]
    # Mostly everybody goes on and nobody begins: then nothing is picked out.
    places = slice(None) if len(kept) == len(decodes) else kept
    positions, table = decodes.positions[places] + 1, decodes.page_table[places]
    if begun:
        positions = np.concatenate((positions, np.array([seq.num_tokens for seq in begun], np.int32)))
        table = _with_rows(table, [seq.pages for seq in begun])
    ids = np.zeros(len(positions), np.int32)
    sample_rows = [sequence.sample_row for sequence in plan.generating]
    return Decoding(ids, positions, positions + 1, table, sample_rows)


def _lay_out(plan: StepPlan, decoding: Decoding) -> Batch:
    """Return the batch of decode rows and a plan's prefills behind them."""
    prefills, num_decodes, num_rows = plan.prefills, plan.num_decodes, plan.num_rows
    if not prefills:
        query_start = np.arange(num_decodes + 1, dtype=np.int32)
        return Batch(
            ids=decoding.ids,
            positions=decoding.positions,
            query_start=query_start,
            context_len=decoding.context_len,
            page_table=decoding.page_table,
            out_rows=query_start[:-1],
            sampling=tuple(decoding.sample_rows),
        )
    counts = np.ones(num_rows, np.int32)
    starts = np.empty(num_rows, np.int32)
    starts[:num_decodes] = decoding.positions
    for row, prefill in enumerate(prefills, num_decodes):
        counts[row] = prefill.num_tokens
        starts[row] = prefill.start
    query_start = np.zeros(num_rows + 1, np.int32)
    np.cumsum(counts, out=query_start[1:])
    chunks = [np.array(row.sequence.ids(row.start, row.num_tokens), np.int32) for row in prefills]
    ids = np.concatenate([decoding.ids, *chunks])
    # Position = index in `ids` - where the sequence begins there + where it begins in the sequence.
    positions = np.arange(len(ids), dtype=np.int32) + np.repeat(starts - query_start[:-1], counts)
    if any(row.num_scored for row in prefills):
        outputs = _scoring_outputs(plan, query_start)
    else:
        samples = [True] * num_decodes + [row.samples for row in prefills]
        sampling = [*decoding.sample_rows, *(row.sequence.sample_row for row in prefills if row.samples)]
        outputs = Outputs((query_start[1:] - 1)[samples], tuple(sampling), None)
    return Batch(
        ids=ids,
        positions=positions,
        query_start=query_start,
        context_len=starts + counts,
        page_table=_with_rows(decoding.page_table, [row.sequence.pages for row in prefills]),
        out_rows=outputs.rows,
        sampling=outputs.sampling,
        targets=outputs.targets,
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


def _with_rows(table: Int32, rows: SequenceOf[SequenceOf[int]]) -> Int32:
    """Return a page table with these rows behind its own."""
    above = len(table)
    whole = np.zeros((above + len(rows), max(table.shape[1], *map(len, rows))), np.int32)
    whole[:above, : table.shape[1]] = table
    for row, pages in enumerate(rows, above):
        whole[row, : len(pages)] = pages
    return whole
