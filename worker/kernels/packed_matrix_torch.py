"""A weight as the GPU's products read it, and the reference of `packed_linear` (see there for the contract).

Knows torch alone.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from worker.kernels.group_quantize import GROUP as ACTIVATION_GROUP
from worker.kernels.packed_linear import GROUPS, INT4_CENTRE


@dataclass(frozen=True, slots=True, eq=False)
class PackedMatrix:
    """One weight: dense, or codes with a scale and perhaps a zero point per group of columns."""

    codes: Tensor
    """Dense: [out, in]. 8 bits: [out, in] int8, codes less 128. 4 bits: [out, in / 2] uint8; of a group's
    bytes the j-th holds its column j in the low and its column j + group / 2 in the high half."""
    bits: int
    """16 (any float), 8 or 4."""
    group: int = 0
    """Columns that share a scale; 0 for dense."""
    scales: Tensor | None = None
    """[out, in / group] in the activation type; None for dense."""
    zeros: Tensor | None = None
    """[out, in / group] int8, less 128 for 8 bits; None where every code is centred."""

    def __post_init__(self) -> None:
        assert self.bits in (4, 8, 16)
        assert (self.bits == 16) == (self.scales is None)
        if self.scales is not None:
            assert self.group in GROUPS
            assert self.scales.shape == (self.out_features, self.in_features // self.group)
            assert self.zeros is None or self.zeros.shape == self.scales.shape

    @property
    def out_features(self) -> int:
        """Rows."""
        return int(self.codes.shape[0])

    @property
    def in_features(self) -> int:
        """Columns."""
        return int(self.codes.shape[1]) * (2 if self.bits == 4 else 1)

    @property
    def num_bytes(self) -> int:
        """Bytes of device memory."""
        return sum(part.nbytes for part in (self.codes, self.scales, self.zeros) if part is not None)

    def centred(self) -> Tensor:
        """Return code - zero as float32 [out, in / group, group], whole numbers."""
        if self.bits == 4:
            halves = self.codes.unflatten(1, (-1, self.group // 2))
            codes = torch.cat([halves & 15, halves >> 4], dim=-1).float()
        else:
            codes = self.codes.unflatten(1, (-1, self.group)).float()
        if self.zeros is not None:
            return codes - self.zeros.float().unsqueeze(-1)
        return codes - INT4_CENTRE if self.bits == 4 else codes

    def to_dense(self) -> Tensor:
        """Return the values [out, in] in the activation type."""
        if self.scales is None:
            return self.codes
        values = self.centred() * self.scales.float().unsqueeze(-1)
        return values.flatten(1).to(self.scales.dtype)


def packed_linear(
    x: Tensor,
    weight: PackedMatrix,
    out: Tensor,
    *,
    bias: Tensor | None = None,
) -> None:
    """Write x @ W^T (+ bias). bias: [out] float32."""
    _finish(x.float() @ weight.to_dense().float().t(), out, bias)


def packed_linear_int8(
    x: Sequence[Tensor],
    weight: PackedMatrix,
    out: Tensor,
    *,
    bias: Tensor | None = None,
) -> None:
    """Write the same of quantised x: codes, scales and sums as `group_quantize` gives them."""
    codes, scales, _ = x
    assert weight.scales is not None
    values = codes.float() * scales.repeat_interleave(ACTIVATION_GROUP, dim=1)
    dense = (weight.centred() * weight.scales.float().unsqueeze(-1)).flatten(1)
    _finish(values @ dense.t(), out, bias)


def _finish(total: Tensor, out: Tensor, bias: Tensor | None) -> None:
    if bias is not None:
        total = total + bias.float()
    out.copy_(total)
