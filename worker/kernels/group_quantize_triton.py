"""`group_quantize` in Triton, by itself and as the last part of other kernels (see `group_quantize`).

Knows torch and Triton alone.
"""
# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators

from collections.abc import Iterator

import triton
import triton.language as tl
from torch import Tensor

from worker.kernels.aot import AotKernel
from worker.kernels.group_quantize import GROUP, LEAST

_GROUP = tl.constexpr(GROUP)
_LEAST = tl.constexpr(LEAST)
_ROUNDER = tl.constexpr(12582912.0)
"""1.5 * 2^23: added and taken away, it leaves a float of a smaller size rounded to the nearest integer."""
_INFINITY_BITS = tl.constexpr(0x7F800000)

_BLOCK = 1024
_NUM_WARPS = 4


@triton.jit
def store_groups(values, columns, width, codes, scales, sums, BLOCK: tl.constexpr):
    """Store columns of one row as codes. values: [BLOCK] float32; the pointers are those of the row."""
    NUM: tl.constexpr = BLOCK // _GROUP
    grouped = tl.reshape(values, [NUM, _GROUP])
    # As integers, NaN is above infinity and infinity above every number.
    largest_bits = tl.max(tl.abs(grouped).to(tl.int32, bitcast=True), axis=1)
    largest = largest_bits.to(tl.float32, bitcast=True)
    is_finite = largest_bits < _INFINITY_BITS
    is_used = is_finite & (largest >= _LEAST)
    inverse = tl.where(is_used, tl.div_rn(127.0, tl.where(is_used, largest, 1.0)), 0.0)
    scaled = tl.where(is_used[:, None], grouped * inverse[:, None], 0.0)
    rounded = (scaled + _ROUNDER) - _ROUNDER
    scale = tl.where(is_used, tl.div_rn(largest, 127.0), tl.where(is_finite, 0.0, float("nan")))
    tl.store(codes + columns, tl.reshape(rounded, [BLOCK]).to(tl.int8), mask=columns < width)
    # Sums of whole numbers below 2^24 are exact in any order.
    groups = tl.min(tl.reshape(columns, [NUM, _GROUP]), axis=1) // _GROUP
    inside = groups * _GROUP < width
    tl.store(scales + groups, scale, mask=inside)
    tl.store(sums + groups, scale * tl.sum(rounded, axis=1), mask=inside)


@triton.jit
def group_quantize_kernel(x, codes, scales, sums, width, BLOCK: tl.constexpr):
    """Quantise one piece of one row."""
    row = tl.program_id(0).to(tl.int64)
    columns = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    values = tl.load(x + row * width + columns, mask=columns < width, other=0.0).to(tl.float32)
    first_group = row * (width // _GROUP)
    store_groups(values, columns, width, codes + row * width, scales + first_group, sums + first_group, BLOCK)


def group_quantize(x: Tensor, codes: Tensor, scales: Tensor, sums: Tensor) -> None:
    """Write the codes, scales and sums of x."""
    rows, width = x.shape
    assert width % GROUP == 0, "rows are whole groups"
    if rows:
        group_quantize_kernel[(rows, triton.cdiv(width, _BLOCK))](
            x, codes, scales, sums, width, BLOCK=_BLOCK, num_warps=_NUM_WARPS, enable_fp_fusion=False
        )


def aot_kernels(chip: str) -> Iterator[AotKernel]:
    """Yield what is launched, the same on every chip."""
    for dtype in ("bf16", "fp16"):
        yield AotKernel(
            name=f"quantize-{dtype}",
            function=group_quantize_kernel,
            signature={"x": f"*{dtype}", "codes": "*i8", "scales": "*fp32", "sums": "*fp32", "width": "i32"},
            constexprs={"BLOCK": _BLOCK},
            aligned=frozenset({"width"}),
            num_warps=_NUM_WARPS,
        )
