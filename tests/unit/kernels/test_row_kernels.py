"""Kernels on rows (norms, gates, caps, look-ups, quantisation) against their references, interpreted."""

import pytest
import torch
from torch import Tensor

from worker.kernels import act_mul_torch, act_mul_triton
from worker.kernels.gather_rows_torch import gather_rows as gather_rows_reference
from worker.kernels.gather_rows_torch import gather_shard as gather_shard_reference
from worker.kernels.gather_rows_triton import gather_rows, gather_shard
from worker.kernels.group_quantize import GROUP
from worker.kernels.group_quantize_torch import group_quantize as group_quantize_reference
from worker.kernels.group_quantize_triton import group_quantize
from worker.kernels.rms_norm_torch import rms_norm as rms_norm_reference
from worker.kernels.rms_norm_triton import qk_norm, rms_norm
from worker.kernels.soft_cap_torch import soft_cap as soft_cap_reference
from worker.kernels.soft_cap_triton import soft_cap

DTYPES = [torch.float32, torch.float16, torch.bfloat16]
TOLERANCE = {torch.float32: 3e-6, torch.float16: 1.5e-3, torch.bfloat16: 1e-2}
"""Relative: a few roundings of float32, or one of the narrow type."""


def noise(*shape: int, dtype: torch.dtype = torch.float32, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def poisoned(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.full(shape, torch.nan).to(dtype)


def empty_groups(rows: int, width: int) -> tuple[Tensor, Tensor, Tensor]:
    codes = torch.full((rows, width), 99, dtype=torch.int8)
    return codes, poisoned(rows, width // GROUP), poisoned(rows, width // GROUP)


def assert_close(ours: Tensor, theirs: Tensor, dtype: torch.dtype) -> None:
    assert ours.dtype is dtype
    bound = TOLERANCE[dtype]
    torch.testing.assert_close(ours.float(), theirs.float(), rtol=bound, atol=bound)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("rows", "width"), [(1, 8), (3, 100), (5, 576), (0, 64)])
def test_rms_norm_equals_its_reference(dtype: torch.dtype, rows: int, width: int) -> None:
    x, weight, out = noise(rows, width, dtype=dtype), noise(width, seed=1), poisoned(rows, width, dtype=dtype)
    expected = torch.empty_like(x)
    rms_norm_reference(x, weight, expected, eps=1e-5)
    rms_norm(x, weight, out, eps=1e-5)
    assert_close(out, expected, dtype)


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_fused_norm_gives_the_bits_of_its_parts(dtype: torch.dtype) -> None:
    x, residual = noise(4, 96, dtype=dtype), noise(4, 96, dtype=dtype, seed=1)
    weight = noise(96, seed=2)
    total, out = poisoned(4, 96, dtype=dtype), poisoned(4, 96, dtype=dtype)
    rms_norm(x, weight, out, eps=1e-5, residual=residual, total=total)
    assert_close(total, residual + x, dtype)
    apart = torch.empty_like(out)
    rms_norm(total, weight, apart, eps=1e-5)
    assert torch.equal(out, apart)
    fused, separate = empty_groups(4, 96), empty_groups(4, 96)
    rms_norm(x, weight, None, eps=1e-5, residual=residual, total=residual, quantised=fused)
    group_quantize(apart, *separate)
    assert torch.equal(residual, total), "the sum may replace the residual"
    assert all(map(torch.equal, fused, separate))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("q_heads", "kv_heads", "head_dim"), [(4, 2, 16), (15, 5, 80)])
def test_qk_norm_normalises_each_head_and_copies_v(
    dtype: torch.dtype, q_heads: int, kv_heads: int, head_dim: int
) -> None:
    num_heads = q_heads + 2 * kv_heads
    x = noise(3, num_heads * head_dim, dtype=dtype)
    q_weight, k_weight = noise(head_dim, seed=1), noise(head_dim, seed=2)
    out = poisoned(*x.shape, dtype=dtype)
    qk_norm(x, q_weight, k_weight, out, q_heads=q_heads, kv_heads=kv_heads, eps=1e-6)
    heads, expected = x.view(3, num_heads, head_dim), x.clone().view(3, num_heads, head_dim)
    k = slice(q_heads, q_heads + kv_heads)
    rms_norm_reference(heads[:, :q_heads], q_weight, expected[:, :q_heads], eps=1e-6)
    rms_norm_reference(heads[:, k], k_weight, expected[:, k], eps=1e-6)
    assert_close(out.view_as(expected), expected, dtype)
    assert torch.equal(out.view_as(expected)[:, k.stop :], heads[:, k.stop :])
    in_place = x.clone()
    qk_norm(in_place, q_weight, k_weight, in_place, q_heads=q_heads, kv_heads=kv_heads, eps=1e-6)
    assert torch.equal(in_place, out)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", ["silu_mul", "gelu_tanh_mul"])
@pytest.mark.parametrize("width", [7, 1056])
def test_act_mul_equals_its_reference(dtype: torch.dtype, name: str, width: int) -> None:
    x, out = noise(3, 2 * width, dtype=dtype) * 3, poisoned(3, width, dtype=dtype)
    expected = torch.empty(3, width)
    getattr(act_mul_torch, name)(x.float(), expected)
    getattr(act_mul_triton, name)(x, out)
    assert_close(out, expected, dtype)
    if width % GROUP == 0:
        fused, separate = empty_groups(3, width), empty_groups(3, width)
        getattr(act_mul_triton, name)(x, None, fused)
        group_quantize(out, *separate)
        assert all(map(torch.equal, fused, separate))


def test_a_gate_far_from_zero_opens_or_closes() -> None:
    x, out = torch.tensor([[100.0, -100.0, 0.0, 2.0, 2.0, 2.0]]), poisoned(1, 3)
    for run in (act_mul_triton.silu_mul, act_mul_triton.gelu_tanh_mul):
        run(x, out)
        assert out.tolist() == [[200.0, pytest.approx(0.0, abs=1e-30), 0.0]]


def test_soft_cap_bends_without_overflow() -> None:
    x = torch.cat([noise(1000) * 50, torch.tensor([0.0, 1e30, -1e30, torch.nan, 1e-6])])
    out, expected = torch.empty_like(x), torch.empty_like(x)
    soft_cap(x, out, cap=30.0)
    soft_cap_reference(x, expected, cap=30.0)
    torch.testing.assert_close(out, expected, rtol=1e-6, atol=5e-6, equal_nan=True)
    soft_cap(x, x, cap=30.0)
    assert torch.equal(x.nan_to_num(), out.nan_to_num())


@pytest.mark.parametrize("dtype", DTYPES)
def test_gather_rows_copies_bits_and_scales(dtype: torch.dtype) -> None:
    table, rows = noise(9, 1030, dtype=dtype), torch.tensor([8, 0, 0, 3], dtype=torch.int32)
    out = poisoned(4, 1030, dtype=dtype)
    gather_rows(table, rows, out)
    assert torch.equal(out, table[rows.long()])
    expected = torch.empty_like(out)
    gather_rows_reference(table, rows, expected, factor=1.7)
    gather_rows(table, rows, out, factor=1.7)
    assert_close(out, expected, dtype)
    gather_rows(table, rows[:0], out[:0])


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("first", "count"), [(0, 4), (4, 5), (3, 1)])
def test_gather_shard_copies_its_own_rows_and_zeros_for_those_of_others(
    dtype: torch.dtype, first: int, count: int
) -> None:
    """The rows beside the part hold NaN: an address outside of it would show."""
    table, rows = noise(9, 1030, dtype=dtype), torch.tensor([8, 0, 3, 0, 4], dtype=torch.int32)
    whole, out = poisoned(9, 1030, dtype=dtype), poisoned(5, 1030, dtype=dtype)
    whole[first : first + count] = table[first : first + count]
    gather_shard(whole[first : first + count], rows, out, first=first)
    for i, row in enumerate(rows.tolist()):
        assert torch.equal(out[i], table[row] if first <= row < first + count else torch.zeros_like(out[i]))
    expected = torch.empty_like(out)
    gather_shard_reference(whole[first : first + count], rows, expected, first=first)
    assert torch.equal(out, expected)
    gather_shard(whole[:2], rows[:0], out[:0], first=0)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("width", [32, 1024, 1056])
