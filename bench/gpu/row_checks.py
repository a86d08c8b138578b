"""Compares the kernels that work on rows by themselves, and copies of pages, with their references.

Knows kernels and references; knows nothing of time, or of which of them a row of the table times.
"""

import torch
from torch import Tensor

from bench.gpu.comparing import assert_near
from bench.gpu.context import BenchContext
from bench.gpu.linear_rows import quantised
from worker.kernels import act_mul_torch, act_mul_triton
from worker.kernels.group_quantize_torch import group_quantize as group_quantize_reference
from worker.kernels.page_copy_torch import page_copy as page_copy_reference
from worker.kernels.page_copy_triton import page_copy
from worker.kernels.rms_norm_torch import rms_norm as rms_norm_reference
from worker.kernels.rms_norm_triton import qk_norm, rms_norm
from worker.kernels.soft_cap_torch import soft_cap as soft_cap_reference
from worker.kernels.soft_cap_triton import soft_cap

_ROWS = 5


def check_fused_rows(context: BenchContext) -> None:
    """Compare a norm after a sum, and a gate, each ending in a quantisation, with their parts."""
    width = min(4096, context.sizes.features)
    x, residual, weight = (
        context.noise(_ROWS, width),
        context.noise(_ROWS, width),
        context.noise(width).float(),
    )
    total, ours, theirs = torch.empty_like(x), torch.empty_like(x), torch.empty_like(x)
    rms_norm(x, weight, ours, eps=1e-5, residual=residual, total=total)
    assert_near(total, residual.float() + x.float())
    rms_norm_reference(total, weight, theirs, eps=1e-5)
    assert_near(ours, theirs)
    fused = _groups(x)
    rms_norm(x, weight, None, eps=1e-5, residual=residual, total=total, quantised=fused)
    _assert_codes(fused, ours)
    gate_up, gated = context.noise(_ROWS, 2 * width), torch.empty_like(x)
    act_mul_triton.silu_mul(gate_up, gated)
    plain = torch.empty(_ROWS, width, device=x.device)
    act_mul_torch.silu_mul(gate_up.float(), plain)
    assert_near(gated, plain)
    fused = _groups(x)
    act_mul_triton.silu_mul(gate_up, None, fused)
    _assert_codes(fused, gated)


def check_heads_gate_and_cap(context: BenchContext) -> None:
    """Compare norms of heads, the gate of Gemma's models, and the cap of logits."""
    q_heads, kv_heads, head_dim = context.sizes.num_heads, context.sizes.num_kv_heads, context.sizes.head_dim
    x = context.noise(_ROWS, (q_heads + 2 * kv_heads) * head_dim)
    q_weight, k_weight = (context.noise(head_dim).float() for _ in range(2))
    ours, theirs = torch.full_like(x, torch.nan), x.clone()
    qk_norm(x, q_weight, k_weight, ours, q_heads=q_heads, kv_heads=kv_heads, eps=1e-6)
    q, k, _ = theirs.view(_ROWS, -1, head_dim).split([q_heads, kv_heads, kv_heads], dim=1)
    for heads, weight in ((q, q_weight), (k, k_weight)):
        rms_norm_reference(heads.clone(), weight, heads, eps=1e-6)
    assert_near(ours, theirs)
    width = x.shape[1] // 2
    gated = torch.full((_ROWS, width), torch.nan, device=x.device).to(x.dtype)
    plain = torch.empty(_ROWS, width, device=x.device)
    act_mul_triton.gelu_tanh_mul(x, gated)
    act_mul_torch.gelu_tanh_mul(x.float(), plain)
    assert_near(gated, plain)
    logits = 50 * context.noise(_ROWS, 1000, dtype=torch.float32)
    capped, plain = torch.full_like(logits, torch.nan), torch.empty_like(logits)
    soft_cap(logits, capped, cap=30.0)
    soft_cap_reference(logits, plain, cap=30.0)
    assert_near(capped, plain)


def check_page_copy(context: BenchContext) -> None:
    """Compare copies of pages, byte for byte, and the pages beside them."""
    pages = context.integers(0, 256, 6, 40_016, dtype=torch.uint8)
    theirs = pages.clone()
    sources, targets = (
        torch.tensor(ids, dtype=torch.int32, device=context.device) for ids in ([5, 1, 1], [0, 4, 2])
    )
    page_copy_reference(theirs, sources, targets)
    page_copy(pages, sources, targets)
    assert torch.equal(pages, theirs), "a page is not the one that it was copied from, or another one changed"


def _groups(x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return room for codes, scales and sums, nothing in it yet."""
    codes, scales, sums = quantised(x)
    return codes.fill_(99), scales.fill_(torch.nan), sums.fill_(torch.nan)


def _assert_codes(fused: tuple[Tensor, Tensor, Tensor], rows: Tensor) -> None:
    """Compare with what the reference makes of rows: a code may fall to the other side of a half."""
    theirs = _groups(rows)
    group_quantize_reference(rows, *theirs)
    codes, scales, _ = fused
    assert (codes.int() - theirs[0].int()).abs().max() <= 1, "codes differ by more than one"
    assert_near(scales, theirs[1])
