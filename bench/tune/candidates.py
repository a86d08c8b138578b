"""Which tiles are worth measuring: few enough to compile, and all of one entry multiply alike.

Knows chips and shapes; knows nothing of time. What spills or is too large is for the compiler to say.
"""

import itertools
from collections.abc import Iterator

from bench.tune.search import Rung
from worker.kernels.linear_tuning import Tile as LinearTile
from worker.kernels.paged_attention_tuning import Kernel
from worker.kernels.paged_attention_tuning import Tile as AttentionTile

RUNGS = (Rung(16, (1, 16)), Rung(64, (64,)), Rung(1 << 20, (512, 4096)))
"""Rows that decode alone, decode in a batch and prefill have."""

_W_TILES = {"sm_100": ((128, 4), (128, 8))}
_OTHER_W_TILES = ((64, 4), (128, 8))
"""Rows of W and warps, by chip. Other pairs would multiply with another instruction on another rung."""
_X_TILES = {16: (16,), 64: (32, 64), 1 << 20: (64, 128)}
"""Rows of x, by rung."""
_STAGES = {"sm_80": (3, 4, 5), "sm_90": (3, 4, 6, 8), "gfx942": (1, 2)}
_OTHER_STAGES = (3, 4, 6)
_SPLITS = (1, 2, 4, 8)
_LEAST_PIECE = 512
"""Columns of a piece of K: shorter ones cost more to add up than they gain."""


def linear_families(chip: str, kind: str, in_features: int) -> list[list[list[LinearTile]]]:
    """Return candidates for a product, by what decides bits (block_k and splits) and by rung of `RUNGS`."""
    cuts = itertools.product(_block_ks(kind), _splits(in_features))
    return [
        [list(_linear_tiles(chip, rung, block_k, splits)) for rung in RUNGS] for block_k, splits in cuts
    ]  # fmt: skip


def attention_tiles(chip: str, kernel: Kernel) -> list[AttentionTile]:
    """Return candidates for one of attention's kernels."""
    rows = (32, 64, 128) if kernel == "ragged" else (16,)
    # With fewer than 4 warps NVIDIA's newer matrix units are not used, and bits would be others.
    warps = (4, 8)
    stages = (1, 2) if chip.startswith("gfx") else (1, 2, 3, 4, 5)
    return [
        AttentionTile(m=m, num_warps=num_warps, num_stages=num_stages)
        for m, num_warps, num_stages in itertools.product(rows, warps, stages)
    ]


def _linear_tiles(chip: str, rung: Rung, block_k: int, splits: int) -> Iterator[LinearTile]:
    for (block_n, num_warps), block_m, num_stages in itertools.product(
        _W_TILES.get(chip, _OTHER_W_TILES), _X_TILES[rung.rows], _STAGES.get(chip, _OTHER_STAGES)
    ):
        yield LinearTile(
            block_n=block_n,
            block_m=block_m,
            block_k=block_k,
            splits=splits,
            # Many rows have programs enough, and nothing is written twice.
            is_parallel=splits > 1 and rung.rows <= 64,
            num_warps=num_warps,
            num_stages=num_stages,
        )


def _block_ks(kind: str) -> tuple[int, ...]:
    if kind.startswith("w8a8"):
        return (32,)  # the group of activations
    if kind == "fp32":
        return (32,)
    group = int(kind.partition("-g")[2] or 0)
    return tuple(size for size in (64, 128) if size >= group)


def _splits(in_features: int) -> tuple[int, ...]:
    return tuple(s for s in _SPLITS if s == 1 or in_features // s >= _LEAST_PIECE)
