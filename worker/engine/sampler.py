"""Draws the next token of each output row from its logits, or scores the one that is given.

Knows nothing of models or batches: every row is treated by itself, from its own logits, history and random
counter, so that its token is the same whatever else is in the batch. Order of operations:
repetition penalty (prompt and output) → presence and frequency penalty (output) → logit bias → forbidden ids
→ temperature → top_k → top_p → min_p → draw. Log-probabilities are those of the raw logits.
There is no full sort over the vocabulary: thresholds come from partitions.
"""

from collections.abc import Sequence
from math import log

import numpy as np
from numpy.typing import NDArray

from services.domain.generation import SamplingParams
from worker.engine.batch import Int32, SampleRow, StepResult, TopLogprobs
from worker.engine.counter_random import uniform

Float32 = NDArray[np.float32]
Ids = NDArray[np.int64]

LOWEST_LOGPROB = -9999.0
"""Stands for the logarithm of zero, which JSON cannot carry."""

_FIRST_NUCLEUS = 64
_RUN = 256


def sample(logits: Float32, rows: Sequence[SampleRow], targets: Int32 | None = None) -> StepResult:
    """Draw one token for each row. logits: [O, V] float32, unchanged; rows: [O].

    Args:
        targets: [O] see `Batch.targets`.
    """
    num_rows = len(rows)
    fixed = [-1] * num_rows if targets is None else targets.tolist()
    token_ids = np.zeros(num_rows, np.int32)
    failed = np.zeros(num_rows, np.bool_)
    logprobs = np.zeros(num_rows, np.float32)
    top: list[TopLogprobs | None] = [None] * num_rows
    for i, row in enumerate(rows):
        raw = np.ascontiguousarray(logits[i], dtype=np.float32)
        # NaN survives max, so one reduction tells a bad row: NaN, +Inf, or nothing but -Inf.
        if not np.isfinite(raw.max()):
            failed[i] = True
            continue
        adjusted = _adjust(raw, row)
        best = int(adjusted.argmax())
        if not np.isfinite(adjusted[best]):
            failed[i] = True
            continue
        if fixed[i] >= 0:
            token = fixed[i]
        else:
            token = best if row.params.temperature == 0 else _draw(adjusted, float(adjusted[best]), row)
        token_ids[i] = token
        if row.params.num_logprobs is not None:
            logprobs[i], top[i] = _logprobs(raw, token, row.params.num_logprobs)
    return StepResult(token_ids=token_ids, failed=failed, logprobs=logprobs, top=tuple(top))


def _adjust(raw: Float32, row: SampleRow) -> Float32:
    """Apply penalties, bias and forbidden ids to a copy; the raw row itself when there are none."""
    params = row.params
    has_penalty = params.presence_penalty != 0 or params.frequency_penalty != 0
    if not (params.repetition_penalty != 1 or has_penalty or params.logit_bias or row.forbidden_ids):
        return raw
    logits = raw.copy()
    if params.repetition_penalty != 1:
        seen = np.unique(np.fromiter((*row.prompt_ids, *row.output_ids), np.int64))
        values = logits[seen]
        penalty = np.float32(params.repetition_penalty)
        logits[seen] = np.where(values > 0, values / penalty, values * penalty)
    if has_penalty and row.output_ids:
        seen, counts = np.unique(np.fromiter(row.output_ids, np.int64), return_counts=True)
        logits[seen] -= (params.presence_penalty + params.frequency_penalty * counts).astype(np.float32)
    for token, bias in params.logit_bias.items():
        logits[token] += np.float32(bias)
    if row.forbidden_ids:
        logits[np.fromiter(row.forbidden_ids, np.int64)] = -np.inf
    return logits


def _draw(logits: Float32, best: float, row: SampleRow) -> int:
    """Draw by the inverse of the cumulative distribution, in id order over the kept ids."""
    params = row.params
    # All of this is computed on one row alone, sums in id order: no batch can change a bit of it.
    weights: Float32 = np.exp((logits - np.float32(best)) / np.float32(params.temperature))
    kept = _filter(weights, params)
    if kept is not None:
        weights = weights[kept]
    index = _inverse_cumulative(weights, uniform(params.seed, row.choice, row.position))
    return index if kept is None else int(kept[index])


