"""The first kernels of `sampling` (see there for the contract): from logits to the weights that can matter.

What one leaves for the next is in `work` [rows, vocab] float32 (adjusted logits, then weights), `ids` [rows,
vocab] int32 (of collected weights) and `state` [rows, STATES] float64, in the columns named here.

Knows torch and Triton alone.
"""
# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators

import triton
import triton.language as tl

from worker.kernels import sampling as contract

NUMBERS = tl.constexpr(contract.NUMBERS)
INTEGERS = tl.constexpr(contract.INTEGERS)
TOP_P = tl.constexpr(contract.TOP_P)
MIN_P = tl.constexpr(contract.MIN_P)
TOP_K = tl.constexpr(contract.TOP_K)
NUM_LOGPROBS = tl.constexpr(contract.NUM_LOGPROBS)
_TEMPERATURE = tl.constexpr(contract.TEMPERATURE)
_REPETITION = tl.constexpr(contract.REPETITION)
_PRESENCE = tl.constexpr(contract.PRESENCE)
_FREQUENCY = tl.constexpr(contract.FREQUENCY)
_FIRST = tl.constexpr(contract.FIRST)
_LAST = tl.constexpr(contract.LAST)
_TARGET = tl.constexpr(contract.TARGET)

LOG_SUM = tl.constexpr(0)
"""Logarithm of the sum of raw exponentials, where logprobs are asked for."""
MASS = tl.constexpr(1)
"""Sum of all weights."""
COUNT = tl.constexpr(2)
"""Number of collected weights; -1: all, in place; 0: the row is answered already."""
STATES = tl.constexpr(contract.STATES)
NO_ID = tl.constexpr(0x7FFFFFFF)
_BINS = tl.constexpr(64)
"""Bin j holds weights from 2^-j to 2^(1 - j), the last one all that are smaller."""


@triton.jit
def read_row_kernel(logits, integers, work, state, failed, vocab, BLOCK: tl.constexpr):
    """Copy a row into `work`; tell whether it is usable, and what its logprobs are relative to."""
    row = tl.program_id(0).to(tl.int64)
    best = tl.full([], float("-inf"), tl.float32)
    has_nan = tl.full([], 0, tl.int32)
    for start in range(0, vocab, BLOCK):
        columns = start + tl.arange(0, BLOCK)
        values = tl.load(logits + row * vocab + columns, mask=columns < vocab, other=float("-inf"))
        is_nan = values != values
        has_nan = tl.maximum(has_nan, tl.max(is_nan.to(tl.int32), axis=0))
        best = tl.maximum(best, tl.max(tl.where(is_nan, float("-inf"), values), axis=0))
        tl.store(work + row * vocab + columns, values, mask=columns < vocab)
    is_bad = (has_nan > 0) | (best == float("inf")) | (best == float("-inf"))
    tl.store(failed + row, is_bad.to(tl.int32))
    if (tl.load(integers + row * INTEGERS + NUM_LOGPROBS) >= 0) & (is_bad == 0):
        total = tl.full([], 0.0, tl.float64)
        for start in range(0, vocab, BLOCK):
            columns = start + tl.arange(0, BLOCK)
            values = tl.load(logits + row * vocab + columns, mask=columns < vocab, other=float("-inf"))
            total += tl.sum(tl.exp(values - best).to(tl.float64), axis=0)
        tl.store(state + row * STATES + LOG_SUM, best.to(tl.float64) + tl.log(total))


@triton.jit
def adjust_row_kernel(work, numbers, integers, entries, biases, vocab, BLOCK: tl.constexpr):
    """Change the logits that a row's entries name: penalties, then bias."""
    row = tl.program_id(0).to(tl.int64)
    first = tl.load(integers + row * INTEGERS + _FIRST)
    last = tl.load(integers + row * INTEGERS + _LAST)
    own = numbers + row * NUMBERS
    repetition = tl.load(own + _REPETITION).to(tl.float32)
    presence, frequency = tl.load(own + _PRESENCE), tl.load(own + _FREQUENCY)
    for start in range(first, last, BLOCK):
        entry = start + tl.arange(0, BLOCK)
        inside = entry < last
        token = tl.load(entries + 3 * entry, mask=inside, other=0)
        is_seen = tl.load(entries + 3 * entry + 1, mask=inside, other=0) > 0
        count = tl.load(entries + 3 * entry + 2, mask=inside, other=0)
        place = work + row * vocab + token
        value = tl.load(place, mask=inside, other=0.0)
        repeated = tl.where(
            value > 0, tl.div_rn(value, tl.full([BLOCK], 0.0, tl.float32) + repetition), value * repetition
        )
        value = tl.where(is_seen, repeated, value)
        value -= tl.where(count > 0, presence + frequency * count, 0.0).to(tl.float32)
        value += tl.load(biases + entry, mask=inside, other=0.0)
        tl.store(place, value, mask=inside)


