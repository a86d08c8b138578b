"""Reference of `group_quantize` in torch (see `group_quantize` for the contract), and where its results lie.

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


def codes_in(slot: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return rows as codes in the memory of their numbers, one behind the other.

    Args:
        slot: [rows, width] contiguous, of 16 bits or more; width is whole groups.

    Returns:
        codes [rows, width] int8, scales and sums [rows, width / GROUP] float32.
    """
    rows, width = slot.shape
    memory, num_groups = slot.view(torch.int8).flatten(), width // GROUP
    num_codes = rows * width
    scales, sums = memory[num_codes : num_codes + 8 * rows * num_groups].view(torch.float32).chunk(2)
    codes = memory[:num_codes].view(rows, width)
    return codes, scales.view(rows, num_groups), sums.view(rows, num_groups)
