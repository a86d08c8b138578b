"""Launches `paged_attention` in Triton (see `paged_attention` for the contract, `kv_pages` for the memory).

`ragged_attention` serves prefill, chunked prefill and mixed batches; `decode_attention` one query for each
sequence. The two cut keys alike, merge them alike and multiply with one instruction (which
`tests/unit/kernels/test_attention_instructions.py` reads from what is compiled), so they give a row the same
bits.

Knows torch and Triton alone; knows nothing of who planned the batch.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from worker.kernels import paged_attention_kernels_triton as kernels
from worker.kernels import paged_attention_tuning as tuning
from worker.kernels.aot import AotKernel
from worker.kernels.dtypes_triton import INTERPRETED, chip_of, compute_type
from worker.kernels.kv_pages_torch import LayerKv
from worker.kernels.paged_attention_forms import Form, forms
from worker.kernels.paged_attention_kernels_triton import KEY_BLOCK, SPLIT
from worker.kernels.paged_attention_tuning import KERNELS, Kernel, Tile

_LOG2_E = math.log2(math.e)


@dataclass(frozen=True, slots=True, kw_only=True)
class PagedBatch:
    """Whose rows are whose, and where their keys lie. The rows of a sequence are its last tokens."""

    query_start: Tensor
    """[S + 1] int32: sequence s has rows query_start[s] to query_start[s + 1]."""
    context_len: Tensor
    """[S] int32: tokens whose keys are stored, those of its rows too. 0 where there is no sequence."""
    page_table: Tensor
    """[S, any] int32: page of tokens page_size * i and on; what lies past a context is not read."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SplitMemory:
    """What the decode kernel leaves for the merge; written before it is read."""

    tops: Tensor
    """[S, splits, q_heads] float32"""
    totals: Tensor
    """[S, splits, q_heads] float32"""
    sums: Tensor
    """[S, splits, q_heads, head_dim] float32"""

    @classmethod
    def allocate(
        cls, *, num_sequences: int, max_context: int, num_heads: int, head_dim: int, device: torch.device
    ) -> "SplitMemory":
        """Return memory for batches of at most these sizes.

        Worked number: 64 sequences of 8,192, 32 heads of 128: 16 splits, 17 MB.
        """
        shape = (num_sequences, triton.cdiv(max_context, SPLIT), num_heads)
        return cls(
            tops=torch.empty(shape, device=device),
            totals=torch.empty(shape, device=device),
            sums=torch.empty((*shape, head_dim), device=device),
        )


_DECODE_PROGRAMS = 4096
"""Programs of one decode launch: some waves on any chip, so that long contexts are shared out. Untuned."""


_AOT_KV_HEADS = 8


_CAPPED_ROWS = 64
"""Most rows of a tile whose scores are bent: beside an exponential's registers, 128 would spill."""


_OPTIONS: dict[str, dict[str, object]] = {
    # Left alone, the assembler keeps to fewer registers and spills into memory what it could have held.
    "sm_100": {"maxnreg": 255},
    # The compiler would take another instruction, with other sums inside, for larger tiles.
    "gfx942": {"matrix_instr_nonkdim": 16},
}
"""What a chip's compiler is told of all kernels here."""


def _tile_of(kernel: Kernel, chip: str, head_dim: int, kv_dtype: torch.dtype, group: int, cap: float) -> Tile:
    tile = tuning.tile(chip, kernel, head_dim, is_int8=kv_dtype is torch.int8)
    return _fitted(tile, group, has_cap=cap > 0)


def _fitted(tile: Tile, group: int, *, has_cap: bool) -> Tile:
    """Return a tile with a row at least for every head that shares a key-value head, and few under a cap."""
    m = min(tile.m, _CAPPED_ROWS) if has_cap else tile.m
    return replace(tile, m=max(m, triton.next_power_of_2(group)))


