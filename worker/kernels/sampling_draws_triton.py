"""The last kernels of `sampling` (see there for the contract): filters, the draw itself, and logprobs.

Knows torch and Triton alone.
"""
# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators

import triton
import triton.language as tl

from worker.kernels import sampling as contract
from worker.kernels.sampling_weights_triton import (
    COUNT,
    INTEGERS,
    LOG_SUM,
    MASS,
    MIN_P,
    NO_ID,
    NUM_LOGPROBS,
    NUMBERS,
    STATES,
    TOP_K,
    TOP_P,
)

_SEED = tl.constexpr(contract.SEED)
_POSITION = tl.constexpr(contract.POSITION)
_CHOICE = tl.constexpr(contract.CHOICE)
_LOWEST = tl.constexpr(contract.LOWEST_LOGPROB)
_ABOVE_ONE = tl.constexpr(0x3F800001)
"""Bits of the float after 1: no weight reaches it."""


@triton.jit
def _count_and_mass(weights, size, least, BLOCK: tl.constexpr):
    """Return how many weights have bits of at least `least`, and their sum."""
    count = tl.full([], 0, tl.int32)
    mass = tl.full([], 0.0, tl.float64)
    for start in range(0, size, BLOCK):
        columns = start + tl.arange(0, BLOCK)
        values = tl.load(weights + columns, mask=columns < size, other=-1.0)
        is_in = values.to(tl.int32, bitcast=True) >= least
        count += tl.sum(is_in.to(tl.int32), axis=0)
        mass += tl.sum(tl.where(is_in, values, 0.0).to(tl.float64), axis=0)
    return count, mass


@triton.jit
def _threshold(weights, size, lowest, wanted_count, wanted_mass, BLOCK: tl.constexpr):
    """Return the greatest bits from which on weights are at least so many and hold at least that mass."""
    low = lowest
    high = tl.full([], _ABOVE_ONE, tl.int32)
    while high - low > 1:
        middle = low + (high - low) // 2
        count, mass = _count_and_mass(weights, size, middle, BLOCK)
        is_enough = (count >= wanted_count) & (mass >= wanted_mass)
        low = tl.where(is_enough, middle, low)
        high = tl.where(is_enough, high, middle)
    return low


@triton.jit
def _filter(weights, size, cut, own, top_k, vocab, mass, BLOCK: tl.constexpr):
    """Return the least bits that are kept, and how many weights of exactly these (lowest ids first)."""
    top_p, min_p = tl.load(own + TOP_P), tl.load(own + MIN_P).to(tl.float32)
    least = cut.to(tl.int32, bitcast=True)
    ties = tl.full([], NO_ID, tl.int32)
    if (top_k > 0) & (top_k < vocab):
        least = _threshold(weights, size, least, top_k, -1.0, BLOCK)
        above, mass_above = _count_and_mass(weights, size, least + 1, BLOCK)
        ties = top_k - above
        mass = mass_above + ties * least.to(tl.float32, bitcast=True).to(tl.float64)
    if top_p < 1:
        wanted = top_p * mass
        found = _threshold(weights, size, least, 0, wanted, BLOCK)
        above, mass_above = _count_and_mass(weights, size, found + 1, BLOCK)
        up_to, _ = _count_and_mass(weights, size, found, BLOCK)
        weight = found.to(tl.float32, bitcast=True).to(tl.float64)
        missing = tl.ceil((wanted - mass_above) / tl.maximum(weight, 1e-300))
        most = tl.where(found == least, tl.minimum(ties, up_to - above), up_to - above)
        ties = tl.maximum(tl.minimum(missing, most.to(tl.float64)), 1.0).to(tl.int32)
        least = found
    lowest = min_p.to(tl.int32, bitcast=True)
    ties = tl.where(lowest > least, NO_ID, ties)
    return tl.maximum(least, lowest), ties


@triton.jit
def _kept(weights, start, size, least, ties, equals_before, BLOCK: tl.constexpr):
    """Return a block's weights with 0 for those that are not kept, and how many equal the threshold."""
    columns = start + tl.arange(0, BLOCK)
    values = tl.load(weights + columns, mask=columns < size, other=-1.0)
    bits = values.to(tl.int32, bitcast=True)
    is_equal = (bits == least).to(tl.int32)
    rank = equals_before + tl.cumsum(is_equal, axis=0) - is_equal
    is_kept = (bits > least) | ((is_equal > 0) & (rank < ties))
    return tl.where(is_kept, values, 0.0).to(tl.float64), tl.sum(is_equal, axis=0)


