"""Which Triton type a kernel computes with, also where Triton's interpreter runs it on the CPU.

The interpreter multiplies bfloat16 by its raw bits. So a kernel converts what it loads to a constexpr type
that `compute_type` chose: the tensor's own on a device, float32 where a bfloat16 tensor is interpreted.
Conversions from and to bfloat16 are right there.

Knows torch and Triton alone.
"""

import torch
import triton
import triton.language as tl

INTERPRETED = bool(triton.knobs.runtime.interpret)
"""Whether TRITON_INTERPRET=1 was set when kernels were imported."""

_TYPES = {
    torch.float32: tl.float32,
    torch.bfloat16: tl.bfloat16,
    torch.float16: tl.float16,
    torch.int8: tl.int8,
}


def compute_type(dtype: torch.dtype) -> tl.dtype:
    """Return the type that products of tensors of `dtype` are computed from; sums are float32 always."""
    return tl.float32 if INTERPRETED and dtype is torch.bfloat16 else _TYPES[dtype]
