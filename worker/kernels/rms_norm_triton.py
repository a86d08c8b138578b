"""`rms_norm` in Triton, with its fused forms, and `qk_norm` (see `rms_norm` for the contract).

A row is one program's, summed as one tile whose shape follows from the width alone.

Knows torch and Triton alone.
"""
# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators

from collections.abc import Iterator, Sequence
from itertools import product

import triton
import triton.language as tl
from torch import Tensor

from worker.kernels.aot import CHIPS, AotKernel
from worker.kernels.group_quantize_triton import store_groups
from worker.kernels.paged_attention_forms import HEAD_DIMS

_HEADS = 16
"""Heads that one program of `qk_norm` takes."""
_QK_WARPS = 4


@triton.jit
def rms_norm_kernel(
    x, residual, total, weight, y, codes, scales, sums, width, eps,
    HAS_RESIDUAL: tl.constexpr, QUANTISES: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Normalise one row."""
    row = tl.program_id(0).to(tl.int64)
    columns = tl.arange(0, BLOCK)
    inside = columns < width
    values = tl.load(x + row * width + columns, mask=inside, other=0.0).to(tl.float32)
    if HAS_RESIDUAL:
        values += tl.load(residual + row * width + columns, mask=inside, other=0.0).to(tl.float32)
        rounded = values.to(total.dtype.element_ty)
        tl.store(total + row * width + columns, rounded, mask=inside)
        values = rounded.to(tl.float32)
    root = tl.sqrt_rn(tl.sum(values * values, axis=0) / width + eps)
    values = values / root * tl.load(weight + columns, mask=inside, other=0.0).to(tl.float32)
    rounded = values.to(x.dtype.element_ty)
    if QUANTISES:
        first_group = row * (width // 32)
        store_groups(
            rounded.to(tl.float32), columns, width,
            codes + row * width, scales + first_group, sums + first_group, BLOCK,
        )  # fmt: skip
    else:
        tl.store(y + row * width + columns, rounded, mask=inside)


@triton.jit
def qk_norm_kernel(
    qkv, q_weight, k_weight, out, q_heads, kv_heads, eps,
    HEAD_DIM: tl.constexpr, BLOCK_DIM: tl.constexpr, HEADS: tl.constexpr,
):  # fmt: skip
    """Normalise some heads of one row. qkv, out: [rows, (q_heads + 2 * kv_heads) * HEAD_DIM]."""
    num_heads = q_heads + 2 * kv_heads
    row = tl.program_id(0).to(tl.int64)
    heads = tl.program_id(1) * HEADS + tl.arange(0, HEADS)
    dims = tl.arange(0, BLOCK_DIM)
    inside = (heads < num_heads)[:, None] & (dims < HEAD_DIM)[None, :]
    places = row * num_heads * HEAD_DIM + heads[:, None] * HEAD_DIM + dims[None, :]
    stored = tl.load(qkv + places, mask=inside, other=0.0)
    values = stored.to(tl.float32)
    roots = tl.sqrt_rn(tl.sum(values * values, axis=1) / HEAD_DIM + eps)
    of_q = tl.load(q_weight + dims, mask=dims < HEAD_DIM, other=0.0).to(tl.float32)
    of_k = tl.load(k_weight + dims, mask=dims < HEAD_DIM, other=0.0).to(tl.float32)
    weights = tl.where((heads < q_heads)[:, None], of_q[None, :], of_k[None, :])
    normed = (values / roots[:, None] * weights).to(stored.dtype)
    is_v = (heads >= q_heads + kv_heads)[:, None]
    tl.store(out + places, tl.where(is_v, stored, normed), mask=inside)


def rms_norm(
    x: Tensor,
    weight: Tensor,
    out: Tensor | None,
    *,
    eps: float,
    residual: Tensor | None = None,
    total: Tensor | None = None,
    quantised: Sequence[Tensor] | None = None,
) -> None:
    """Normalise rows of x.

    Args:
        x: [rows, width].
        weight: [width] float32.
        out: [rows, width], or None with `quantised`.
        eps: Added to the mean square.
        residual: [rows, width], added to x first.
        total: [rows, width], where that sum goes; may be `residual`.
        quantised: Codes, scales and sums, written instead of `out`.
    """
    assert (out is None) == (quantised is not None), "rows go to one of the two"
    assert (residual is None) == (total is None), "a sum has a place"
    rows, width = x.shape
    if not rows:
        return
    codes, scales, sums = quantised or (x, x, x)
    block = triton.next_power_of_2(width)
    rms_norm_kernel[(rows,)](
        x,
        x if residual is None else residual,
        x if total is None else total,
        weight,
        x if out is None else out,
        codes,
        scales,
        sums,
        width,
        eps,
        HAS_RESIDUAL=residual is not None,
        QUANTISES=quantised is not None,
        BLOCK=block,
        num_warps=num_warps_of(block),
        enable_fp_fusion=False,
    )


def qk_norm(
    qkv: Tensor, q_weight: Tensor, k_weight: Tensor, out: Tensor, *, q_heads: int, kv_heads: int, eps: float
) -> None:
    """Normalise the q and k heads of qkv into `out`, which may be qkv, and copy v.

    Args:
        qkv: [rows, (q_heads + 2 * kv_heads) * head_dim].
        q_weight: [head_dim] float32.
        k_weight: [head_dim] float32.
        out: Like qkv.
        q_heads: Query heads.
        kv_heads: Key-value heads.
        eps: Added to the mean square.
    """
    head_dim = len(q_weight)
    if not len(qkv):
        return
    qk_norm_kernel[(len(qkv), triton.cdiv(q_heads + 2 * kv_heads, _HEADS))](
        qkv,
        q_weight,
        k_weight,
        out,
        q_heads,
        kv_heads,
        eps,
        HEAD_DIM=head_dim,
        BLOCK_DIM=triton.next_power_of_2(head_dim),
        HEADS=_HEADS,
        num_warps=_QK_WARPS,
        enable_fp_fusion=False,
    )


def num_warps_of(block: int) -> int:
    """Return the warps for a row of `block` columns: by width alone, because they decide how it is summed."""
    return max(1, min(16, block // 512))


_BLOCKS = (1024, 2048, 4096, 8192, 16384)
"""Columns of a tile for rows of 576 (SmolLM2 135M) to 16,384 (Llama 3.1 405B)."""
_DTYPES = ("bf16", "fp16")


def aot_kernels(chip: str) -> Iterator[AotKernel]:
    """Yield every tile with all that may be fused; types in turns, so that either meets all else."""
    fused = ((False, False), (True, False), (False, True), (True, True))
    for place, (block, (has_residual, quantises)) in enumerate(product(_BLOCKS, fused), CHIPS.index(chip)):
        # Four chips and blocks of four: a type changes with both.
        dtype = _DTYPES[(place + place // len(fused)) % 2]
        float_of = f"*{dtype}"
        yield AotKernel(
            name=f"rms-{block}-{dtype}{'-residual' * has_residual}{'-int8' * quantises}",
            function=rms_norm_kernel,
            signature={
                **dict.fromkeys(("x", "residual", "total", "y"), float_of),
                "weight": "*fp32",
                "codes": "*i8" if quantises else float_of,
                **dict.fromkeys(("scales", "sums"), "*fp32" if quantises else float_of),
                "width": "i32",
                "eps": "fp32",
            },
            constexprs={"HAS_RESIDUAL": has_residual, "QUANTISES": quantises, "BLOCK": block},
            aligned=frozenset({"width"}),
            num_warps=num_warps_of(block),
        )
    for place, head_dim in enumerate(HEAD_DIMS, CHIPS.index(chip)):
        dtype = _DTYPES[place % 2]
        yield AotKernel(
            name=f"qk-norm-{head_dim}-{dtype}",
            function=qk_norm_kernel,
            signature={
                **dict.fromkeys(("qkv", "out"), f"*{dtype}"),
                **dict.fromkeys(("q_weight", "k_weight"), "*fp32"),
                **dict.fromkeys(("q_heads", "kv_heads"), "i32"),
                "eps": "fp32",
            },
            constexprs={"HEAD_DIM": head_dim, "BLOCK_DIM": triton.next_power_of_2(head_dim), "HEADS": _HEADS},
            num_warps=_QK_WARPS,
        )
