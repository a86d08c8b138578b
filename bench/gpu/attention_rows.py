"""Measures attention over pages: decode against bandwidth, prefill against the matrix rate.

Knows the kernels and their memory; the shapes are `sizes`'s, the arithmetic `arithmetic`'s.
"""

import torch

from bench.gpu.arithmetic import causal_attention_flops, kv_bytes
from bench.gpu.context import BenchContext
from bench.gpu.goals import DECODE_ATTENTION, PREFILL_ATTENTION, Row
from services.domain.kv_layout import KvFormat, KvLayout
from worker.kernels.kv_pages_torch import LayerKv, layer_kv
from worker.kernels.paged_attention_triton import (
    PagedBatch,
    SplitMemory,
    decode_attention,
    lanes_of,
    ragged_attention,
)

PAGE_SIZE = 16
_DTYPES = {KvFormat.BF16: torch.bfloat16, KvFormat.INT8: torch.int8}


def decode_row(context: BenchContext, kv_format: KvFormat) -> Row:
    """Decode one token of every sequence over one layer."""
    sizes = context.sizes
    count, length = sizes.decode_sequences, sizes.decode_context
    layout = layout_of(context, kv_format)
    kv, batch = filled(context, layout, contexts=[length] * count, rows=[1] * count)
    q = context.noise(count, sizes.num_heads * sizes.head_dim)
    out = torch.empty_like(q)
    memory = SplitMemory.allocate(
        num_sequences=count,
        max_context=length,
        num_heads=sizes.num_heads,
        head_dim=sizes.head_dim,
        device=context.device,
    )
    lanes = lanes_of(count, sizes.num_kv_heads, memory)
    seconds = context.timer.kernels(
        [lambda: decode_attention(q, kv, out, batch, memory, lanes=lanes, scale=sizes.head_dim**-0.5)]
    )
    moved = kv_bytes(layout, num_sequences=count, context=length)
    return Row(
        goal=DECODE_ATTENTION,
        variant=f"{kv_format} KV",
        figure=moved / seconds / 1e9,
        bound=context.copy_rate / 1e9,
        unit="GB/s",
    )


def prefill_row(context: BenchContext) -> Row:
    """Prefill one prompt in one step."""
    sizes = context.sizes
    count = sizes.prefill_tokens
    kv, batch = filled(context, layout_of(context, KvFormat.BF16), contexts=[count], rows=[count])
    q = context.noise(count, sizes.num_heads * sizes.head_dim)
    out = torch.empty_like(q)
    seconds = context.timer.kernels(
        [lambda: ragged_attention(q, kv, out, batch, scale=sizes.head_dim**-0.5)]
    )  # fmt: skip
    flops = causal_attention_flops(num_tokens=count, num_heads=sizes.num_heads, head_dim=sizes.head_dim)
    return Row(
        goal=PREFILL_ATTENTION,
        figure=flops / seconds / 1e12,
        bound=context.matrix_rate / 1e12,
        unit="TFLOP/s",
    )


def layout_of(context: BenchContext, kv_format: KvFormat) -> KvLayout:
    """Return the pages of one layer."""
    return KvLayout(
        format=kv_format,
        num_layers=1,
        num_kv_heads=context.sizes.num_kv_heads,
        head_dim=context.sizes.head_dim,
        page_size=PAGE_SIZE,
    )


def filled(
    context: BenchContext, layout: KvLayout, *, contexts: list[int], rows: list[int]
) -> tuple[LayerKv, PagedBatch]:
    """Return one layer's memory full of numbers, and sequences whose pages lie in it in random order.

    Args:
        context: Device and randomness.
        layout: Of the pages.
        contexts: Tokens of each sequence.
        rows: How many of them are computed.
    """
    per_sequence = -(-max(contexts) // layout.page_size)
    num_pages = per_sequence * len(contexts)
    kv = layer_kv(
        context.empty(num_pages, layout.page_bytes, dtype=torch.uint8),
        _DTYPES[layout.format],
        layer=0,
        num_layers=1,
        kv_heads=layout.num_kv_heads,
        page_size=layout.page_size,
        head_dim=layout.head_dim,
    )
    for numbers, scales in ((kv.keys, kv.key_scales), (kv.values, kv.value_scales)):
        if scales is None:
            numbers.copy_(context.noise(*numbers.shape))
        else:
            numbers.copy_(context.integers(-127, 128, *numbers.shape))
            scales.copy_(context.noise(*scales.shape, dtype=torch.float32).abs_() / 100)
    order = torch.randperm(num_pages, generator=context.generator, device=context.device)
    starts = [sum(rows[:index]) for index in range(len(rows) + 1)]
    return kv, PagedBatch(
        query_start=torch.tensor(starts, dtype=torch.int32, device=context.device),
        context_len=torch.tensor(contexts, dtype=torch.int32, device=context.device),
        page_table=order.int().view(len(contexts), per_sequence),
    )