def test_group_quantize_equals_its_reference(dtype: torch.dtype, width: int) -> None:
    x = noise(4, width, dtype=dtype)
    x[1, :32] = 0
    x[2, 3] = 1e-36 if dtype is not torch.float16 else 0
    ours, theirs = empty_groups(4, width), empty_groups(4, width)
    group_quantize(x, *ours)
    group_quantize_reference(x, *theirs)
    assert all(map(torch.equal, ours, theirs))
    values = ours[0].float() * ours[1].repeat_interleave(GROUP, dim=1)
    assert (values - x.float()).abs().max() <= ours[1].max() * 0.5001


@pytest.mark.failure("B090")
@pytest.mark.parametrize("bad", [torch.nan, torch.inf, -torch.inf])
def test_a_group_that_is_not_finite_says_so_and_no_other(bad: float) -> None:
    x = noise(3, 96)
    x[1, 40] = bad
    codes, scales, sums = empty_groups(3, 96)
    group_quantize(x, codes, scales, sums)
    is_bad = torch.zeros(3, 3, dtype=torch.bool)
    is_bad[1, 1] = True
    assert torch.equal(scales.isnan(), is_bad)
    assert torch.equal(sums.isnan(), is_bad)
    assert codes[1, 32:64].eq(0).all()


@pytest.mark.failure("B094")
@pytest.mark.parametrize("dtype", DTYPES)
def test_a_row_has_the_same_bits_alone_and_in_any_batch(dtype: torch.dtype) -> None:
    """B094: alone, among others and at another index, with other rows poisoned."""
    weight = noise(192, seed=9)

    def run(x: Tensor) -> list[Tensor]:
        rows = len(x)
        normed, gated = poisoned(rows, 192, dtype=dtype), poisoned(rows, 96, dtype=dtype)
        rms_norm(x, weight, normed, eps=1e-5)
        heads = poisoned(rows, 192, dtype=dtype)
        qk_norm(x, weight[:48], weight[48:96], heads, q_heads=2, kv_heads=1, eps=1e-5)
        act_mul_triton.silu_mul(x, gated)
        groups = empty_groups(rows, 192)
        group_quantize(x, *groups)
        return [normed, heads, gated, *groups]

    x = noise(7, 192, dtype=dtype)
    together = run(x)
    poison = torch.full_like(x, torch.nan)
    for index in (0, 3, 6):
        alone = run(x[index : index + 1])
        among = poison.clone()
        among[5] = x[index]
        for whole, one, other in zip(together, alone, run(among), strict=True):
            assert torch.equal(whole[index], one[0])
            assert torch.equal(other[5], one[0])
