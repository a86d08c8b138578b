"""Reference of `linear` in torch (see `linear` for the contract).

Knows torch alone.
"""

import hashlib
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

TILES = (1, 2, 4, 8, 16, 24, 32, 48, 64)
"""Candidate tile sizes, in rows."""


class Matrix:
    """A weight, packed once into the order that the machine's matrix library reads best."""

    def __init__(self, weight: Tensor, bias: Tensor | None = None) -> None:
        """Pack a weight. weight: [out, in] float32; bias: [out] float32."""
        self.out_features, self.in_features = int(weight.shape[0]), int(weight.shape[1])
        self._bias = bias
        self._multiply = _packed(weight) if torch.backends.mkldnn.is_available() else _plain(weight)

    @property
    def num_bytes(self) -> int:
        """Bytes of float32 held."""
        return 4 * self.out_features * (self.in_features + (self._bias is not None))

    def apply(self, x: Tensor, out: Tensor, tiles: Sequence[int]) -> None:
        """Write x @ W^T (+ b) into `out`, one tile of rows after the other; `tiles` cover x exactly."""
        start = 0
        for size in tiles:
            out[start : start + size].copy_(self._multiply(x[start : start + size]))
            start += size
        if self._bias is not None:
            out.add_(self._bias)


def _packed(weight: Tensor) -> Callable[[Tensor], Tensor]:
    """oneDNN with a weight reordered once: at one row 1.2, at 16 rows 1.6 times as fast as unpacked."""
    packed = torch.ops.mkldnn._reorder_linear_weight(weight, 16)
    return lambda x: torch.ops.mkldnn._linear_pointwise(x, packed, None, "none", [], "")


def _plain(weight: Tensor) -> Callable[[Tensor], Tensor]:
    return lambda x: torch.mm(x, weight.t())


def prove_tiles(matrices: Sequence[Matrix]) -> tuple[tuple[int, ...], str]:
    """Return the tile sizes whose rows are bitwise the same on this machine, and a digest of those bits.

    Every shape among `matrices` is tried: the same random rows, in shuffled places of tiles of each size,
    must give the bits that they give in the largest tile. If not even the largest agrees with itself, single
    rows are left: slow, but there is nothing beside a row that could change it.
    """
    by_shape = {(matrix.out_features, matrix.in_features): matrix for matrix in matrices}
    generator = torch.Generator().manual_seed(0)
    proven = list(TILES)
    digest = hashlib.sha256()
    for (_, width), matrix in sorted(by_shape.items()):
        rows = torch.randn(TILES[-1], width, generator=generator)
        expected = matrix._multiply(rows)
        digest.update(expected[:4].numpy().tobytes())
        for size in list(proven):
            for _ in range(2):
                order = torch.randperm(TILES[-1], generator=generator)[:size]
                if not torch.equal(matrix._multiply(rows[order]), expected[order]):
                    proven.remove(size)
                    break
    if TILES[-1] not in proven:
        return (1,), digest.hexdigest() + "-single"
    return tuple(proven), digest.hexdigest()
