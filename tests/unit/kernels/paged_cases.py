"""Ragged batches over poisoned pages, and what the reference makes of them.

Knows both implementations of attention; nothing of what is compared.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import pytest
import torch
from torch import Tensor

from services.domain.kv_layout import KvFormat, KvLayout
from worker.engine.batch import Batch
from worker.executors.torch_step import StepBuilder
from worker.kernels import paged_attention_torch, paged_attention_triton
from worker.kernels.kv_pages_torch import LayerKv, layer_kv, round_rows
from worker.kernels.paged_attention_triton import (
    KEY_BLOCK,
    PagedBatch,
    SplitMemory,
    decode_attention,
    ragged_attention,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class PagedCase:
    """Sequences with all their tokens' queries, keys and values."""

    q: list[Tensor]
    """Of each sequence: [length, q_heads * head_dim]."""
    keys: list[Tensor]
    """Of each sequence: [length, kv_heads, head_dim] float32."""
    values: list[Tensor]
    kv_dtype: torch.dtype
    page_size: int = 16
    window: int = 0
    soft_cap: float = 0.0

    @property
    def heads(self) -> tuple[int, int, int]:
        """Query heads, key-value heads, numbers of a head."""
        _, kv_heads, head_dim = self.keys[0].shape
        return self.q[0].shape[1] // head_dim, kv_heads, head_dim

    def only(self, sequence: int) -> "PagedCase":
        """Return the case of one sequence alone."""
        chosen = slice(sequence, sequence + 1)
        return replace(self, q=self.q[chosen], keys=self.keys[chosen], values=self.values[chosen])

    @property
    def options(self) -> dict[str, float]:
        scale = self.keys[0].shape[-1] ** -0.5
        return {"scale": scale, "window": self.window, "soft_cap": self.soft_cap}


def paged_case(
    lengths: Sequence[int],
    *,
    dtype: torch.dtype = torch.float32,
    kv_dtype: torch.dtype | None = None,
    heads: tuple[int, int] = (4, 2),
    head_dim: int = 64,
    seed: int = 0,
    page_size: int = 16,
    window: int = 0,
    soft_cap: float = 0.0,
) -> PagedCase:
    """Return random sequences of these lengths."""
    generator = torch.Generator().manual_seed(seed)

    def noise(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator)

    return PagedCase(
        q=[noise(length, heads[0] * head_dim).to(dtype) for length in lengths],
        keys=[noise(length, heads[1], head_dim) for length in lengths],
        values=[noise(length, heads[1], head_dim) for length in lengths],
        kv_dtype=kv_dtype or dtype,
        page_size=page_size,
        window=window,
        soft_cap=soft_cap,
    )


@dataclass(frozen=True, slots=True)
class Stored:
    """A case's keys and values in pages, up to some length of each sequence."""

    kv: LayerKv
    page_table: Tensor
    num_pages: int


