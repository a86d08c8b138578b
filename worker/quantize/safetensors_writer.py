"""Writes a safetensors file, tensor by tensor, without holding more than a piece of one.

Knows the container only.

Source: the safetensors format: u64 header length, JSON header, data.
"""

import json
import math
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from services.artifacts.tensors import FORMATS

_ALIGNMENT = 8
"""Readers want the data to begin at a multiple of this."""


@dataclass(frozen=True, slots=True)
class Entry:
    """One tensor: its type's name in the format, its shape, and its bytes in pieces."""

    dtype: str
    shape: tuple[int, ...]
    pieces: Iterable[NDArray[np.generic]]

    @classmethod
    def of(cls, dtype: str, array: NDArray[np.generic]) -> "Entry":
        """Return an entry whose bytes are those of one array."""
        return cls(dtype, array.shape, (array,))

    @property
    def num_bytes(self) -> int:
        """Bytes of all pieces."""
        return math.prod(self.shape) * FORMATS[self.dtype].block_bytes


def write_safetensors(path: Path, entries: Mapping[str, Entry]) -> None:
    """Write a file under a name of its own and then give it `path`: it is whole or absent."""
    header: dict[str, object] = {"__metadata__": {"format": "pt"}}
    offset = 0
    for name, entry in entries.items():
        end = offset + entry.num_bytes
        header[name] = {"dtype": entry.dtype, "shape": list(entry.shape), "data_offsets": [offset, end]}
        offset = end
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % _ALIGNMENT)
    unfinished = path.with_name(f"{path.name}.unfinished")
    with unfinished.open("wb") as file:
        file.write(len(text).to_bytes(8, "little"))
        file.write(text)
        for entry in entries.values():
            for piece in entry.pieces:
                file.write(np.ascontiguousarray(piece).tobytes())
        assert file.tell() == 8 + len(text) + offset, "the pieces of a tensor are its shape's bytes"
        file.flush()
        os.fsync(file.fileno())
    unfinished.rename(path)
