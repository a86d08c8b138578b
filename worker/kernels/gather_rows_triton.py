"""`gather_rows` and `gather_shard` in Triton (see `gather_rows` for the contract).

Knows torch and Triton alone.
"""
# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators

from collections.abc import Iterator

import triton
import triton.language as tl
from torch import Tensor

from worker.kernels.aot import AotKernel

_BLOCK = 1024
_NUM_WARPS = 4


@triton.jit
def gather_rows_kernel(x, rows, out, width, factor, BLOCK: tl.constexpr):
    """Copy a piece of one row."""
    place = tl.program_id(0).to(tl.int64)
    source = tl.load(rows + place).to(tl.int64)
    columns = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = columns < width
    values = tl.load(x + source * width + columns, mask=inside, other=0.0).to(tl.float32)
    tl.store(out + place * width + columns, (values * factor).to(out.dtype.element_ty), mask=inside)


@triton.jit
def gather_shard_kernel(x, rows, out, width, first, count, BLOCK: tl.constexpr):
    """Copy a piece of one row if it is one of the `count` from `first` on, which lie here; else zeros."""
    place = tl.program_id(0).to(tl.int64)
    source = tl.load(rows + place).to(tl.int64) - first
    is_here = (source >= 0) & (source < count)
    columns = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    # An address outside of the part is never made, not even behind a mask.
    start = tl.where(is_here, source, 0) * width
    values = tl.load(x + start + columns, mask=columns < tl.where(is_here, width, 0), other=0.0)
    tl.store(out + place * width + columns, values, mask=columns < width)


def gather_rows(x: Tensor, rows: Tensor, out: Tensor, *, factor: float = 1.0) -> None:
    """Write the rows of x that `rows` names, times a factor."""
    width = x.shape[1]
    if len(rows):
        gather_rows_kernel[(len(rows), triton.cdiv(width, _BLOCK))](
            x, rows, out, width, factor, BLOCK=_BLOCK, num_warps=_NUM_WARPS, enable_fp_fusion=False
        )


def gather_shard(x: Tensor, rows: Tensor, out: Tensor, *, first: int) -> None:
    """Write the rows of a table that `rows` names, of which x is the part from `first` on; else zeros."""
    width = x.shape[1]
    if len(rows):
        gather_shard_kernel[(len(rows), triton.cdiv(width, _BLOCK))](
            x, rows, out, width, first, len(x), BLOCK=_BLOCK, num_warps=_NUM_WARPS, enable_fp_fusion=False
        )


def aot_kernels(chip: str) -> Iterator[AotKernel]:
    """Yield what is launched, the same on every chip."""
    for dtype in ("bf16", "fp16"):
        yield AotKernel(
            name=f"gather-{dtype}",
            function=gather_rows_kernel,
            signature={
                "x": f"*{dtype}",
                "rows": "*i32",
                "out": f"*{dtype}",
                "width": "i32",
                "factor": "fp32",
            },
            constexprs={"BLOCK": _BLOCK},
            aligned=frozenset({"width"}),
            num_warps=_NUM_WARPS,
        )
        yield AotKernel(
            name=f"gather-shard-{dtype}",
            function=gather_shard_kernel,
            signature={
                "x": f"*{dtype}",
                "rows": "*i32",
                "out": f"*{dtype}",
                "width": "i32",
                "first": "i32",
                "count": "i32",
            },
            constexprs={"BLOCK": _BLOCK},
            aligned=frozenset({"width"}),
            num_warps=_NUM_WARPS,
        )
