"""Codes in the order in which the GPU's products read them; `worker.kernels.packed_linear` is their contract.

Whatever a file's packing (GGUF blocks, AWQ, GPTQ, compressed-tensors), its reader gives a `QuantizedMatrix`,
and this makes the one layout of it, at load. Knows numbers alone.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from worker.executors.weights.quantized import Float32, QuantizedMatrix

Codes = NDArray[np.int8] | NDArray[np.uint8]

GROUPS = (32, 64, 128)
"""Columns that may share a scale on a GPU."""
_TOLERANCE = 2.0**-10
"""How far an offset over its scale may be from a whole number; what files round scales and offsets to."""


@dataclass(frozen=True, slots=True, eq=False)
class GpuCodes:
    """value = scale * (code - zero), as `PackedMatrix` holds it."""

    codes: Codes
    """8 bits: [out, in] int8, codes less 128. 4 bits: [out, in / 2] uint8, halves of a group side by side."""
    bits: int
    group: int
    scales: Float32
    """[out, in / group]."""
    zeros: NDArray[np.int8] | None
    """[out, in / group], less 128 for 8 bits; None where all codes are centred."""


def to_gpu(matrix: QuantizedMatrix) -> GpuCodes | None:
    """Return a matrix in the GPU's layout; None where its groups or offsets have no such form.

    Groups of 16 have none, and neither has an offset that is no whole number of scales (Q4_1, Q4_K and the
    like): such a matrix is multiplied in floats.
    """
    zeros = _whole_zeros(matrix)
    if matrix.group not in GROUPS or zeros is None:
        return None
    centre = 1 << (matrix.bits - 1)
    is_centred = bool((zeros == centre).all())
    if matrix.bits == 8:
        codes: Codes = np.ascontiguousarray((matrix.codes ^ 0x80).view(np.int8))
        zeros = zeros - 128
    else:
        halves = matrix.codes.reshape(len(matrix.codes), -1, 2, matrix.group // 2)
        codes = np.ascontiguousarray((halves[:, :, 0] | halves[:, :, 1] << 4).reshape(len(halves), -1))
    return GpuCodes(
        codes,
        matrix.bits,
        matrix.group,
        matrix.scales,
        None if is_centred else zeros.astype(np.int8),
    )


def stack(parts: list[GpuCodes]) -> GpuCodes | None:
    """Return matrices stacked by rows, as one product reads them; None where their formats differ."""
    if len({(part.bits, part.group) for part in parts}) > 1:
        return None
    bits, group = parts[0].bits, parts[0].group
    zeros = None
    if any(part.zeros is not None for part in parts):
        centre = np.int8(8 if bits == 4 else 0)
        zeros = np.concatenate(
            [np.full(part.scales.shape, centre) if part.zeros is None else part.zeros for part in parts]
        )
    codes: Codes = np.concatenate([part.codes for part in parts])
    return GpuCodes(codes, bits, group, np.concatenate([part.scales for part in parts]), zeros)


def _whole_zeros(matrix: QuantizedMatrix) -> Float32 | None:
    """Return each group's zero point, None where one is no whole number that fits a code."""
    with np.errstate(divide="ignore", invalid="ignore"):
        ratios = -matrix.offsets / matrix.scales
    # A group of zeros: any zero point will do.
    ratios = np.where(
        (matrix.scales == 0) & (matrix.offsets == 0), np.float32(1 << (matrix.bits - 1)), ratios
    )
    zeros = np.round(ratios)
    fits = (zeros >= 0) & (zeros < 1 << matrix.bits) & (np.abs(ratios - zeros) <= _TOLERANCE)
    return zeros if bool(fits.all()) else None
