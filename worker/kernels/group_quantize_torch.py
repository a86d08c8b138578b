"""Reference of `group_quantize` in torch (see `group_quantize` for the contract).

Knows torch alone.
"""

import torch
from torch import Tensor

from worker.kernels.group_quantize import GROUP, LEAST


def group_quantize(x: Tensor, codes: Tensor, scales: Tensor, sums: Tensor) -> None:
    """Write the codes, scales and sums of x."""
    grouped = x.float().unflatten(-1, (-1, GROUP))
    largest = grouped.abs().amax(-1, keepdim=True)
    is_finite = grouped.isfinite().all(-1, keepdim=True)
    is_used = is_finite & (largest >= LEAST)
    inverse = torch.where(is_used, 127.0 / largest, 0.0)
    rounded = torch.where(is_used, (grouped * inverse).round_(), 0.0)
    scale = torch.where(is_used, largest / 127.0, torch.where(is_finite, 0.0, torch.nan)).squeeze(-1)
    codes.copy_(rounded.flatten(-2))
    scales.copy_(scale)
    torch.mul(scale, rounded.sum(-1), out=sums)
