"""`rope_store` in Triton, into pages of any format (see `rope_store` and `kv_pages`), with `qk_norm` fused.

A head of a row is one program's, whatever the other rows are.

Knows torch and Triton alone.
"""
# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators

from collections.abc import Iterator

import triton
import triton.language as tl
from torch import Tensor

from worker.kernels.aot import CHIPS, AotKernel
from worker.kernels.covering import covering
from worker.kernels.kv_pages import CODE_MAX, LEAST
from worker.kernels.kv_pages_torch import LayerKv
from worker.kernels.paged_attention_forms import FORMATS, HEAD_DIMS, PAGE_SIZES

_HEADS = 16
"""Heads that one program takes; as in `qk_norm`, because the shape of a tile decides how a head is summed."""
_NUM_WARPS = 4
_CODE_MAX = tl.constexpr(float(CODE_MAX))
_LEAST = tl.constexpr(LEAST)
_ROUNDER = tl.constexpr(12582912.0)
"""1.5 * 2^23: added and taken away, it leaves a float of a smaller size rounded to the nearest integer."""
_INFINITY_BITS = tl.constexpr(0x7F800000)


@triton.jit
def _normed(values, roots, q_weight, k_weight, is_q, dims, inside, dtype: tl.constexpr):
    """Return rows over their roots times their weights, rounded to `dtype` as `qk_norm` leaves them."""
    of_q = tl.load(q_weight + dims, mask=inside, other=0.0).to(tl.float32)
    of_k = tl.load(k_weight + dims, mask=inside, other=0.0).to(tl.float32)
    weights = tl.where(is_q[:, None], of_q[None, :], of_k[None, :])
    return (values / roots[:, None] * weights).to(dtype).to(tl.float32)


@triton.jit
def _codes(values):
    """Return int8 codes of rows [heads, D] float32 and their scales [heads]."""
    # As integers, NaN is above infinity and infinity above every number.
    largest_bits = tl.max(tl.abs(values).to(tl.int32, bitcast=True), axis=1)
    largest = largest_bits.to(tl.float32, bitcast=True)
    is_finite = largest_bits < _INFINITY_BITS
    is_used = is_finite & (largest >= _LEAST)
    scales = tl.div_rn(largest, _CODE_MAX)
    divisors = tl.where(is_used, scales, 1.0)
    scaled = tl.div_rn(tl.where(is_used[:, None], values, 0.0), tl.zeros_like(values) + divisors[:, None])
    codes = ((scaled + _ROUNDER) - _ROUNDER).to(tl.int8)
    return codes, tl.where(is_used, scales, tl.where(is_finite, 0.0, float("nan")))


@triton.jit
def rope_store_kernel(
    qkv, q, keys, values, key_scales, value_scales, cos, sin, positions, slots, q_weight, k_weight,
    q_heads, kv_heads, page_stride, scale_stride, eps,
    PAGE_SIZE: tl.constexpr, HEAD_DIM: tl.constexpr, D: tl.constexpr, HEADS: tl.constexpr,
):  # fmt: skip
    """Take some heads of one row. qkv: [rows, (q_heads + 2 * kv_heads) * HEAD_DIM]."""
    HALF: tl.constexpr = HEAD_DIM // 2
    num_heads = q_heads + 2 * kv_heads
    row = tl.program_id(0).to(tl.int64)
    head = tl.program_id(1) * HEADS + tl.arange(0, HEADS)
    is_q, is_v = head < q_heads, head >= q_heads + kv_heads
    dim = tl.arange(0, D)
    in_head = dim < HEAD_DIM
    inside = (head < num_heads)[:, None] & in_head[None, :]
    # 1. Each number with the other of its pair.
    partner = tl.where(dim < HALF, dim + HALF, dim - HALF)
    start = qkv + row * num_heads * HEAD_DIM + head[:, None] * HEAD_DIM
    stored = tl.load(start + dim[None, :], mask=inside, other=0.0)
    plain = stored.to(tl.float32)
    own, other = plain, tl.load(start + partner[None, :], mask=inside, other=0.0).to(tl.float32)
    if q_weight is not None:
        roots = tl.sqrt_rn(tl.sum(own * own, axis=1) / HEAD_DIM + eps)
        own = _normed(own, roots, q_weight, k_weight, is_q, dim, in_head, stored.dtype)
        other = _normed(other, roots, q_weight, k_weight, is_q, partner, in_head, stored.dtype)
    # 2. Rotated by the row's position. v is as it was.
    angle = tl.load(positions + row).to(tl.int64) * HALF + tl.minimum(dim, partner)
    cosine = tl.load(cos + angle, mask=in_head, other=0.0)
    sine = tl.load(sin + angle, mask=in_head, other=0.0)
    sine = tl.where(dim < HALF, -sine, sine)
    turned = own * cosine[None, :] + other * sine[None, :]
    tl.store(
        q + row * q_heads * HEAD_DIM + head[:, None] * HEAD_DIM + dim[None, :],
        turned.to(q.dtype.element_ty),
        mask=is_q[:, None] & in_head[None, :],
    )
    # 3. Into the row's slot, as the page stores it.
    kept = tl.where(is_v[:, None], plain, turned)
    slot = tl.load(slots + row).to(tl.int64)
    page = slot // PAGE_SIZE
    kv_head = head - q_heads - tl.where(is_v, kv_heads, 0)
    page_row = kv_head * PAGE_SIZE + slot % PAGE_SIZE
    offset = page * page_stride + page_row[:, None] * HEAD_DIM + dim[None, :]
    is_k = (head >= q_heads) & (head < q_heads + kv_heads)
    of_v = is_v & (head < num_heads)
    if key_scales is not None:
        numbers, scales = _codes(kept)
        tl.store(key_scales + page * scale_stride + page_row, scales, mask=is_k)
        tl.store(value_scales + page * scale_stride + page_row, scales, mask=of_v)
    else:
        numbers = kept.to(keys.dtype.element_ty)
    tl.store(keys + offset, numbers, mask=is_k[:, None] & in_head[None, :])
    tl.store(values + offset, numbers, mask=of_v[:, None] & in_head[None, :])