def ragged_attention(
    q: Tensor, kv: LayerKv, out: Tensor, batch: PagedBatch, *,
    scale: float, window: int = 0, soft_cap: float = 0, tile: Tile | None = None,
) -> None:  # fmt: skip
    """Write the attention output of every row of every sequence.

    Args:
        q: [T, q_heads * head_dim] bfloat16 or float16; float32 where kernels are interpreted.
        kv: One layer's memory, the rows' own keys and values already stored.
        out: Like q; rows of no sequence stay as they are.
        batch: Whose rows are whose.
        scale: Factor on the products of queries and keys.
        window: Keys a row sees, its own the last of them; 0 is all.
        soft_cap: Bound of the scaled scores; 0 is none.
        tile: For measuring; else the table's.
    """
    kv_heads, _, head_dim = kv.shape
    group = q.shape[1] // head_dim // kv_heads
    chip = chip_of(q.device)
    tile = tile or _tile_of("ragged", chip, head_dim, kv.keys.dtype, group, soft_cap)
    num_sequences = len(batch.context_len)
    tokens = tile.m // group
    grid = (kv_heads, len(q) // tokens + 2 * num_sequences)
    kernels.ragged_kernel[grid](
        q, out, kv.keys, kv.values, kv.key_scales, kv.value_scales,
        batch.query_start, batch.context_len, batch.page_table, num_sequences,
        batch.page_table.stride(0), *_page_strides(kv), *_factors(scale, soft_cap), window,
        GROUP=group, M=tile.m, KEYS=_key_axis(tile), COMPUTE=compute_type(q.dtype),
        **_shape(q, kv, window, soft_cap),
        num_warps=tile.num_warps, num_stages=tile.num_stages, enable_fp_fusion=False,
        **_OPTIONS.get(chip, {}),
    )  # fmt: skip


def decode_attention(
    q: Tensor, kv: LayerKv, out: Tensor, batch: PagedBatch, memory: SplitMemory, *, lanes: int,
    scale: float, window: int = 0, soft_cap: float = 0, tile: Tile | None = None,
) -> None:  # fmt: skip
    """Write the attention output of the one row of every sequence.

    Args:
        q: [T, q_heads * head_dim] bfloat16 or float16; float32 where kernels are interpreted.
        kv: As in `ragged_attention`, as are all that are not named here.
        out: Like q.
        batch: Every sequence with one row, or without a context.
        memory: For at least this many sequences and their longest context.
        lanes: Programs that share the splits of a sequence and head; moves no bit. As many as the longest
            context has splits is the most that is of use; a captured graph may hold fewer.
        scale: Factor on the products of queries and keys.
        window: Keys a row sees.
        soft_cap: Bound of the scaled scores.
        tile: As in `ragged_attention`.
    """
    kv_heads, _, head_dim = kv.shape
    group = q.shape[1] // head_dim // kv_heads
    chip = chip_of(q.device)
    tile = tile or _tile_of("decode", chip, head_dim, kv.keys.dtype, group, soft_cap)
    num_sequences, max_splits = len(batch.context_len), memory.tops.shape[1]
    splits = (memory.tops, memory.totals, memory.sums)
    shape = _shape(q, kv, window, soft_cap)
    kernels.decode_kernel[(kv_heads, lanes, num_sequences)](
        q, *splits, kv.keys, kv.values, kv.key_scales, kv.value_scales,
        batch.query_start, batch.context_len, batch.page_table,
        batch.page_table.stride(0), *_page_strides(kv), max_splits, *_factors(scale, soft_cap), window,
        GROUP=group, M=tile.m, COMPUTE=compute_type(q.dtype),
        **shape, num_warps=tile.num_warps, num_stages=tile.num_stages, enable_fp_fusion=False,
        **_OPTIONS.get(chip, {}),
    )  # fmt: skip
    kernels.merge_kernel[(kv_heads * group, num_sequences)](
        out, *splits, batch.query_start, batch.context_len, max_splits, window,
        **{name: shape[name] for name in ("NUM_HEADS", "HEAD_DIM", "HAS_WINDOW", "D", "SPLIT")},
        num_warps=1, enable_fp_fusion=False, **_OPTIONS.get(chip, {}),
    )  # fmt: skip


def lanes_of(num_sequences: int, kv_heads: int, memory: SplitMemory) -> int:
    """Return the lanes with which so many sequences fill a chip, whatever their contexts.

    Worked number: 64 sequences and 8 heads are 512 programs, so 8 lanes each; 1 sequence of up to 8,192
    tokens has 16 splits and as many lanes.
    """
    lanes: int = min(memory.tops.shape[1], triton.cdiv(_DECODE_PROGRAMS, num_sequences * kv_heads))
    return lanes


def _key_axis(tile: Tile) -> int:
    """Return along which axis of a ragged tile's products keys lie: the left operand has 64 rows or more."""
    return 1 if tile.m >= KEY_BLOCK else 0


def _page_strides(kv: LayerKv) -> tuple[int, int]:
    return kv.keys.stride(0), 0 if kv.key_scales is None else kv.key_scales.stride(0)


def _factors(scale: float, soft_cap: float) -> tuple[float, float]:
    """Return what turns a score into an exponent of 2, and a product into the exponent that a cap needs."""
    return (soft_cap or scale) * _LOG2_E, 2 * scale / soft_cap * _LOG2_E if soft_cap else 0.0


def _shape(q: Tensor, kv: LayerKv, window: int, soft_cap: float) -> dict[str, Any]:
    assert INTERPRETED or q.dtype is not torch.float32, "float32 is the interpreter's: its tiles spill"
    _, page_size, head_dim = kv.shape
    return {
        "NUM_HEADS": q.shape[1] // head_dim,
        "PAGE_SIZE": page_size,
        "HEAD_DIM": head_dim,
        "D": triton.next_power_of_2(head_dim),
        "HAS_WINDOW": window > 0,
        "HAS_CAP": soft_cap > 0,
        "KEY_BLOCK": KEY_BLOCK,
        "SPLIT": SPLIT,
    }


def aot_kernels(chip: str) -> Iterator[AotKernel]:
    """Yield the two kernels in all their forms, and the merge of splits once for all that share it."""
    merged: set[str] = set()
    for kernel in KERNELS:
        for form in forms(chip, kernel):
            yield _aot_kernel(chip, f"{kernel}-{form.name}", form, _tile_of_form(kernel, chip, form))
            if kernel == "decode" and form.merge_name not in merged:
                merged.add(form.merge_name)
                yield _aot_kernel(
                    chip, f"merge-{form.merge_name}", form, Tile(m=1, num_warps=1, num_stages=3)
                )


def aot_kernels_of(chip: str, kernel: Kernel, key: str, tile: Tile) -> Iterator[AotKernel]:
    """Yield every form of a kernel that an entry of the chip's table is for, cut by another tile."""
    for form in forms(chip, kernel):
        if tuning.key(form.head_dim, is_int8=form.kv_dtype == "i8") == key:
            yield _aot_kernel(
                chip, f"{kernel}-{form.name}", form, _fitted(tile, form.group, has_cap=form.has_cap)
            )


def _tile_of_form(kernel: Kernel, chip: str, form: Form) -> Tile:
    tile = tuning.tile(chip, kernel, form.head_dim, is_int8=form.kv_dtype == "i8")
    return _fitted(tile, form.group, has_cap=form.has_cap)


def _aot_kernel(chip: str, name: str, form: Form, tile: Tile) -> AotKernel:
    function: Any = getattr(kernels, f"{name.partition('-')[0]}_kernel")
    absent = () if form.kv_dtype == "i8" else ("key_scales", "value_scales")
    types = {
        **dict.fromkeys(("q", "out"), f"*{form.dtype}"),
        **dict.fromkeys(("keys", "values"), f"*{form.kv_dtype}"),
        **dict.fromkeys(("key_scales", "value_scales", "split_tops", "split_totals", "split_sums"), "*fp32"),
        **dict.fromkeys(("query_start", "context_len", "page_table"), "*i32"),
        **dict.fromkeys(("num_sequences", "page_table_stride", "page_stride", "scale_stride"), "i32"),
        **dict.fromkeys(("max_splits", "window"), "i32"),
        **dict.fromkeys(("multiplier", "cap_factor"), "fp32"),
    }
    constants = {
        **dict.fromkeys(absent),
        "NUM_HEADS": _AOT_KV_HEADS * form.group,
        "GROUP": form.group,
        "PAGE_SIZE": form.page_size,
        "HEAD_DIM": form.head_dim,
        "D": triton.next_power_of_2(form.head_dim),
        "HAS_WINDOW": form.has_window,
        "HAS_CAP": form.has_cap,
        "COMPUTE": {"bf16": tl.bfloat16, "fp16": tl.float16}[form.dtype],
        "KEY_BLOCK": KEY_BLOCK,
        "SPLIT": SPLIT,
        "M": tile.m,
        "KEYS": _key_axis(tile),
    }
    names = function.arg_names
    return AotKernel(
        name=name,
        function=function,
        signature={each: types[each] for each in names if each in types and each not in absent},
        constexprs={each: constants[each] for each in names if each in constants},
        aligned=frozenset({"page_stride", "scale_stride"} & set(names)),
        num_warps=tile.num_warps,
        num_stages=tile.num_stages,
        options=_OPTIONS.get(chip, {}),
    )
