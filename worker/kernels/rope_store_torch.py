"""Reference of `rope_store` in torch (see `rope_store` for the contract).

Knows torch alone.
"""

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
    """Rotate q into `q`, scatter rotated k and plain v into `keys` and `values`."""
    num_rows, head_dim = qkv.shape[0], keys.shape[1]
    num_q_heads = q.shape[1] // head_dim
    heads = qkv.view(num_rows, -1, head_dim)
    num_kv_heads = (heads.shape[1] - num_q_heads) // 2
    qk = heads[:, :-num_kv_heads]
    # Products and sums are apart, so that none is fused into another rounding.
    rotated = qk * cos.unsqueeze(1)
    rotated += qk.roll(head_dim // 2, -1).mul_(sin.unsqueeze(1))
    q.view(num_rows, num_q_heads, head_dim).copy_(rotated[:, :num_q_heads])
    num_tokens = store_rows.shape[0] // num_kv_heads
    k, v = rotated[:num_tokens, num_q_heads:], heads[:num_tokens, -num_kv_heads:]
    keys.index_copy_(0, store_rows, k.reshape(-1, head_dim))
    values.index_copy_(0, store_rows, v.reshape(-1, head_dim))
