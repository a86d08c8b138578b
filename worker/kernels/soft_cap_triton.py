"""`soft_cap` in Triton (see `soft_cap` for the contract).

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
def soft_cap_kernel(x, out, count, cap, BLOCK: tl.constexpr):
    """Bend a piece of a flat array."""
    places = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    inside = places < count
    z = tl.load(x + places, mask=inside, other=0.0).to(tl.float32) / cap
    # tanh by an exponential that cannot overflow; NaN stays NaN.
    decay = tl.exp(-2.0 * tl.abs(z))
    bent = (1.0 - decay) / (1.0 + decay)
    tl.store(out + places, (cap * tl.where(z < 0, -bent, bent)).to(out.dtype.element_ty), mask=inside)


def soft_cap(x: Tensor, out: Tensor, *, cap: float) -> None:
    """Write cap * tanh(x / cap) into `out`. Both are contiguous."""
    count = x.numel()
    if count:
        soft_cap_kernel[(triton.cdiv(count, _BLOCK),)](
            x, out, count, cap, BLOCK=_BLOCK, num_warps=_NUM_WARPS, enable_fp_fusion=False
        )


def aot_kernels(chip: str) -> Iterator[AotKernel]:
    """Yield the one form: logits are float32."""
    yield AotKernel(
        name="cap-fp32",
        function=soft_cap_kernel,
        signature={"x": "*fp32", "out": "*fp32", "count": "i32", "cap": "fp32"},
        constexprs={"BLOCK": _BLOCK},
        num_warps=_NUM_WARPS,
    )
