"""Measures products: few rows with 4-bit codes against bandwidth, many with int8 against the vendor's.

Knows the kernels and their formats; the tiles are those of the committed table.
"""

from collections.abc import Iterator
from functools import partial

import torch

from bench.gpu.arithmetic import product_bytes, product_operations
from bench.gpu.context import BenchContext
from bench.gpu.goals import W4A16, W8A8, Row
from worker.kernels.group_quantize import GROUP as ACTIVATION_GROUP
from worker.kernels.group_quantize_triton import group_quantize
from worker.kernels.linear_triton import linear, room_for_pieces
from worker.kernels.packed_matrix_torch import PackedMatrix


def w4a16_rows(context: BenchContext) -> Iterator[Row]:
    """Multiply few rows, W another copy each time; yield a row for each count."""
    sizes, features = context.sizes, context.sizes.features
    weights = [int4_matrix(context, features, features) for _ in range(sizes.copies)]
    for count in sizes.few_rows:
        x, out = context.noise(count, features), context.empty(count, features)
        pieces = context.empty(max(1, room_for_pieces(weights[0], x)), dtype=torch.float32)
        seconds = context.timer.kernels(
            [partial(linear, x, weight, out, pieces=pieces) for weight in weights]
        )  # fmt: skip
        moved = product_bytes(
            weight_bytes=weights[0].num_bytes, num_rows=count, out_features=features, in_features=features
        )
        yield Row(
            goal=W4A16,
            variant=f"M {count}",
            figure=moved / seconds / 1e9,
            bound=context.copy_rate / 1e9,
            unit="GB/s",
        )


def w8a8_row(context: BenchContext) -> Row:
    """Multiply many rows, both sides int8 with a scale for each group of columns."""
    sizes, features, count = context.sizes, context.sizes.features, context.sizes.many_rows
    x = quantised(context.noise(count, features))
    weights = [int8_matrix(context, features, features) for _ in range(sizes.copies)]
    out = context.empty(count, features)
    pieces = context.empty(max(1, room_for_pieces(weights[0], x[0])), dtype=torch.float32)
    seconds = context.timer.kernels(
        [partial(linear, x, weight, out, pieces=pieces) for weight in weights]
    )  # fmt: skip
    operations = product_operations(num_rows=count, out_features=features, in_features=features)
    return Row(
        goal=W8A8, figure=operations / seconds / 1e12, bound=context.int8_rate / 1e12, unit="TOP/s"
    )  # fmt: skip


def int4_matrix(context: BenchContext, out_features: int, in_features: int) -> PackedMatrix:
    """Return symmetric 4-bit codes."""
    codes = context.integers(0, 256, out_features, in_features // 2, dtype=torch.uint8)
    return PackedMatrix(codes, 4, context.sizes.group, _scales(context, out_features, in_features, 8))


def int8_matrix(context: BenchContext, out_features: int, in_features: int) -> PackedMatrix:
    """Return symmetric 8-bit codes."""
    codes = context.integers(-127, 128, out_features, in_features)
    return PackedMatrix(codes, 8, context.sizes.group, _scales(context, out_features, in_features, 128))


def quantised(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return codes, scales and sums of rows."""
    rows, width = x.shape
    codes = torch.empty(rows, width, dtype=torch.int8, device=x.device)
    scales, sums = (torch.empty(rows, width // ACTIVATION_GROUP, device=x.device) for _ in range(2))
    group_quantize(x, codes, scales, sums)
    return codes, scales, sums


def _scales(context: BenchContext, out_features: int, in_features: int, top: int) -> torch.Tensor:
    noise = context.noise(out_features, in_features // context.sizes.group, dtype=torch.float32)
    return ((noise.abs_() + 0.5) / top / in_features**0.5).to(torch.bfloat16)
