"""Rounding to the nearest code, and what any method gives back: codes and their grid.

Knows one matrix at a time.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from worker.quantize.gram import Gram
from worker.quantize.grid import Grid, fit


@dataclass(frozen=True, slots=True)
class Rounded:
    """A quantised matrix."""

    codes: Tensor
    """[out, in] uint8."""
    grid: Grid

    def values(self) -> Tensor:
        """Return what it stands for, [out, in] float32."""
        codes = self.codes.view(*self.grid.scales.shape, -1).to(torch.float32)
        return self.grid.values(codes).view(self.codes.shape)

    def rows(self, start: int, stop: int) -> "Rounded":
        """Return some of its rows."""
        grid = Grid(self.grid.scales[start:stop], self.grid.zeros[start:stop], self.grid.bits)
        return Rounded(self.codes[start:stop], grid)


def round_nearest(weight: Tensor, *, bits: int, group: int, shrink: Tensor | float = 1.0) -> Rounded:
    """Return the nearest code of every weight.

    Args:
        weight: [out, in] float32.
        bits: Of a code.
        group: Columns that share a scale; it divides `in`.
        shrink: Factor on each group's range (see `fit`).
    """
    grouped = weight.view(len(weight), -1, group)
    grid = fit(grouped, bits, shrink)
    return Rounded(grid.nearest(grouped).to(torch.uint8).view(weight.shape), grid)


def round_clipped(weight: Tensor, gram: Gram, *, bits: int, group: int) -> Rounded:
    """Return the nearest codes on grids whose range is cut to where the product's error is least.

    Each group of each row is searched by itself, as if the other columns were exact.

    Source: AWQ's search for the range (Lin et al. 2023, section 4), after scaling.
    """
    grouped = weight.view(len(weight), -1, group)
    blocks = torch.stack(
        [gram.products[c : c + group, c : c + group] for c in range(0, weight.shape[1], group)]
    )
    best_shrink = torch.ones(grouped.shape[:2])
    least = torch.full(grouped.shape[:2], torch.inf)
    for shrink in _SHRINKS:
        grid = fit(grouped, bits, shrink)
        off = grid.values(grid.nearest(grouped)).sub_(grouped)
        error = (torch.einsum("ogc,gcd->ogd", off, blocks) * off).sum(-1)
        is_better = error < least
        best_shrink[is_better] = shrink
        least = torch.where(is_better, error, least)
    return round_nearest(weight, bits=bits, group=group, shrink=best_shrink)


_SHRINKS = tuple(1 - step / 20 for step in range(11))
"""Factors on a group's range that are tried: 1 to 0.5."""
