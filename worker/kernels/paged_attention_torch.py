"""Reference of `paged_attention` in torch (see `paged_attention` for the contract).

Knows torch alone.
"""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from worker.kernels.paged_attention import KEY_BLOCK
from worker.kernels.soft_cap_torch import soft_cap

QUERY_TILES = (1, 4, 16, 32)
"""Candidate tile sizes, in tokens."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TileGroup:
    """Tiles of one size, and the key blocks that each needs. Tiles with more blocks come first."""

    query_tile: int
    query_rows: Tensor
    """[tiles * query_tile] int64: rows of q; a padded place repeats a row of its tile."""
    active: tuple[int, ...]
    """[blocks]: how many of the tiles need a b-th block, counted from each one's first; all need one."""
    kv_rows: Tensor
    """[sum(active) * kv_heads * KEY_BLOCK] int64: block by block, tile by tile, head by head."""
    mask: Tensor
    """[sum(active), 1, query_tile, 1, KEY_BLOCK] float32: 0 where the row may look, else -inf."""
    source: Tensor
    """[tokens] int64: places in the tiles that are tokens."""
    target: Tensor
    """[tokens] int64: the row of `out` for each of them."""


def paged_attention(
    q: Tensor,
    keys: Tensor,
    values: Tensor,
    out: Tensor,
    groups: Sequence[TileGroup],
    *,
    scale: float,
    soft_cap: float,
) -> None:
    """Write the attention output of every token into its row of `out`; other rows stay as they are."""
    for group in groups:
        _attend(q, keys, values, out, group, scale, soft_cap)


def _attend(
    q: Tensor, keys: Tensor, values: Tensor, out: Tensor, group: TileGroup, scale: float, cap: float
) -> None:
    head_dim, active = keys.shape[1], group.active
    num_items, num_tiles = sum(active), active[0]
    kv_heads = group.kv_rows.shape[0] // (num_items * KEY_BLOCK)
    # 1. Queries as [tile, kv head, token, head of the group, d]; the last but one share their keys.
    tiled = q.index_select(0, group.query_rows).view(num_tiles, group.query_tile, kv_heads, -1, head_dim)
    tiled = tiled.transpose(1, 2).contiguous().mul_(scale)
    shape = tiled.shape[1:-1]
    # 2. Scores of every (block, tile) item. A block that a row does not see adds exact zeros to it.
    items = _repeat(tiled, active).view(num_items * kv_heads, -1, head_dim)
    blocks = keys.index_select(0, group.kv_rows).view(-1, KEY_BLOCK, head_dim)
    scores = torch.bmm(items, blocks.transpose(1, 2)).view(num_items, *shape, KEY_BLOCK)
    if cap:
        soft_cap(scores, scores, cap=cap)
    scores += group.mask
    # 3. Softmax weights. A maximum has no order of summation: it is taken over all blocks at once.
    maxima = scores.amax(-1)
    for part, count in _parts(maxima, active):
        torch.maximum(maxima[:count], part, out=maxima[:count])
    scores.sub_(_repeat(maxima[:num_tiles], active).unsqueeze(-1)).exp_()
    # 4. Blocks are added up in order, each tile's own.
    sums = scores.sum(-1)
    blocks = values.index_select(0, group.kv_rows).view(-1, KEY_BLOCK, head_dim)
    weighted = torch.bmm(scores.view(num_items * kv_heads, -1, KEY_BLOCK), blocks)
    weighted = weighted.view(num_items, *shape, head_dim)
    for part, count in _parts(sums, active):
        sums[:count] += part
    for part, count in _parts(weighted, active):
        weighted[:count] += part
    attended = weighted[:num_tiles].div_(sums[:num_tiles].unsqueeze(-1))
    rows = attended.transpose(1, 2).reshape(-1, q.shape[1])
    out.index_copy_(0, group.target, rows.index_select(0, group.source))


def _repeat(x: Tensor, active: Sequence[int]) -> Tensor:
    """Return x's leading tiles once for each block that needs them."""
    return x if len(active) == 1 else torch.cat([x[:count] for count in active])


def _parts(x: Tensor, active: Sequence[int]) -> list[tuple[Tensor, int]]:
    """Return the items of each block after the first, with their number of tiles."""
    parts, start = [], active[0]
    for count in active[1:]:
        parts.append((x[start : start + count], count))
        start += count
    return parts


def prove_query_tiles(*, heads_per_group: int, head_dim: int) -> tuple[tuple[int, ...], str]:
    """Return the tile sizes whose rows are bitwise the same on this machine, and a digest of those bits.

    A token's query rows are put at every place of tiles of each size, alone and among others, and must give
    the bits that they give in the largest tile.
    """
    generator = torch.Generator().manual_seed(0)
    largest = QUERY_TILES[-1]
    query = torch.randn(largest, heads_per_group, head_dim, generator=generator)
    weights = torch.rand(largest, heads_per_group, KEY_BLOCK, generator=generator)
    block = torch.randn(1, KEY_BLOCK, head_dim, generator=generator)

    def run(order: Tensor, batch: int) -> tuple[Tensor, Tensor]:
        size = len(order)
        blocks = block.expand(batch, -1, -1).contiguous()
        left = query[order].view(1, -1, head_dim).expand(batch, -1, -1).contiguous()
        right = weights[order].view(1, -1, KEY_BLOCK).expand(batch, -1, -1).contiguous()
        scores = torch.bmm(left, blocks.transpose(1, 2)).view(batch, size, heads_per_group, -1)
        return scores, torch.bmm(right, blocks).view(batch, size, heads_per_group, -1)

    expected = tuple(result[0] for result in run(torch.arange(largest), 2))
    digest = hashlib.sha256(b"".join(result.numpy().tobytes() for result in expected))

    def is_proven(size: int) -> bool:
        for batch in (1, 2, 7, 64):
            order = torch.randperm(largest, generator=generator)[:size]
            for result, reference in zip(run(order, batch), expected, strict=True):
                if not torch.equal(result, reference[order].expand_as(result)):
                    return False
        return True

    proven = tuple(size for size in QUERY_TILES if is_proven(size))
    # Tiles are cut at fixed positions: with one size alone a row always stands at the same place.
    return proven if largest in proven else (4,), digest.hexdigest()
