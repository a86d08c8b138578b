"""Kernels of `paged_attention`, over pages of any format (see `paged_attention` and `kv_pages`).

Two kernels share one arithmetic. `ragged_kernel` takes a tile of a sequence's queries with all heads that
share a key-value head. `decode_kernel` takes one query of each sequence and gives every split of its context
to another program; `merge_kernel` adds them up.

Keys go in blocks of `KEY_BLOCK` from position 0, summed in order inside a split of `SPLIT` keys, and splits
are merged in order. Both kernels do so, and neither cuts by anything else; a block or split that a row does
not see adds exact zeros to it. A block's own weights are added two by two (`_sum_keys`), and its products
are of one matrix instruction: where a tile has fewer rows than that instruction wants on its left, keys are
there and the tile is turned over (`KEYS` = 0), which changes no product and no order along what is summed.
So a row's bits do not depend on which kernel computes it.

Knows Triton alone; launches are in `paged_attention_triton`.

Source: Dao 2023, "FlashAttention-2", algorithm 1; Dao et al. 2023, "Flash-Decoding".
"""
# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators

import triton
import triton.language as tl

KEY_BLOCK = 64
"""Keys in a block. Part of the numerics, as `SPLIT`: changing it changes bits. `_sum_keys` takes as many."""
SPLIT = 512
"""Keys of a context that one program of the decode kernel sums."""


@triton.jit
def _sum_keys(weight, KEYS: tl.constexpr):
    """Add up a block of 64 weights along axis `KEYS`, two by two: in one order, whatever thread has which.

    First go those that a thread has of a row of the ragged kernel, so that few are passed between threads.
    """
    OTHER: tl.constexpr = weight.shape[1 - KEYS]
    part = tl.reshape(weight, [OTHER, 2, 2, 2, 2, 2, 2] if KEYS == 1 else [2, 2, 2, 2, 2, 2, OTHER])
    part = tl.sum(tl.sum(tl.sum(part, KEYS + 5), KEYS + 2), KEYS + 1)
    return tl.sum(tl.sum(tl.sum(part, KEYS), KEYS), KEYS)


