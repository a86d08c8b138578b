"""Measures one tile on the device at hand, and asks the compilers whether it may be committed.

Knows torch, the kernels and the compilers' reports; knows nothing of what is done with the seconds.
"""

from collections.abc import Iterable
from functools import partial

import torch
from triton.runtime.errors import OutOfResources

from bench.aot import tables as aot_tables
from bench.aot.compiling import compile_kernel
from bench.gpu.attention_rows import filled
from bench.gpu.context import BenchContext
from bench.gpu.linear_rows import quantised
from services.domain.kv_layout import KvFormat, KvLayout
from worker.kernels.aot import AotKernel
from worker.kernels.linear_triton import aot_kernel, linear
from worker.kernels.linear_tuning import Tile as LinearTile
from worker.kernels.packed_matrix_torch import PackedMatrix
from worker.kernels.paged_attention_triton import (
    SplitMemory,
    aot_kernels_of,
    decode_attention,
    lanes_of,
    ragged_attention,
)
from worker.kernels.paged_attention_tuning import Kernel
from worker.kernels.paged_attention_tuning import Tile as AttentionTile


class LinearMeasure:
    """Seconds of a product of one format and shape, W another copy each time."""

    def __init__(self, context: BenchContext, chip: str, kind: str, shape: tuple[int, int]) -> None:
        """Make the weights. shape: rows and columns of W."""
        self._context, self._chip, self._kind = context, chip, kind
        self._weights = [_matrix(context, kind, *shape) for _ in range(context.sizes.copies)]

    def is_allowed(self, tile: LinearTile) -> bool:
        """Return whether a tile keeps to what the tables of resources ask."""
        return _spills_nothing(self._chip, [aot_kernel(self._chip, self._kind, tile)])

    def seconds(self, tile: LinearTile, rows: int) -> float | None:
        """Return seconds, None where the tile cannot be launched."""
        context, weight = self._context, self._weights[0]
        dtype = torch.float32 if self._kind == "fp32" else torch.bfloat16
        x = context.noise(rows, weight.in_features, dtype=dtype)
        taken = quantised(x) if self._kind.startswith("w8a8") else x
        out = context.empty(rows, weight.out_features, dtype=dtype)
        pieces = context.empty(tile.splits * rows * weight.out_features, dtype=torch.float32)
        return _seconds(
            context, [partial(linear, taken, each, out, pieces=pieces, tile=tile) for each in self._weights]
        )


class AttentionMeasure:
    """Seconds of one of attention's kernels over one layer's pages."""

    def __init__(self, context: BenchContext, chip: str, kernel: Kernel, key: str) -> None:
        """Fill the pages. key: as `paged_attention_tuning.key` gives it."""
        sizes = context.sizes
        self._context, self._kernel = context, kernel
        self._chip, self._key = chip, key
        head, _, numbers = key.removeprefix("d").partition("-")
        self._head_dim = int(head)
        layout = KvLayout(
            format=KvFormat.INT8 if numbers == "int8" else KvFormat.BF16,
            num_layers=1,
            num_kv_heads=sizes.num_kv_heads,
            head_dim=self._head_dim,
            page_size=16,
        )
        is_decode = kernel == "decode"
        count = sizes.decode_sequences if is_decode else 1
        length = sizes.decode_context if is_decode else sizes.prefill_tokens
        self._kv, self._batch = filled(
            context, layout, contexts=[length] * count, rows=[1 if is_decode else length] * count
        )
        self._q = context.noise(count if is_decode else length, sizes.num_heads * self._head_dim)
        self._out = torch.empty_like(self._q)
        self._memory = SplitMemory.allocate(
            num_sequences=count if is_decode else 0,
            max_context=length,
            num_heads=sizes.num_heads,
            head_dim=self._head_dim,
            device=context.device,
        )

    def is_allowed(self, tile: AttentionTile) -> bool:
        """Return whether a tile keeps to what the tables of resources ask, for every shape that takes it."""
        return _spills_nothing(self._chip, aot_kernels_of(self._chip, self._kernel, self._key, tile))

    def seconds(self, tile: AttentionTile) -> float | None:
        """Return seconds, None where the tile cannot be launched."""
        call = partial(
            ragged_attention, self._q, self._kv, self._out, self._batch, scale=self._head_dim**-0.5, tile=tile
        )
        if self._kernel == "decode":
            call = partial(
                decode_attention,
                *(self._q, self._kv, self._out, self._batch, self._memory),
                lanes=lanes_of(len(self._q), self._kv.shape[0], self._memory),
                scale=self._head_dim**-0.5,
                tile=tile,
            )
        return _seconds(self._context, [call])


def _seconds(context: BenchContext, calls: "list[partial[None]]") -> float | None:
    try:
        return context.timer.kernels(calls)
    except OutOfResources:
        return None


def _spills_nothing(chip: str, kernels: Iterable[AotKernel]) -> bool:
    """Return whether a tile keeps to what every committed table must."""
    return not any(
        list(aot_tables.problems(kernel.name, chip, compile_kernel(kernel, chip))) for kernel in kernels
    )


def _matrix(context: BenchContext, kind: str, out_features: int, in_features: int) -> PackedMatrix:
    """Return a random weight of a format."""
    name, _, group = kind.partition("-g")
    if not group:
        dtype = torch.float32 if kind == "fp32" else torch.bfloat16
        return PackedMatrix(context.noise(out_features, in_features, dtype=dtype), 16)
    bits = int(name[1])
    codes = (
        context.integers(0, 256, out_features, in_features // 2, dtype=torch.uint8)
        if bits == 4
        else context.integers(-127, 128, out_features, in_features)
    )
    noise = context.noise(out_features, in_features // int(group), dtype=torch.float32)
    scales = ((noise.abs_() + 0.5) / (1 << (bits - 1)) / in_features**0.5).to(torch.bfloat16)
    return PackedMatrix(codes, bits, int(group), scales)