@triton.jit
def draw_row_kernel(
    work, ids, numbers, integers, state, cuts, token_ids, vocab, BLOCK: tl.constexpr
):  # fmt: skip
    """Filter a row's weights and draw from those that are kept."""
    row = tl.program_id(0).to(tl.int64)
    collected = tl.load(state + row * STATES + COUNT)
    if collected != 0:
        weights, own = work + row * vocab, integers + row * INTEGERS
        is_filtered = collected > 0
        size = tl.where(is_filtered, collected.to(tl.int32), vocab)
        # 1. Least bits that are kept. Without filters that is any weight: every one has bits above -1.
        least = tl.full([], -1, tl.int32)
        ties = tl.full([], NO_ID, tl.int32)
        if is_filtered:
            top_k = tl.load(own + TOP_K).to(tl.int32)
            mass = tl.load(state + row * STATES + MASS)
            least, ties = _filter(
                weights, size, tl.load(cuts + row), numbers + row * NUMBERS, top_k, vocab, mass, BLOCK
            )
        # 2. Their mass, block by block in id order.
        total = tl.full([], 0.0, tl.float64)
        equals = tl.full([], 0, tl.int32)
        for start in range(0, size, BLOCK):
            values, num_equal = _kept(weights, start, size, least, ties, equals, BLOCK)
            total += tl.sum(values, axis=0)
            equals += num_equal
        # 3. The block in which the draw falls, and the place there.
        target = total * _uniform(tl.load(own + _SEED), tl.load(own + _CHOICE), tl.load(own + _POSITION))
        before = tl.full([], 0.0, tl.float64)
        equals = tl.full([], 0, tl.int32)
        drawn = tl.full([], NO_ID, tl.int32)
        last = tl.full([], 0, tl.int32)
        for start in range(0, size, BLOCK):
            if drawn == NO_ID:
                values, num_equal = _kept(weights, start, size, least, ties, equals, BLOCK)
                mass = tl.sum(values, axis=0)
                columns = start + tl.arange(0, BLOCK)
                # Rounding may put the target behind the last weight; an id of weight 0 is not drawn for it.
                last = tl.maximum(last, tl.max(tl.where(values > 0, columns, 0), axis=0))
                if before + mass > target:
                    ends = before + tl.cumsum(values, axis=0)
                    is_behind = (ends > target) & (values > 0)
                    drawn = tl.minimum(tl.min(tl.where(is_behind, columns, NO_ID), axis=0), last)
                before += mass
                equals += num_equal
        place = tl.minimum(drawn, last)
        token = place
        if is_filtered:
            token = tl.load(ids + row * vocab + place)
        tl.store(token_ids + row, token)


@triton.jit
def _uniform(seed, choice, position):
    """Return a draw in [0, 1) with 53 bits: Philox4x32-10, as `worker.engine.counter_random` says."""
    low: tl.constexpr = 0xFFFFFFFF
    key0, key1 = seed.to(tl.uint64) & low, seed.to(tl.uint64) >> 32
    c0, c1 = position.to(tl.uint64) & low, position.to(tl.uint64) >> 32
    c2, c3 = choice.to(tl.uint64) & low, choice.to(tl.uint64) >> 32
    c3 = c3 & 0
    for _ in tl.static_range(10):
        product0 = c0 * 0xD2511F53
        product1 = c2 * 0xCD9E8D57
        c0 = (product1 >> 32) ^ c1 ^ key0
        c2 = (product0 >> 32) ^ c3 ^ key1
        c1 = product1 & low
        c3 = product0 & low
        key0 = (key0 + 0x9E3779B9) & low
        key1 = (key1 + 0xBB67AE85) & low
    bits = (c0 << 21) | (c1 >> 11)
    return bits.to(tl.int64).to(tl.float64) * 1.1102230246251565e-16


@triton.jit
def score_row_kernel(
    logits, integers, state, failed, token_ids, logprobs, top_ids, top_logprobs, vocab, max_top,
    BLOCK: tl.constexpr,
):  # fmt: skip
    """Write the drawn id's raw log-probability and the likeliest ids, most likely and lowest first."""
    row = tl.program_id(0).to(tl.int64)
    num_top = tl.load(integers + row * INTEGERS + NUM_LOGPROBS).to(tl.int32)
    if (num_top >= 0) & (tl.load(failed + row) == 0):
        log_sum = tl.load(state + row * STATES + LOG_SUM)
        drawn = tl.load(logits + row * vocab + tl.load(token_ids + row)).to(tl.float64) - log_sum
        tl.store(logprobs + row, tl.maximum(drawn, _LOWEST).to(tl.float32))
        # Each pass finds the best of those that come after the last one found.
        previous = tl.full([], float("inf"), tl.float32)
        previous_id = tl.full([], -1, tl.int32)
        for place in range(tl.minimum(num_top, tl.minimum(max_top, vocab))):
            best = tl.full([], float("-inf"), tl.float32)
            best_id = tl.full([], NO_ID, tl.int32)
            for start in range(0, vocab, BLOCK):
                columns = start + tl.arange(0, BLOCK)
                values = tl.load(logits + row * vocab + columns, mask=columns < vocab, other=float("-inf"))
                is_left = (values < previous) | ((values == previous) & (columns > previous_id))
                is_left = is_left & (columns < vocab)
                highest = tl.max(tl.where(is_left, values, float("-inf")), axis=0)
                found = tl.min(tl.where(is_left & (values == highest), columns, NO_ID), axis=0)
                is_better = (highest > best) | ((highest == best) & (found < best_id))
                best_id = tl.where(is_better, found, best_id)
                best = tl.where(is_better, highest, best)
            tl.store(top_ids + row * max_top + place, best_id)
            value = tl.maximum(best.to(tl.float64) - log_sum, _LOWEST)
            tl.store(top_logprobs + row * max_top + place, value.to(tl.float32))
            previous, previous_id = best, best_id
