"""Keeps the inputs of one layer for all calibration sequences, on disk.

Knows files of plain float32; knows nothing of models. A file is whole or absent: it gets its name at last.
"""

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

Float32 = NDArray[np.float32]


class ActivationCache:
    """One file per layer, [tokens of all sequences, width]."""

    def __init__(self, folder: Path, lengths: Sequence[int], width: int) -> None:
        """Use `folder`, made if need be.

        Args:
            folder: Holds nothing else.
            lengths: Tokens of each sequence.
            width: Of the residual stream.
        """
        folder.mkdir(exist_ok=True)
        self._folder = folder
        self._lengths = lengths
        self._width = width

    def has(self, layer: int) -> bool:
        """Whether the inputs of a layer are here, whole."""
        path = self._path(layer)
        return path.exists() and path.stat().st_size == 4 * sum(self._lengths) * self._width

    def write(self, layer: int, sequences: Iterable[Float32]) -> None:
        """Keep the inputs of a layer, one array [tokens, width] per sequence."""
        unfinished = self._folder / "unfinished"
        with unfinished.open("wb") as file:
            for sequence in sequences:
                file.write(np.ascontiguousarray(sequence, "<f4").tobytes())
        unfinished.rename(self._path(layer))

    def keep_only(self, layer: int) -> None:
        """Drop the inputs of all other layers."""
        for path in self._folder.glob("input-*.f32"):
            if path != self._path(layer):
                path.unlink()

    def read(self, layer: int) -> Iterator[Float32]:
        """Give the inputs of a layer, sequence by sequence."""
        stored = np.memmap(self._path(layer), "<f4", mode="r", shape=(sum(self._lengths), self._width))
        start = 0
        for length in self._lengths:
            yield np.array(stored[start : start + length])
            start += length

    def _path(self, layer: int) -> Path:
        return self._folder / f"input-{layer:05}.f32"
