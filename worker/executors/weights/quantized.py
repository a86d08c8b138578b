"""A quantised matrix as every executor takes it: codes, and a scale and an offset per group of columns.

Knows the numbers alone; knows nothing of the format that a file stores them in, or of what an executor makes
of them.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Float32 = NDArray[np.float32]
UInt8 = NDArray[np.uint8]

BITS = (4, 8)
"""Widths of a code that executors take."""
GROUPS = (16, 32, 64, 128)
"""Columns that may share a scale."""


@dataclass(frozen=True, slots=True)
class CodeLayout:
    """How a stored matrix will be held as codes, known before it is read."""

    bits: int
    """4 or 8."""
    group: int
    """Columns that share a scale."""
    has_offsets: bool
    """Whether groups have an offset each, and not one multiple of their scale."""


@dataclass(frozen=True, slots=True, eq=False)
class QuantizedMatrix:
    """An affine group-wise matrix: value = scale * code + offset, product and sum each rounded to float32.

    Worked number: 4 bits, scale 0.5, offset -1, code 15 -> 6.5.
    """

    codes: UInt8
    """[out, in], one code a byte, below 2 ** bits."""
    bits: int
    """4 or 8."""
    group: int
    """Columns that share a scale: 16, 32, 64 or 128. It divides `in`."""
    scales: Float32
    """[out, in / group]."""
    offsets: Float32
    """[out, in / group]: the value of code 0."""

    def __post_init__(self) -> None:
        rows, columns = self.codes.shape
        assert self.bits in BITS
        assert self.group in GROUPS
        assert columns % self.group == 0
        assert self.scales.shape == self.offsets.shape == (rows, columns // self.group)

    def to_float32(self) -> Float32:
        """Return the values as a new array [out, in]."""
        grouped = self.codes.reshape(*self.scales.shape, self.group).astype(np.float32)
        grouped *= self.scales[:, :, None]
        grouped += self.offsets[:, :, None]
        return grouped.reshape(self.codes.shape)