@triton.jit
def _attend_block(
    top, total, sums, q, position, block, length, pages, keys, values, key_scales, value_scales,
    page_stride, scale_stride, multiplier, cap_factor, window,
    PAGE_SIZE: tl.constexpr, HEAD_DIM: tl.constexpr, HAS_WINDOW: tl.constexpr, HAS_CAP: tl.constexpr,
    COMPUTE: tl.constexpr, KEY_BLOCK: tl.constexpr, KEYS: tl.constexpr,
):  # fmt: skip
    """Add the keys from `block` on to a split's largest exponent of 2, its weights and its weighted values.

    top, total: [M]; sums, q: [M, D] and scores [M, keys] where KEYS, their axis, is 1; turned over where it
    is 0. position: [M], of each row.
    """
    D: tl.constexpr = q.shape[KEYS]
    column = tl.arange(0, D)
    # 1. Where the keys lie. What no token wrote is not read: it may be anything, NaN too.
    key = block + tl.arange(0, KEY_BLOCK)
    written = key < length
    page = tl.load(pages + key // PAGE_SIZE, mask=written, other=0).to(tl.int64)
    row = page * page_stride + key % PAGE_SIZE * HEAD_DIM
    mask = written[:, None]
    if HEAD_DIM != D:
        mask = mask & (column < HEAD_DIM)[None, :]
    # 2. Scores, in units that times `multiplier` are exponents of 2.
    k = tl.load(keys + row[:, None] + column[None, :], mask=mask, other=0).to(COMPUTE)
    if KEYS == 1:
        score = tl.dot(q, tl.trans(k), input_precision="ieee")
    else:
        score = tl.dot(k, q, input_precision="ieee")
    if key_scales is not None:
        scale_row = page * scale_stride + key % PAGE_SIZE
        key_scale = tl.load(key_scales + scale_row, mask=written, other=0)
        score *= tl.expand_dims(key_scale, 1 - KEYS)
    if HAS_CAP:
        score = 1 - 2 / (1 + tl.exp2(score * cap_factor))
    of_key, of_row = tl.expand_dims(key, 1 - KEYS), tl.expand_dims(position, KEYS)
    seen = of_key <= of_row
    if HAS_WINDOW:
        seen = seen & (of_key > of_row - window)
    score = tl.where(seen, score, float("-inf"))
    # 3. Softmax as it goes. A row that has seen nothing yet keeps top = -inf and sums of 0.
    new_top = tl.maximum(top, tl.max(score, KEYS) * multiplier)
    shift = tl.where(new_top == float("-inf"), 0.0, new_top)
    weight = tl.exp2(tl.fma(score, tl.zeros_like(score) + multiplier, -tl.expand_dims(shift, KEYS)))
    keep = tl.exp2(top - shift)
    total = total * keep + _sum_keys(weight, KEYS)
    if value_scales is not None:
        value_scale = tl.load(value_scales + scale_row, mask=written, other=0)
        weight *= tl.expand_dims(value_scale, 1 - KEYS)
    v = tl.load(values + row[:, None] + column[None, :], mask=mask, other=0).to(COMPUTE)
    sums *= tl.expand_dims(keep, KEYS)
    if KEYS == 1:
        sums = tl.dot(weight.to(COMPUTE), v, sums, input_precision="ieee")
    else:
        sums = tl.dot(tl.trans(v), weight.to(COMPUTE), sums, input_precision="ieee")
    return new_top, total, sums


@triton.jit
def _merge(top, total, sums, split_top, split_total, split_sums, KEYS: tl.constexpr):
    """Add a split to those before it."""
    new_top = tl.maximum(top, split_top)
    shift = tl.where(new_top == float("-inf"), 0.0, new_top)
    keep, gain = tl.exp2(top - shift), tl.exp2(split_top - shift)
    return (
        new_top,
        total * keep + split_total * gain,
        sums * tl.expand_dims(keep, KEYS) + split_sums * tl.expand_dims(gain, KEYS),
    )


@triton.jit
def ragged_kernel(
    q, out, keys, values, key_scales, value_scales, query_start, context_len, page_table, num_sequences,
    page_table_stride, page_stride, scale_stride, multiplier, cap_factor, window,
    NUM_HEADS: tl.constexpr, GROUP: tl.constexpr, PAGE_SIZE: tl.constexpr, HEAD_DIM: tl.constexpr,
    HAS_WINDOW: tl.constexpr, HAS_CAP: tl.constexpr, COMPUTE: tl.constexpr,
    M: tl.constexpr, D: tl.constexpr, KEY_BLOCK: tl.constexpr, SPLIT: tl.constexpr, KEYS: tl.constexpr,
):  # fmt: skip
    """Attend from M // GROUP positions of one sequence, times the GROUP heads of one key-value head."""
    TOKENS: tl.constexpr = M // GROUP
    head = tl.program_id(0)
    # 1. Whose tile. Sequence s owns places from query_start[s] // TOKENS + 2 s on: enough wherever it is cut.
    # Late tiles, which are the long ones, come first.
    place = tl.num_programs(1) - 1 - tl.program_id(1)
    low, high = 0, num_sequences - 1
    while low < high:
        middle = (low + high + 1) // 2
        if tl.load(query_start + middle) // TOKENS + 2 * middle <= place:
            low = middle
        else:
            high = middle - 1
    first_row = tl.load(query_start + low)
    length = tl.load(context_len + low)
    first_position = length - (tl.load(query_start + low + 1) - first_row)
    # 2. Which positions: cut at multiples of TOKENS, so a position has one place whatever the chunk.
    tile = first_position // TOKENS + place - (first_row // TOKENS + 2 * low)
    if tile * TOKENS < length:
        m = tl.arange(0, M)
        position = tile * TOKENS + m // GROUP
        valid = (position >= first_position) & (position < length) & (m < TOKENS * GROUP)
        column = tl.arange(0, D)
        row = (first_row + position - first_position) * NUM_HEADS + head * GROUP + m % GROUP
        of_column = tl.expand_dims(column, 1 - KEYS)
        offset = tl.expand_dims(row.to(tl.int64), KEYS) * HEAD_DIM + of_column
        mask = tl.expand_dims(valid, KEYS) & (of_column < HEAD_DIM)
        queries = tl.load(q + offset, mask=mask, other=0).to(COMPUTE)
        # 3. The splits that any row sees, in order.
        end_key = tl.minimum(length, (tile + 1) * TOKENS)
        first_key = tl.maximum(tl.maximum(tile * TOKENS, first_position) - window + 1, 0) if HAS_WINDOW else 0
        top = tl.full([M], float("-inf"), tl.float32)
        total = tl.zeros([M], tl.float32)
        sums = tl.zeros([M, D] if KEYS == 1 else [D, M], tl.float32)
        side = head * PAGE_SIZE
        split_top, split_total, split_sums = top, total, sums
        for block in range(first_key // KEY_BLOCK * KEY_BLOCK, end_key, KEY_BLOCK):
            if block % SPLIT == 0:
                top, total, sums = _merge(top, total, sums, split_top, split_total, split_sums, KEYS)
                split_top = tl.full([M], float("-inf"), tl.float32)
                split_total = tl.zeros([M], tl.float32)
                split_sums = tl.zeros_like(sums)
            split_top, split_total, split_sums = _attend_block(
                split_top, split_total, split_sums, queries, position, block, length,
                page_table + low * page_table_stride, keys + side * HEAD_DIM, values + side * HEAD_DIM,
                key_scales + side if key_scales is not None else None,
                value_scales + side if value_scales is not None else None,
                page_stride, scale_stride, multiplier, cap_factor, window,
                PAGE_SIZE, HEAD_DIM, HAS_WINDOW, HAS_CAP, COMPUTE, KEY_BLOCK, KEYS,
            )  # fmt: skip
        top, total, sums = _merge(top, total, sums, split_top, split_total, split_sums, KEYS)
        tl.store(out + offset, (sums / tl.expand_dims(total, KEYS)).to(out.dtype.element_ty), mask=mask)


@triton.jit
def decode_kernel(
    q, split_tops, split_totals, split_sums, keys, values, key_scales, value_scales, query_start, context_len,
    page_table, page_table_stride, page_stride, scale_stride, max_splits, multiplier, cap_factor, window,
    NUM_HEADS: tl.constexpr, GROUP: tl.constexpr, PAGE_SIZE: tl.constexpr, HEAD_DIM: tl.constexpr,
    HAS_WINDOW: tl.constexpr, HAS_CAP: tl.constexpr, COMPUTE: tl.constexpr,
    M: tl.constexpr, D: tl.constexpr, KEY_BLOCK: tl.constexpr, SPLIT: tl.constexpr,
):  # fmt: skip
    """Sum every `num_programs(1)`-th split of one sequence and key-value head; that number moves no bit."""
    head, lane, sequence = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    length = tl.load(context_len + sequence)
    first_key = tl.maximum(length - window, 0) if HAS_WINDOW else 0
    m, column = tl.arange(0, M), tl.arange(0, D)
    valid = m < GROUP
    heads = head * GROUP + m
    row = tl.load(query_start + sequence) * NUM_HEADS + heads
    mask = (column < HEAD_DIM)[:, None] & valid[None, :]
    offset = row.to(tl.int64)[None, :] * HEAD_DIM + column[:, None]
    queries = tl.load(q + offset, mask=mask, other=0).to(COMPUTE)
    position = tl.zeros([M], tl.int32) + (length - 1)
    side = head * PAGE_SIZE
    for split in range(first_key // SPLIT + lane, tl.cdiv(length, SPLIT), tl.num_programs(1)):
        top = tl.full([M], float("-inf"), tl.float32)
        total = tl.zeros([M], tl.float32)
        sums = tl.zeros([D, M], tl.float32)
        first = tl.maximum(split * SPLIT, first_key // KEY_BLOCK * KEY_BLOCK)
        for block in range(first, tl.minimum((split + 1) * SPLIT, length), KEY_BLOCK):
            top, total, sums = _attend_block(
                top, total, sums, queries, position, block, length,
                page_table + sequence * page_table_stride, keys + side * HEAD_DIM, values + side * HEAD_DIM,
                key_scales + side if key_scales is not None else None,
                value_scales + side if value_scales is not None else None,
                page_stride, scale_stride, multiplier, cap_factor, window,
                PAGE_SIZE, HEAD_DIM, HAS_WINDOW, HAS_CAP, COMPUTE, KEY_BLOCK, KEYS=0,
            )  # fmt: skip
        place = (sequence.to(tl.int64) * max_splits + split) * NUM_HEADS + heads
        tl.store(split_tops + place, top, mask=valid)
        tl.store(split_totals + place, total, mask=valid)
        tl.store(split_sums + place[None, :] * HEAD_DIM + column[:, None], sums, mask=mask)


@triton.jit
def merge_kernel(
    out, split_tops, split_totals, split_sums, query_start, context_len, max_splits, window,
    NUM_HEADS: tl.constexpr, HEAD_DIM: tl.constexpr, HAS_WINDOW: tl.constexpr,
    D: tl.constexpr, SPLIT: tl.constexpr,
):  # fmt: skip
    """Merge the splits of one sequence and head, in order, and write the row."""
    head, sequence = tl.program_id(0), tl.program_id(1)
    length = tl.load(context_len + sequence)
    first_key = tl.maximum(length - window, 0) if HAS_WINDOW else 0
    column = tl.arange(0, D)
    inside = column < HEAD_DIM
    top = tl.full([1], float("-inf"), tl.float32)
    total = tl.zeros([1], tl.float32)
    sums = tl.zeros([1, D], tl.float32)
    for split in range(first_key // SPLIT, tl.cdiv(length, SPLIT)):
        place = (sequence.to(tl.int64) * max_splits + split) * NUM_HEADS + head
        part = tl.load(split_sums + place * HEAD_DIM + column, mask=inside, other=0)
        split_top = tl.load(split_tops + place + tl.arange(0, 1))
        split_total = tl.load(split_totals + place + tl.arange(0, 1))
        top, total, sums = _merge(top, total, sums, split_top, split_total, part[None, :], KEYS=1)
    if length > 0:
        row = (tl.load(query_start + sequence) * NUM_HEADS + head).to(tl.int64)
        result = (sums / total[:, None]).to(out.dtype.element_ty)
        tl.store(out + row * HEAD_DIM + column[None, :], result, mask=inside[None, :])
