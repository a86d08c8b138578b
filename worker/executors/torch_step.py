"""Turns a batch into the index tensors that the torch executor's kernels read, once per step.

Knows batches, pages and tiles; knows nothing of layers or weights.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from services.domain.kv_layout import KvLayout
from worker.engine.batch import Batch
from worker.kernels.linear import split_rows
from worker.kernels.paged_attention import KEY_BLOCK
from worker.kernels.paged_attention_torch import TileGroup

Int64 = NDArray[np.int64]

_SCORES_PER_GROUP = 1 << 21
"""Scores that one group of attention tiles may hold (8 MiB): bounds memory for long prompts."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TorchStep:
    """One batch, as tensors. T and O are padded to the tiles that cover them."""

    token_tiles: list[int]
    output_tiles: list[int]
    num_outputs: int
    ids: Tensor
    """[T] int64; padding is id 0."""
    positions: Tensor
    """[T] int64; padding is position 0."""
    store_rows: Tensor
    """[tokens * kv_heads] int64: where each token's keys and values go inside a layer."""
    groups: Mapping[int, list[TileGroup]]
    """By attention's window."""
    out_rows: Tensor
    """[O] int64; padding repeats row 0."""


class StepBuilder:
    """Builds steps for one layout and one set of proven tiles."""

    def __init__(
        self,
        layout: KvLayout,
        *,
        num_heads: int,
        row_tiles: Sequence[int],
        query_tiles: Sequence[int],
        windows: Sequence[int],
        zero_page: int,
    ) -> None:
        self._layout = layout
        self._num_heads = num_heads
        self._row_tiles = row_tiles
        self._query_tiles = query_tiles
        self._windows = windows
        self._zero_page = zero_page
        self._head_offsets = np.arange(layout.num_kv_heads, dtype=np.int64) * layout.head_rows

    def build(self, batch: Batch) -> TorchStep:
        """Return the step of a batch."""
        token_tiles = split_rows(len(batch.ids), self._row_tiles)
        output_tiles = split_rows(len(batch.out_rows), self._row_tiles)
        sequence = np.repeat(np.arange(len(batch.context_len)), np.diff(batch.query_start))
        positions = batch.positions.astype(np.int64)
        rows = self._kv_rows(batch.page_table[sequence, positions // self._layout.page_size], positions)
        return TorchStep(
            token_tiles=token_tiles,
            output_tiles=output_tiles,
            num_outputs=len(batch.out_rows),
            ids=_padded(batch.ids, sum(token_tiles)),
            positions=_padded(positions, sum(token_tiles)),
            store_rows=torch.from_numpy((rows[:, None] + self._head_offsets).reshape(-1)),
            groups={window: list(self._groups(batch, window)) for window in self._windows},
            out_rows=_padded(batch.out_rows, sum(output_tiles)),
        )

    def _kv_rows(self, pages: NDArray[np.int32], positions: Int64) -> Int64:
        """Return the row of head 0 inside a layer's memory for tokens at `positions` in `pages`."""
        return pages.astype(np.int64) * self._layout.page_rows + positions % self._layout.page_size

    def _groups(self, batch: Batch, window: int) -> Iterator[TileGroup]:
        """Cut the queries into tiles, and those of one size into groups of bounded memory."""
        by_size: dict[int, list[tuple[int, int, int]]] = {}
        for sequence, (start, end) in enumerate(
            zip(batch.query_start[:-1].tolist(), batch.query_start[1:].tolist(), strict=True)
        ):
            largest = self._query_tiles[-1]
            size = next((size for size in self._query_tiles if size >= end - start), largest)
            first = int(batch.positions[start])
            while start < end:
                stop = min(end, start + size - first % size)
                by_size.setdefault(size, []).append((sequence, start, stop))
                first += stop - start
                start = stop
        for size, tiles in by_size.items():
            # Most blocks first, so that the tiles which need block b are always the first ones.
            num_blocks = [
                int(batch.positions[stop - 1]) // KEY_BLOCK
                - int(_first_block(batch.positions[start], window))
                + 1
                for _, start, stop in tiles
            ]
            order = sorted(range(len(tiles)), key=lambda i: -num_blocks[i])
            room = max(1, _SCORES_PER_GROUP // (size * self._num_heads * KEY_BLOCK))
            chosen: list[tuple[int, int, int]] = []
            used = 0
            for i in order:
                if chosen and used + num_blocks[i] > room:
                    yield self._group(batch, size, chosen, window)
                    chosen, used = [], 0
                chosen.append(tiles[i])
                used += num_blocks[i]
            yield self._group(batch, size, chosen, window)

    def _group(self, batch: Batch, size: int, tiles: list[tuple[int, int, int]], window: int) -> TileGroup:
        sequences, starts, stops = (np.array(column, np.int64) for column in zip(*tiles, strict=True))
        first_positions = batch.positions[starts].astype(np.int64)
        counts = stops - starts
        # 1. A token stands at its position modulo the tile's size; other places repeat the tile's last token.
        places = np.arange(size)[None, :] - (first_positions % size)[:, None]
        is_token = (places >= 0) & (places < counts[:, None])
        query_rows = starts[:, None] + np.where(is_token, places, counts[:, None] - 1)
        query_positions = batch.positions[query_rows].astype(np.int64)
        # 2. The blocks each tile needs: from the first that any of its rows sees to its last position's.
        first_blocks = _first_block(first_positions, window)
        num_blocks = query_positions.max(axis=1) // KEY_BLOCK - first_blocks + 1
        active = [int((num_blocks > block).sum()) for block in range(int(num_blocks[0]))]
        tile_of_item = np.concatenate([np.arange(count) for count in active])
        block_of_item = np.repeat(np.arange(len(active)), active) + first_blocks[tile_of_item]
        # 3. Where the keys lie; past the sequence's end, in the page of zeros.
        keys = block_of_item[:, None] * KEY_BLOCK + np.arange(KEY_BLOCK)
        owner = sequences[tile_of_item]
        slot = np.minimum(keys // self._layout.page_size, batch.page_table.shape[1] - 1)
        is_written = keys < batch.context_len[owner][:, None]
        pages = np.where(is_written, batch.page_table[owner[:, None], slot], self._zero_page)
        kv_rows = self._kv_rows(pages, keys)[:, None, :] + self._head_offsets[None, :, None]
        own = query_positions[tile_of_item][:, :, None]
        is_hidden = keys[:, None, :] > own
        if window:
            is_hidden |= keys[:, None, :] <= own - window
        mask = np.where(is_hidden, np.float32(-np.inf), np.float32(0))
        return TileGroup(
            query_tile=size,
            query_rows=torch.from_numpy(query_rows.reshape(-1)),
            active=tuple(active),
            kv_rows=torch.from_numpy(kv_rows.reshape(-1)),
            mask=torch.from_numpy(mask).view(len(keys), 1, size, 1, KEY_BLOCK),
            source=torch.from_numpy(np.flatnonzero(is_token)),
            target=torch.from_numpy(query_rows[is_token]),
        )


def _first_block(positions: Any, window: int) -> Any:
    """Return the block of the first key that a row at each of `positions` sees."""
    return np.maximum(positions - window + 1, 0) // KEY_BLOCK if window else np.zeros_like(positions)


def _padded(values: NDArray[np.int32] | Int64, size: int) -> Tensor:
    padded = np.zeros(size, np.int64)
    padded[: len(values)] = values
    return torch.from_numpy(padded)