def store(case: PagedCase, contexts: Sequence[int], *, seed: int = 0, poison: float = torch.nan) -> Stored:
    """Put the first tokens of each sequence into pages in random order, all other memory poisoned.

    The layer is the second of three, so that strides and offsets matter.
    """
    _, kv_heads, head_dim = case.heads
    size = case.page_size
    counts = [-(-context // size) for context in contexts]
    num_pages = sum(counts) + 3
    rows = 3 * 2 * kv_heads * size
    row_bytes = head_dim * case.kv_dtype.itemsize + (4 if case.kv_dtype is torch.int8 else 0)
    pages = torch.empty(num_pages, rows * row_bytes, dtype=torch.uint8)
    views = [
        layer_kv(
            pages,
            case.kv_dtype,
            layer=layer,
            num_layers=3,
            kv_heads=kv_heads,
            page_size=size,
            head_dim=head_dim,
        )
        for layer in range(3)
    ]
    for view in views:
        for numbers, scales in ((view.keys, view.key_scales), (view.values, view.value_scales)):
            # 1e30 is infinity in float16.
            numbers.fill_(127 if scales is not None else torch.tensor(poison).to(numbers.dtype))
            if scales is not None:
                scales.fill_(poison)
    order = torch.randperm(num_pages, generator=torch.Generator().manual_seed(seed))
    # Entries past a context are no pages: who reads them fails.
    table = torch.full((len(contexts), max(counts) + 1), 1 << 20, dtype=torch.int32)
    for sequence, (context, count) in enumerate(zip(contexts, counts, strict=True)):
        table[sequence, :count] = order[:count].int()
        order = order[count:]
        token = torch.arange(context)
        places = table[sequence, token // size].long(), token % size
        _write(views[1].keys, views[1].key_scales, places, case.keys[sequence][:context])
        _write(views[1].values, views[1].value_scales, places, case.values[sequence][:context])
    return Stored(views[1], table, num_pages)


def _write(numbers: Tensor, scales: Tensor | None, places: tuple[Tensor, Tensor], rows: Tensor) -> None:
    page, slot = places
    if scales is None:
        numbers[page, :, slot] = rows.to(numbers.dtype)
    else:
        numbers[page, :, slot], scales[page, :, slot] = round_rows(rows)


def paged_batch(spans: Sequence[tuple[int, int]], table: Tensor) -> PagedBatch:
    """Return the batch in which sequence i computes its tokens from spans[i][0] to spans[i][1]."""
    starts = np.cumsum([0] + [end - start for start, end in spans])
    return PagedBatch(
        query_start=torch.tensor(starts, dtype=torch.int32),
        context_len=torch.tensor([end for _, end in spans], dtype=torch.int32),
        page_table=table,
    )


def rows_of(case: PagedCase, spans: Sequence[tuple[int, int]]) -> Tensor:
    """Return the queries of these tokens, sequence after sequence."""
    return torch.cat([q[start:end] for q, (start, end) in zip(case.q, spans, strict=True)])


def attend_ragged(case: PagedCase, spans: Sequence[tuple[int, int]], **memory: float) -> Tensor:
    """Return the ragged kernel's output for these tokens, written over NaN."""
    stored = store(case, [end for _, end in spans], **memory)  # type: ignore[arg-type]
    q = rows_of(case, spans)
    out = torch.full_like(q, torch.nan)
    ragged_attention(q, stored.kv, out, paged_batch(spans, stored.page_table), **case.options)  # type: ignore[arg-type]
    return out


def attend_decode(case: PagedCase, contexts: Sequence[int], *, lanes: int = 1, **memory: float) -> Tensor:
    """Return the decode kernel's output for the last token of each context, all memory NaN before."""
    spans = [(max(context - 1, 0), context) for context in contexts]
    stored = store(case, contexts, **memory)  # type: ignore[arg-type]
    q = rows_of(case, spans)
    out = torch.full_like(q, torch.nan)
    num_heads, _, head_dim = case.heads
    splits = SplitMemory.allocate(
        num_sequences=len(contexts),
        max_context=max(contexts),
        num_heads=num_heads,
        head_dim=head_dim,
        device=q.device,
    )
    for part in (splits.tops, splits.totals, splits.sums):
        part.fill_(torch.nan)
    batch = paged_batch(spans, stored.page_table)
    decode_attention(q, stored.kv, out, batch, splits, lanes=lanes, **case.options)  # type: ignore[arg-type]
    return out


def expected(case: PagedCase, spans: Sequence[tuple[int, int]]) -> Tensor:
    """Return what the torch reference gives in float32, from the numbers as they are stored."""
    stored = store(case, [end for _, end in spans], poison=0.0)
    num_heads, kv_heads, head_dim = case.heads
    layout = KvLayout(
        format=KvFormat.F32,
        num_layers=1,
        num_kv_heads=kv_heads,
        head_dim=head_dim,
        page_size=case.page_size,
    )
    rows = torch.zeros(stored.num_pages + 1, 2, kv_heads, case.page_size, head_dim)
    for side, numbers, scales in (
        (0, stored.kv.keys, stored.kv.key_scales),
        (1, stored.kv.values, stored.kv.value_scales),
    ):
        rows[:-1, side] = numbers.float() if scales is None else numbers.float() * scales.unsqueeze(-1)
    counts = [end - start for start, end in spans]
    batch = Batch(
        ids=np.zeros(sum(counts), np.int32),
        positions=np.concatenate([np.arange(start, end, dtype=np.int32) for start, end in spans]),
        query_start=np.cumsum([0, *counts]).astype(np.int32),
        context_len=np.array([end for _, end in spans], np.int32),
        page_table=stored.page_table.numpy(),
        out_rows=np.zeros(1, np.int32),
        sampling=(),
    )
    builder = StepBuilder(
        layout,
        num_heads=num_heads,
        row_tiles=(1,),
        query_tiles=(16,),
        windows=(case.window,),
        zero_page=stored.num_pages,
    )
    groups = builder.build(batch).groups[case.window]
    memory = rows.view(-1, head_dim)
    q = rows_of(case, spans).float()
    out = torch.empty_like(q)
    paged_attention_torch.paged_attention(
        q,
        memory[layout.key_row(0) :],
        memory[layout.value_row(0) :],
        out,
        groups,
        scale=case.options["scale"],
        soft_cap=case.soft_cap,
    )
    return out


def use_small_splits(monkeypatch: pytest.MonkeyPatch) -> int:
    """Cut contexts into splits of two blocks, so that short ones have several. Return the keys of one."""
    monkeypatch.setattr(paged_attention_triton, "SPLIT", 2 * KEY_BLOCK)
    return 2 * KEY_BLOCK