def _inverse_cumulative(weights: Float32, draw: float) -> int:
    """Return the first index whose cumulative weight exceeds `draw` times the whole.

    Sums runs of 256 first, and goes through only one of them weight by weight.
    """
    run_ends = np.cumsum(np.add.reduceat(weights, np.arange(0, len(weights), _RUN), dtype=np.float64))
    target = draw * float(run_ends[-1])
    run = min(int(np.searchsorted(run_ends, target, side="right")), len(run_ends) - 1)
    before = float(run_ends[run - 1]) if run else 0.0
    inside = np.cumsum(weights[run * _RUN : (run + 1) * _RUN], dtype=np.float64)
    place = int(np.searchsorted(inside, target - before, side="right"))
    # Rounding may put the target behind the last weight; an id of weight 0 must not be drawn for it.
    last = int(np.flatnonzero(weights[run * _RUN : (run + 1) * _RUN])[-1])
    return run * _RUN + min(place, last)


def _filter(weights: Float32, params: SamplingParams) -> Ids | None:
    """Return ascending indices that top_k, top_p and min_p keep; None when all are kept."""
    kept: Ids | None = None
    if 0 < params.top_k < len(weights):
        kept = _largest(weights, params.top_k)
    if params.top_p < 1:
        inner = _nucleus(weights if kept is None else weights[kept], params.top_p)
        kept = inner if kept is None else kept[inner]
    if params.min_p > 0:
        # The best id weighs exactly 1, and is always kept.
        inner = np.flatnonzero((weights if kept is None else weights[kept]) >= params.min_p)
        kept = inner if kept is None else kept[inner]
    return kept


def _largest(values: Float32, count: int) -> Ids:
    """Return ascending indices of the `count` largest values; among equals the lowest index is kept."""
    threshold = np.partition(values, len(values) - count)[len(values) - count]
    above: Ids = np.flatnonzero(values > threshold)
    equal: Ids = np.flatnonzero(values == threshold)[: count - len(above)]
    return np.sort(np.concatenate((above, equal)))


def _nucleus(weights: Float32, top_p: float) -> Ids:
    """Return ascending indices of the smallest set, largest weights first, that holds `top_p` of the mass.

    Weights under (1 - top_p) × mass / count together hold less than 1 - top_p: the set never needs them.
    Of the others a growing part is sorted, until it holds enough.
    """
    mass = float(weights.sum(dtype=np.float64))
    wanted = top_p * mass
    # Half of the bound, so that rounding cannot cut off what is needed.
    candidates: Ids = np.flatnonzero(weights >= np.float32((1 - top_p) * mass / len(weights) / 2))
    values = weights[candidates]
    size = _FIRST_NUCLEUS
    while True:
        part = _largest(values, size) if size < len(values) else np.arange(len(values))
        order = part[np.argsort(-values[part], kind="stable")]
        cumulative = np.cumsum(values[order], dtype=np.float64)
        if cumulative[-1] >= wanted or len(order) == len(values):
            break
        size *= 8
    count = min(int(np.searchsorted(cumulative, wanted, side="left")) + 1, len(order))
    return np.sort(candidates[order[:count]])


def _logprobs(raw: Float32, token: int, num_top: int) -> tuple[np.float32, TopLogprobs | None]:
    """Return the token's raw log-probability and the `num_top` most likely ids (None for 0)."""
    best = raw.max()
    log_sum = float(best) + log(float(np.exp(raw - best).sum(dtype=np.float64)))
    chosen = np.float32(max(float(raw[token]) - log_sum, LOWEST_LOGPROB))
    if num_top == 0:
        return chosen, None
    ids = _largest(raw, min(num_top, len(raw)))
    ids = ids[np.argsort(-raw[ids], kind="stable")]
    found = np.maximum(raw[ids].astype(np.float64) - log_sum, LOWEST_LOGPROB)
    return chosen, TopLogprobs(tuple(map(int, ids)), tuple(float(np.float32(value)) for value in found))
