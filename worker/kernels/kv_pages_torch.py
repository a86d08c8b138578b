"""Views of one layer's keys and values in pages, and rounding to what they store (see `kv_pages`).

Knows torch alone.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from worker.kernels.kv_pages import CODE_MAX, LEAST


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerKv:
    """One layer's part of all pages; strided views of the same memory."""

    keys: Tensor
    """[num_pages, kv_heads, page_size, head_dim]; inside a page contiguous."""
    values: Tensor
    """Like `keys`."""
    key_scales: Tensor | None
    """[num_pages, kv_heads, page_size] float32 where numbers are int8, else None."""
    value_scales: Tensor | None

    @property
    def shape(self) -> tuple[int, int, int]:
        """Heads, tokens of a page, numbers of a row."""
        _, heads, page_size, head_dim = self.keys.shape
        return heads, page_size, head_dim


def layer_kv(
    pages: Tensor,
    dtype: torch.dtype,
    *,
    layer: int,
    num_layers: int,
    kv_heads: int,
    page_size: int,
    head_dim: int,
) -> LayerKv:
    """Return the views of `layer`. pages: [num_pages, page_bytes] uint8."""
    side = kv_heads * page_size
    page_rows = num_layers * 2 * side
    numbers = pages[:, : page_rows * head_dim * dtype.itemsize].view(dtype)
    numbers = numbers.unflatten(1, (num_layers, 2, kv_heads, page_size, head_dim))
    keys, values = numbers[:, layer, 0], numbers[:, layer, 1]
    if dtype is not torch.int8:
        return LayerKv(keys=keys, values=values, key_scales=None, value_scales=None)
    scales = pages[:, page_rows * head_dim :].view(torch.float32)
    scales = scales.unflatten(1, (num_layers, 2, kv_heads, page_size))
    return LayerKv(keys=keys, values=values, key_scales=scales[:, layer, 0], value_scales=scales[:, layer, 1])


def round_rows(rows: Tensor) -> tuple[Tensor, Tensor]:
    """Return int8 codes and scales of rows. rows: [..., head_dim] float32; scales: [...] float32."""
    largest = rows.abs().amax(-1)
    is_finite = rows.isfinite().all(-1)
    is_used = is_finite & (largest >= LEAST)
    scales = torch.where(is_used, largest / CODE_MAX, torch.where(is_finite, 0.0, torch.nan))
    divisors = torch.where(is_used, scales, 1.0).unsqueeze(-1)
    codes = torch.where(is_used.unsqueeze(-1), (rows / divisors).round_(), 0.0)
    return codes.to(torch.int8), scales
