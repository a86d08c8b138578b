"""Rotation and the writing of pages against the reference, interpreted; and copies of pages."""

import pytest
import torch
from torch import Tensor

from worker.kernels import rope_store_torch
from worker.kernels.covering import covering
from worker.kernels.kv_pages_torch import LayerKv, layer_kv, round_rows
from worker.kernels.page_copy_torch import page_copy as page_copy_reference
from worker.kernels.page_copy_triton import page_copy
from worker.kernels.rms_norm_triton import qk_norm
from worker.kernels.rope_store_triton import rope_store

PAGES, PAGE_SIZE, LAYERS = 4, 16, 2
POSITIONS = torch.tensor([30, 31, 0, 7], dtype=torch.int32)
PLACES = [(3, 14), (3, 15), (1, 0), (0, 7)]
"""Page and token of each row."""
SLOTS = torch.tensor([page * PAGE_SIZE + token for page, token in PLACES], dtype=torch.int32)
FORMATS = [
    (torch.float32, torch.float32),
    (torch.float32, torch.int8),
    (torch.float16, torch.float16),
    (torch.float16, torch.int8),
    (torch.bfloat16, torch.bfloat16),
    (torch.bfloat16, torch.int8),
]


def noise(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def memory(
    kv_dtype: torch.dtype, kv_heads: int, head_dim: int, page_size: int = PAGE_SIZE
) -> tuple[Tensor, LayerKv]:
    """Return pages full of one byte, and the second of their layers."""
    row_bytes = head_dim * kv_dtype.itemsize + (4 if kv_dtype is torch.int8 else 0)
    pages = torch.full((PAGES, LAYERS * 2 * kv_heads * page_size * row_bytes), 0x5A, dtype=torch.uint8)
    kv = layer_kv(
        pages,
        kv_dtype,
        layer=1,
        num_layers=LAYERS,
        kv_heads=kv_heads,
        page_size=page_size,
        head_dim=head_dim,
    )
    return pages, kv


def tables(head_dim: int) -> tuple[Tensor, Tensor]:
    frequencies = 10_000.0 ** (-torch.arange(0, head_dim, 2) / head_dim)
    angles = torch.arange(32.0).unsqueeze(1) * frequencies
    return angles.cos(), angles.sin()


def store(
    qkv: Tensor,
    kv: LayerKv,
    *,
    rows: slice = slice(None),
    norm: tuple[Tensor, Tensor, float] | None = None,
    slots: Tensor = SLOTS,
) -> Tensor:
    """Return q; keys and values go to `kv`."""
    kv_heads, _, head_dim = kv.shape
    cos, sin = tables(head_dim)
    taken = qkv[rows].contiguous()
    q = torch.full((len(taken), qkv.shape[1] - 2 * kv_heads * head_dim), torch.nan).to(qkv.dtype)
    rope_store(
        taken, q, kv, cos=cos, sin=sin, positions=POSITIONS[rows], slots=slots[rows], norm=norm
    )  # fmt: skip
    return q


def expected(qkv: Tensor, kv_heads: int, head_dim: int) -> tuple[Tensor, Tensor, Tensor]:
    """Return what the reference makes of float32: q, and k and v as [rows, kv_heads, head_dim]."""
    cos, sin = tables(head_dim)
    rows = len(qkv)
    q = torch.empty(rows, qkv.shape[1] - 2 * kv_heads * head_dim)
    keys, values = torch.empty(2, rows * kv_heads, head_dim)
    at = POSITIONS.long()
    rope_store_torch.rope_store(
        qkv,
        q,
        keys,
        values,
        cos=torch.cat([cos, cos], dim=1)[at],
        sin=torch.cat([-sin, sin], dim=1)[at],
        store_rows=torch.arange(rows * kv_heads),
    )
    return q, keys.view(rows, kv_heads, head_dim), values.view(rows, kv_heads, head_dim)


def narrowed(x: Tensor, dtype: torch.dtype) -> Tensor:
    """Return float32 as the interpreter narrows it: to bfloat16 it cuts off, where a device rounds."""
    if dtype is torch.bfloat16:
        x = (x.view(torch.int32) & -0x10000).view(torch.float32)
    return x.to(dtype)


@pytest.mark.parametrize(("dtype", "kv_dtype"), FORMATS)
@pytest.mark.parametrize(("q_heads", "kv_heads", "head_dim"), [(4, 2, 64), (15, 5, 80)])
def test_q_and_pages_get_the_references_numbers_rounded_once(
    dtype: torch.dtype, kv_dtype: torch.dtype, q_heads: int, kv_heads: int, head_dim: int
) -> None:
    qkv = noise(4, (q_heads + 2 * kv_heads) * head_dim).to(dtype)
    q, k, v = expected(qkv.float(), kv_heads, head_dim)
    pages, kv = memory(kv_dtype, kv_heads, head_dim)
    theirs, their_kv = memory(kv_dtype, kv_heads, head_dim)
    for page, token, key, value in zip(SLOTS // PAGE_SIZE, SLOTS % PAGE_SIZE, k, v, strict=True):
        for rows, numbers, scales in (
            (key, their_kv.keys, their_kv.key_scales),
            (value, their_kv.values, their_kv.value_scales),
        ):
            if scales is None:
                numbers[page, :, token] = narrowed(rows, kv_dtype)
            else:
                numbers[page, :, token], scales[page, :, token] = round_rows(rows)
    assert torch.equal(store(qkv, kv), narrowed(q, dtype))
    assert torch.equal(pages, theirs), "and no other byte is touched"


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("kv_dtype", [torch.float32, torch.int8])
def test_a_fused_norm_gives_the_bits_of_its_parts(dtype: torch.dtype, kv_dtype: torch.dtype) -> None:
    q_heads, kv_heads, head_dim = 3, 1, 80
    qkv = noise(4, (q_heads + 2 * kv_heads) * head_dim).to(dtype)
    q_weight, k_weight = noise(head_dim, seed=1), noise(head_dim, seed=2)
    apart = torch.empty_like(qkv)
    qk_norm(qkv, q_weight, k_weight, apart, q_heads=q_heads, kv_heads=kv_heads, eps=1e-6)
    pages, kv = memory(kv_dtype, kv_heads, head_dim)
    theirs, their_kv = memory(kv_dtype, kv_heads, head_dim)
    assert torch.equal(store(qkv, kv, norm=(q_weight, k_weight, 1e-6)), store(apart, their_kv))
    assert torch.equal(pages, theirs)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("head_dim", "types", "is_normed", "page_size"),
    covering((64, 80, 96, 128, 256), FORMATS, (False, True), (16, 32, 64, 128)),
    ids=lambda value: str(value),
)
def test_any_two_values_meet_and_other_pages_hold_the_same_bits(
    head_dim: int, types: tuple[torch.dtype, torch.dtype], is_normed: bool, page_size: int
) -> None:
    q_heads, kv_heads = 5, 2
    dtype, kv_dtype = types
    qkv = noise(4, (q_heads + 2 * kv_heads) * head_dim).to(dtype)
    norm = (noise(head_dim, seed=1), noise(head_dim, seed=2), 1e-6) if is_normed else None
    read = qkv.clone()
    if norm is not None:
        qk_norm(qkv, norm[0], norm[1], read, q_heads=q_heads, kv_heads=kv_heads, eps=norm[2])
    q, k, v = expected(read.float(), kv_heads, head_dim)
    order = [2, 3, 0, 1]
    found = []
    for pages_of in (list(range(PAGES)), order):
        pages, kv = memory(kv_dtype, kv_heads, head_dim, page_size)
        slots = torch.tensor(
            [pages_of[page] * page_size + token for page, token in PLACES], dtype=torch.int32
        )
        assert torch.equal(store(qkv, kv, norm=norm, slots=slots), narrowed(q, dtype))
        found.append((pages, kv))
    (pages, kv), (others, _) = found
    assert torch.equal(pages, others[order])
    for row, (page, token) in enumerate(PLACES):
        for numbers, scales, rows in ((kv.keys, kv.key_scales, k), (kv.values, kv.value_scales, v)):
            wanted = narrowed(rows[row], kv_dtype) if scales is None else round_rows(rows[row])[0]
            assert torch.equal(numbers[page, :, token], wanted)


@pytest.mark.failure("B094")
@pytest.mark.parametrize("kv_dtype", [torch.float32, torch.int8])
def test_a_row_is_stored_alike_alone_and_in_any_batch(kv_dtype: torch.dtype) -> None:
    """B094: with other rows poisoned too."""
    qkv = noise(4, 4 * 64)
    pages, kv = memory(kv_dtype, 1, 64)
    q = store(qkv, kv)
    alone_pages, alone_kv = memory(kv_dtype, 1, 64)
    for row in range(4):
        assert torch.equal(store(qkv, alone_kv, rows=slice(row, row + 1))[0], q[row])
    assert torch.equal(pages, alone_pages)
    page, token = divmod(int(SLOTS[2]), PAGE_SIZE)
    before = [part[page, :, token].clone() for part in (kv.keys, kv.values)]
    poisoned = torch.full_like(qkv, torch.nan)
    poisoned[2] = qkv[2]
    assert torch.equal(store(poisoned, kv)[2], q[2])
    assert all(map(torch.equal, before, (kv.keys[page, :, token], kv.values[page, :, token])))


@pytest.mark.failure("B090")
@pytest.mark.parametrize("bad", [torch.nan, torch.inf])
def test_a_row_of_codes_that_is_not_finite_says_so_and_no_other(bad: float) -> None:
    qkv = noise(4, 4 * 64)
    qkv[1, 2 * 64 + 5] = bad
    qkv[2, 3 * 64 + 5] = bad
    qkv[3, 2 * 64 :] = 1e-40
    _, kv = memory(torch.int8, 1, 64)
    store(qkv, kv)
    assert kv.key_scales is not None
    assert kv.value_scales is not None
    places = [divmod(int(slot), PAGE_SIZE) for slot in SLOTS]
    keys = torch.stack([kv.key_scales[page, 0, token] for page, token in places])
    values = torch.stack([kv.value_scales[page, 0, token] for page, token in places])
    assert keys.isnan().tolist() == [False, True, False, False]
    assert values.isnan().tolist() == [False, False, True, False]
    assert keys[3] == values[3] == 0
    for row, numbers in ((1, kv.keys), (2, kv.values), (3, kv.keys), (3, kv.values)):
        page, token = places[row]
        assert numbers[page, 0, token].eq(0).all()


def test_no_rows_store_nothing() -> None:
    pages, kv = memory(torch.int8, 1, 64)
    before = pages.clone()
    store(noise(4, 4 * 64), kv, rows=slice(0))
    assert torch.equal(pages, before)


@pytest.mark.parametrize("page_bytes", [16, 16 * 1024, 40_016])
def test_copied_pages_have_every_byte_and_others_stay(page_bytes: int) -> None:
    generator = torch.Generator().manual_seed(0)
    pages = torch.randint(0, 256, (6, page_bytes), dtype=torch.uint8, generator=generator)
    theirs = pages.clone()
    sources, targets = (torch.tensor(ids, dtype=torch.int32) for ids in ([5, 1, 1], [0, 4, 2]))
    page_copy_reference(theirs, sources, targets)
    page_copy(pages, sources, targets)
    assert torch.equal(pages, theirs)
