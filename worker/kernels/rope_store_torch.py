"""Reference of `rope_store` in torch (see `rope_store` for the contract).

Knows torch alone.
"""

import torch
from torch import Tensor


def rope_store(
    qkv: Tensor,
    q: Tensor,
    keys: Tensor,
    values: Tensor,
    *,
    cos: Tensor,
    sin: Tensor,
    store_rows: Tensor,
) -> None:
    """Rotate q into `q`, scatter rotated k and v into `keys` and `values`."""
    num_rows, head_dim = qkv.shape[0], keys.shape[1]
    num_q_heads = q.shape[1] // head_dim
    heads = qkv.view(num_rows, -1, head_dim)
    num_kv_heads = (heads.shape[1] - num_q_heads) // 2
    k, v = heads[:, num_q_heads:-num_kv_heads], heads[:, -num_kv_heads:]
    _rotate(heads[:, :num_q_heads], q.view(num_rows, num_q_heads, head_dim), cos, sin)
    rotated = torch.empty(num_rows, num_kv_heads, head_dim)
    _rotate(k, rotated, cos, sin)
    num_tokens = store_rows.shape[0] // num_kv_heads
    keys.index_copy_(0, store_rows, rotated[:num_tokens].reshape(-1, head_dim))
    values.index_copy_(0, store_rows, v[:num_tokens].reshape(-1, head_dim))


def _rotate(x: Tensor, out: Tensor, cos: Tensor, sin: Tensor) -> None:
    """Turn pairs (i, i + d/2) of x: [rows, heads, d]. Products and sums are apart, so none is fused."""
    cos, sin = cos.unsqueeze(1), sin.unsqueeze(1)
    left, right = x.chunk(2, dim=-1)
    out_left, out_right = out.chunk(2, dim=-1)
    torch.mul(left, cos, out=out_left)
    out_left.sub_(right * sin)
    torch.mul(right, cos, out=out_right)
    out_right.add_(left * sin)
