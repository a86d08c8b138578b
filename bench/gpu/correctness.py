"""Compares every kernel on the device with its reference, before anything is timed.

Shapes are the table's heads, groups and rows with short contexts, and wide heads under a window. Knows
kernels and references; knows nothing of time. What an interpreter cannot show is shown here first: that
the sums of a device are as good as NumPy's, and that a row's bits do not depend on the rows beside it.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from bench.gpu.attention_rows import PAGE_SIZE, filled, layout_of
from bench.gpu.comparing import assert_near, assert_same_bits
from bench.gpu.context import BenchContext
from bench.gpu.linear_rows import int4_matrix, int8_matrix, quantised
from bench.gpu.row_checks import check_fused_rows, check_heads_gate_and_cap, check_page_copy
from services.domain.kv_layout import KvFormat
from worker.kernels.kv_pages_torch import LayerKv
from worker.kernels.linear_triton import linear, room_for_pieces
from worker.kernels.packed_matrix_torch import PackedMatrix, packed_linear, packed_linear_int8
from worker.kernels.paged_attention_triton import (
    PagedBatch,
    SplitMemory,
    decode_attention,
    ragged_attention,
)

_SOFT_CAP = 1.0
"""Bends the scores of normal numbers by a tenth and more."""


@dataclass(frozen=True, slots=True)
class Check:
    """One comparison; `run` raises AssertionError where it fails."""

    name: str
    run: Callable[[BenchContext], None]


def check_decode(
    context: BenchContext, kv_format: KvFormat, *, page_size: int = PAGE_SIZE, is_masked: bool = False
) -> None:
    """Compare decode attention with the formula, and with the bits of the ragged kernel.

    Args:
        context: Device and shapes.
        kv_format: Of the pages.
        page_size: Tokens in a page.
        is_masked: Whether there is a window, of a third of the longest context, and a cap.
    """
    lengths = [length for length in (1, 17, 1000, 2048) if length <= context.sizes.decode_context]
    layout = replace(layout_of(context, kv_format), page_size=page_size)
    kv, batch = filled(context, layout, contexts=lengths, rows=[1] * len(lengths))
    how = _how(context, max(lengths), is_masked=is_masked)
    q = _queries(context, len(lengths))
    ours, ragged = (torch.full_like(q, torch.nan) for _ in range(2))
    memory = SplitMemory.allocate(
        num_sequences=len(lengths),
        max_context=max(lengths),
        num_heads=context.sizes.num_heads,
        head_dim=context.sizes.head_dim,
        device=context.device,
    )
    decode_attention(q, kv, ours, batch, memory, lanes=memory.tops.shape[1], **how)
    assert_near(ours, attend_plainly(q, kv, batch, **how))
    by_one = torch.full_like(q, torch.nan)
    decode_attention(q, kv, by_one, batch, memory, lanes=1, **how)
    assert_same_bits(by_one, ours, "lanes move bits")
    ragged_attention(q, kv, ragged, batch, **how)
    assert_near(ours, ragged)
    assert_same_bits(ours, ragged, "decode and ragged attention give a row different bits")


def check_prefill(
    context: BenchContext, kv_format: KvFormat, *, page_size: int = PAGE_SIZE, is_masked: bool = False
) -> None:
    """Compare a prompt, and the end of another one, with the formula; arguments are `check_decode`'s."""
    whole = min(512, context.sizes.prefill_tokens)
    lengths, rows = [whole, whole // 2], [whole, max(1, whole // 8)]
    layout = replace(layout_of(context, kv_format), page_size=page_size)
    kv, batch = filled(context, layout, contexts=lengths, rows=rows)
    how = _how(context, whole, is_masked=is_masked)
    q = _queries(context, sum(rows))
    ours = torch.full_like(q, torch.nan)
    ragged_attention(q, kv, ours, batch, **how)
    assert_near(ours, attend_plainly(q, kv, batch, **how))


def _wide(context: BenchContext) -> BenchContext:
    """Return a run with heads of 256, as Gemma's."""
    return replace(context, sizes=replace(context.sizes, head_dim=256))


def _how(context: BenchContext, longest: int, *, is_masked: bool) -> dict[str, Any]:
    """Return scale, window and cap, as attention takes them."""
    masks = {"window": longest // 3, "soft_cap": _SOFT_CAP} if is_masked else {}
    return {"scale": context.sizes.head_dim**-0.5, **masks}


def check_w4a16(context: BenchContext) -> None:
    """Compare products with symmetric 4-bit codes, as the table times them."""
    _check_few_rows(context, int4_matrix(context, *_shape(context)), context.sizes.few_rows)


def check_other_formats(context: BenchContext) -> None:
    """Compare products with codes of other groups: of 4 bits with zero points, and of 8 bits."""
    int4, int8 = (
        make(replace(context, sizes=replace(context.sizes, group=group)), *_shape(context))
        for make, group in ((int4_matrix, 64), (int8_matrix, 32))
    )
    assert int4.scales is not None
    shifted = replace(int4, zeros=context.integers(0, 16, *int4.scales.shape))
    for weight in (shifted, int8):
        _check_few_rows(context, weight, (1, max(context.sizes.few_rows)))


def _check_few_rows(context: BenchContext, weight: PackedMatrix, counts: Sequence[int]) -> None:
    """Compare products of some numbers of rows, and a row alone with the same row among others."""
    for count in counts:
        x = context.noise(count, weight.in_features)
        ours, theirs = _multiply(x, weight), torch.empty(count, weight.out_features, device=x.device)
        packed_linear(x, weight, theirs)
        assert_near(ours, theirs)
        assert_same_bits(_multiply(x[:1], weight), ours[:1], f"a row's bits change beside {count - 1} others")


def check_w8a8(context: BenchContext) -> None:
    """Compare products of quantised rows, and a row alone with the same row among others."""
    weight = int8_matrix(context, *_shape(context))
    x = quantised(context.noise(min(128, context.sizes.many_rows), weight.in_features))
    ours, theirs = _multiply(x, weight), torch.empty(len(x[0]), weight.out_features, device=x[0].device)
    packed_linear_int8(x, weight, theirs)
    assert_near(ours, theirs)
    first = tuple(part[:1] for part in x)
    assert_same_bits(_multiply(first, weight), ours[:1], f"a row's bits change beside {len(x[0]) - 1} others")


CHECKS = (
    Check("decode attention bf16", lambda context: check_decode(context, KvFormat.BF16)),
    Check("decode attention int8", lambda context: check_decode(context, KvFormat.INT8)),
    Check("ragged attention bf16", lambda context: check_prefill(context, KvFormat.BF16)),
    Check("ragged attention int8", lambda context: check_prefill(context, KvFormat.INT8)),
    # As Gemma's: wide heads under a window and a cap, in larger pages.
    Check(
        "decode attention d256",
        lambda context: check_decode(_wide(context), KvFormat.INT8, page_size=64, is_masked=True),
    ),
    Check(
        "ragged attention d256",
        lambda context: check_prefill(_wide(context), KvFormat.INT8, page_size=64, is_masked=True),
    ),
    Check("w4a16", check_w4a16),
    Check("w8a8", check_w8a8),
    Check("w4a16 with zero points, w8a16", check_other_formats),
    Check("norm and gate", check_fused_rows),
    Check("norms of heads, gate and cap", check_heads_gate_and_cap),
    Check("page copy", check_page_copy),
)


def attend_plainly(
    q: Tensor, kv: LayerKv, batch: PagedBatch, *, scale: float, window: int = 0, soft_cap: float = 0
) -> Tensor:
    """Return causal attention by its formula, in float32 from the numbers as they are stored."""
    _, page_size, head_dim = kv.shape
    num_heads = q.shape[1] // head_dim
    starts, out = batch.query_start.tolist(), torch.empty(q.shape, device=q.device)
    for sequence, length in enumerate(batch.context_len.tolist()):
        first, last = starts[sequence : sequence + 2]
        pages = batch.page_table[sequence, : -(-length // page_size)].long()
        keys, values = (
            _stored(numbers, scales, pages)[:, :length].repeat_interleave(num_heads // len(numbers[0]), dim=0)
            for numbers, scales in ((kv.keys, kv.key_scales), (kv.values, kv.value_scales))
        )
        rows = q[first:last].float().view(last - first, num_heads, head_dim).transpose(0, 1)
        position = torch.arange(length - (last - first), length, device=q.device)
        behind = position.unsqueeze(1) - torch.arange(length, device=q.device)
        seen = (behind >= 0) & (behind < (window or length))
        scores = rows @ keys.transpose(1, 2) * scale
        if soft_cap:
            scores = soft_cap * torch.tanh(scores / soft_cap)
        scores = scores.masked_fill(~seen, -torch.inf)
        out[first:last] = (scores.softmax(-1) @ values).transpose(0, 1).flatten(1)
    return out


def _stored(numbers: Tensor, scales: Tensor | None, pages: Tensor) -> Tensor:
    """Return [heads, tokens, head_dim] float32."""
    rows = numbers[pages].float()
    if scales is not None:
        rows *= scales[pages].unsqueeze(-1)
    return rows.transpose(0, 1).flatten(1, 2)


def _queries(context: BenchContext, rows: int) -> Tensor:
    return context.noise(rows, context.sizes.num_heads * context.sizes.head_dim)


def _shape(context: BenchContext) -> tuple[int, int]:
    side = min(2048, context.sizes.features)
    return side, side


def _multiply(x: Tensor | tuple[Tensor, ...], weight: PackedMatrix) -> Tensor:
    codes = x if isinstance(x, Tensor) else x[0]
    out = torch.full((len(codes), weight.out_features), torch.nan, device=codes.device).to(torch.bfloat16)
    pieces = torch.empty(max(1, room_for_pieces(weight, codes)), device=codes.device)
    linear(x, weight, out, pieces=pieces)
    return out
