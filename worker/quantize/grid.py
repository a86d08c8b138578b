"""The grid of each group: affine with an integer zero point, as every reader of packed weights expects.

Knows one matrix; knows nothing of how codes are found beyond taking the nearest.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

_LEAST_SCALE = 2.0**-100
"""A group of zeros has this scale: codes stay defined and nothing is divided by zero."""


@dataclass(frozen=True, slots=True)
class Grid:
    """value = scale * (code - zero), code in [0, 2 ** bits).

    Scales are bfloat16 numbers held as float32: products with codes are exact there, and a reader that
    computes in bfloat16 or float16 sees the same grid.
    """

    scales: Tensor
    """[out, groups] float32."""
    zeros: Tensor
    """[out, groups] float32, whole numbers in [0, 2 ** bits)."""
    bits: int

    def nearest(self, values: Tensor) -> Tensor:
        """Return the nearest codes. values: [out, groups, columns] -> the same shape, float32."""
        scales, zeros = self.scales.unsqueeze(-1), self.zeros.unsqueeze(-1)
        return (values / scales).round_().add_(zeros).clamp_(0, (1 << self.bits) - 1)

    def values(self, codes: Tensor) -> Tensor:
        """Return what codes stand for, same shape."""
        return (codes - self.zeros.unsqueeze(-1)) * self.scales.unsqueeze(-1)


def fit(values: Tensor, bits: int, shrink: Tensor | float = 1.0) -> Grid:
    """Return grids from each group's least to its greatest value, zero among them.

    A value inside the range is at most half a scale from its nearest code: the scale is rounded up, so that
    the range stays covered, and a rounded zero point moves the grid by at most half a step.

    Args:
        values: [out, groups, columns] float32.
        bits: Of a code.
        shrink: Factor on the range, [out, groups] or one for all; values outside are clipped.
    """
    top = (1 << bits) - 1
    low = values.amin(-1).clamp_(max=0) * shrink
    high = values.amax(-1).clamp_(min=0) * shrink
    scales = _round_up_to_bfloat16(((high - low) / top).clamp_(min=_LEAST_SCALE))
    return Grid(scales, (-low / scales).round_().clamp_(0, top), bits)


def _round_up_to_bfloat16(values: Tensor) -> Tensor:
    """Round positive float32 numbers up to the next bfloat16, kept as float32."""
    return ((values.view(torch.int32) + 0xFFFF) & ~0xFFFF).view(torch.float32)
