"""Which Triton type and which chip's tiles a kernel takes, also where the interpreter runs it on the CPU.

The interpreter multiplies bfloat16 by its raw bits. So a kernel converts what it loads to a constexpr type
that `compute_type` chose: the tensor's own on a device, float32 where a bfloat16 tensor is interpreted.
Conversions from bfloat16 are right there; those to it cut off, where a device rounds to the nearest.

Knows torch and Triton alone.
"""

import torch
import triton
import triton.language as tl

from worker.kernels.aot import CHIPS

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


def chip_of(device: torch.device) -> str:
    """Return the chip in `aot.CHIPS` whose tiles fit a device; the oldest where kernels are interpreted."""
    if device.type != "cuda":
        return CHIPS[0]
    if torch.version.hip:
        return "gfx942"
    major, _ = torch.cuda.get_device_capability(device)
    return {8: "sm_80", 9: "sm_90"}.get(major, "sm_100")