@triton.jit
def weigh_row_kernel(work, numbers, integers, state, token_ids, failed, cuts, vocab, BLOCK: tl.constexpr):
    """Answer a greedy or given row; make weights of any other, and say below which they cannot matter."""
    row = tl.program_id(0).to(tl.int64)
    best = tl.full([], float("-inf"), tl.float32)
    best_id = tl.full([], 0, tl.int32)
    for start in range(0, vocab, BLOCK):
        columns = start + tl.arange(0, BLOCK)
        values = tl.load(work + row * vocab + columns, mask=columns < vocab, other=float("-inf"))
        highest = tl.max(values, axis=0)
        place = tl.min(tl.where(values == highest, columns, NO_ID), axis=0)
        best_id = tl.where(highest > best, place, best_id)
        best = tl.maximum(best, highest)
    is_bad = (tl.load(failed + row) > 0) | (best == float("-inf")) | (best == float("inf"))
    tl.store(failed + row, is_bad.to(tl.int32))
    own = numbers + row * NUMBERS
    temperature = tl.load(own + _TEMPERATURE).to(tl.float32)
    target = tl.load(integers + row * INTEGERS + _TARGET).to(tl.int32)
    is_answered = is_bad | (temperature == 0) | (target >= 0)
    tl.store(token_ids + row, tl.where(target >= 0, target, tl.where(is_bad, 0, best_id)))
    # A count of 0 tells the next kernels that there is nothing to draw.
    tl.store(state + row * STATES + COUNT, tl.where(is_answered, 0.0, -1.0).to(tl.float64))
    if is_answered == 0:
        mass = tl.full([], 0.0, tl.float64)
        histogram = tl.zeros([_BINS], tl.int32)
        for start in range(0, vocab, BLOCK):
            columns = start + tl.arange(0, BLOCK)
            inside = columns < vocab
            values = tl.load(work + row * vocab + columns, mask=inside, other=float("-inf"))
            weights = tl.exp((values - best) / temperature)
            tl.store(work + row * vocab + columns, weights, mask=inside)
            mass += tl.sum(weights.to(tl.float64), axis=0)
            exponents = 127 - (weights.to(tl.int32, bitcast=True) >> 23)
            histogram += tl.histogram(tl.minimum(exponents, _BINS - 1), _BINS)
        # The padding of the last block was counted among the smallest: it changes no bin that is cut at.
        tl.store(state + row * STATES + MASS, mass)
        tl.store(cuts + row, _cut_of(histogram, mass, own, integers + row * INTEGERS, vocab))


@triton.jit
def _cut_of(histogram, mass, own, integers, vocab):
    """Return a weight below which the filters keep nothing; -1 where there are no filters."""
    top_k = tl.load(integers + TOP_K)
    top_p, min_p = tl.load(own + TOP_P), tl.load(own + MIN_P)
    bins = tl.arange(0, _BINS)
    has_top_k = (top_k > 0) & (top_k < vocab)
    # 1. The bin in which the k-th largest lies.
    by_count = tl.min(tl.where(tl.cumsum(histogram, axis=0) >= top_k, bins, _BINS - 1), axis=0)
    # 2. The bin after which at most half of 1 - top_p is left, even if every weight there were the largest.
    most = histogram.to(tl.float64) * tl.exp2((1 - bins).to(tl.float32)).to(tl.float64)
    left = tl.sum(most, axis=0) - tl.cumsum(most, axis=0)
    by_mass = tl.min(tl.where(left <= 0.5 * (1.0 - top_p) * mass, bins, _BINS - 1), axis=0)
    place = tl.where(has_top_k, by_count, tl.where(top_p < 1, by_mass, _BINS - 1))
    cut = tl.where(place < _BINS - 1, tl.exp2(-place.to(tl.float32)), 0.0)
    cut = tl.where(has_top_k, cut, tl.maximum(cut, min_p.to(tl.float32)))
    return tl.where(has_top_k | (top_p < 1) | (min_p > 0), cut, -1.0)


@triton.jit
def collect_row_kernel(work, ids, state, cuts, vocab, BLOCK: tl.constexpr):
    """Move the weights that can matter to the front of the row, in id order, their ids beside them."""
    row = tl.program_id(0).to(tl.int64)
    cut = tl.load(cuts + row)
    if (tl.load(state + row * STATES + COUNT) < 0) & (cut >= 0):
        count = tl.full([], 0, tl.int32)
        for start in range(0, vocab, BLOCK):
            columns = start + tl.arange(0, BLOCK)
            weights = tl.load(work + row * vocab + columns, mask=columns < vocab, other=-1.0)
            is_kept = weights >= cut
            # Places never lie behind what was read: a prefix sum waits for the whole block.
            places = count + tl.cumsum(is_kept.to(tl.int32), axis=0) - 1
            tl.store(work + row * vocab + places, weights, mask=is_kept)
            tl.store(ids + row * vocab + places, columns, mask=is_kept)
            count += tl.sum(is_kept.to(tl.int32), axis=0)
        tl.store(state + row * STATES + COUNT, count.to(tl.float64))