def rope_store(
    qkv: Tensor, q: Tensor, kv: LayerKv, *,
    cos: Tensor, sin: Tensor, positions: Tensor, slots: Tensor,
    norm: tuple[Tensor, Tensor, float] | None = None,
) -> None:  # fmt: skip
    """Rotate q into `q`, store rotated k and plain v.

    Args:
        qkv: [rows, (q_heads + 2 * kv_heads) * head_dim].
        q: [rows, q_heads * head_dim], the type of qkv.
        kv: One layer's memory.
        cos: [positions, head_dim / 2] float32.
        sin: Like `cos`.
        positions: [rows] int32.
        slots: [rows] int32: page * page_size + token of the page, different in every row that is no padding.
        norm: Weights [head_dim] float32 of q's and k's heads and eps, where `qk_norm` comes first.
    """
    kv_heads, page_size, head_dim = kv.shape
    rows, num_heads = len(qkv), qkv.shape[1] // head_dim
    if not rows:
        return
    q_weight, k_weight, eps = norm or (None, None, 0.0)
    rope_store_kernel[(rows, triton.cdiv(num_heads, _HEADS))](
        qkv, q, kv.keys, kv.values, kv.key_scales, kv.value_scales, cos, sin, positions, slots,
        q_weight, k_weight, num_heads - 2 * kv_heads, kv_heads,
        kv.keys.stride(0), 0 if kv.key_scales is None else kv.key_scales.stride(0), eps,
        PAGE_SIZE=page_size, HEAD_DIM=head_dim, D=triton.next_power_of_2(head_dim), HEADS=_HEADS,
        num_warps=_NUM_WARPS, enable_fp_fusion=False,
    )  # fmt: skip


_COMMON = tuple(
    (chip, head_dim, types, False, 16) for chip in CHIPS for head_dim in HEAD_DIMS for types in FORMATS[:2]
)


def aot_kernels(chip: str) -> Iterator[AotKernel]:
    """Yield the forms of attention (see `paged_attention_forms`), with normed heads and without.

    That is every size of head over KV in bfloat16 and int8, and of the rest what covers any two values.
    """
    rows = covering(CHIPS, HEAD_DIMS, FORMATS, (False, True), PAGE_SIZES, taken=_COMMON)
    for head_dim, (dtype, kv_dtype), is_normed, page_size in (row[1:] for row in rows if row[0] == chip):
        absent = (() if kv_dtype == "i8" else ("key_scales", "value_scales")) + (
            () if is_normed else ("q_weight", "k_weight")
        )
        types = {
            **dict.fromkeys(("qkv", "q"), f"*{dtype}"),
            **dict.fromkeys(("keys", "values"), f"*{kv_dtype}"),
            **dict.fromkeys(("key_scales", "value_scales", "cos", "sin", "q_weight", "k_weight"), "*fp32"),
            **dict.fromkeys(("positions", "slots"), "*i32"),
            **dict.fromkeys(("q_heads", "kv_heads", "page_stride", "scale_stride"), "i32"),
            "eps": "fp32",
        }
        yield AotKernel(
            name=f"store-d{head_dim}-{dtype}-{kv_dtype}{'-norm' * is_normed}"
            + f"-p{page_size}" * (page_size != 16),
            function=rope_store_kernel,
            signature={name: kind for name, kind in types.items() if name not in absent},
            constexprs={
                **dict.fromkeys(absent),
                "PAGE_SIZE": page_size,
                "HEAD_DIM": head_dim,
                "D": triton.next_power_of_2(head_dim),
                "HEADS": _HEADS,
            },
            aligned=frozenset({"page_stride", "scale_stride"}),
            num_warps=_NUM_WARPS,
        )
