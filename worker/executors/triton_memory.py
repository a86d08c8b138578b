"""Arrays of fixed places in one piece of memory, so that a step's numbers cross to the device in one copy.

Knows types and shapes; knows nothing of what the arrays mean or of when they are copied.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from worker.executors.triton_stream import HostBuffer, Stream

ALIGNMENT = 256
"""Bytes. Kernels are compiled for pointers that 16 divides: every array must keep to that, always."""


@dataclass(frozen=True, slots=True)
class Field:
    """One array."""

    name: str
    dtype: torch.dtype
    shape: tuple[int, ...]


_NUMPY = {
    torch.int32: np.int32,
    torch.int64: np.int64,
    torch.float32: np.float32,
    torch.float64: np.float64,
}


class PackedMemory:
    """Fields one behind the other, on the device and in host buffers of the same layout."""

    def __init__(self, stream: Stream, fields: Sequence[Field]) -> None:
        self._fields = {field.name: field for field in fields}
        self._offsets: dict[str, int] = {}
        end = 0
        for field in fields:
            self._offsets[field.name] = end
            end += -(-prod(field.shape) * field.dtype.itemsize // ALIGNMENT) * ALIGNMENT
        self.num_bytes = end
        self.device = stream.allocate(end)
        self._tensors = {
            field.name: self.device.narrow(
                0, self._offsets[field.name], prod(field.shape) * field.dtype.itemsize
            )
            .view(field.dtype)
            .view(field.shape)
            for field in fields
        }

    def tensor(self, name: str) -> Tensor:
        """Return the field on the device."""
        return self._tensors[name]

    def array(self, host: HostBuffer, name: str) -> NDArray[Any]:
        """Return the field in a host buffer of `num_bytes`."""
        field, offset = self._fields[name], self._offsets[name]
        num_bytes = prod(field.shape) * field.dtype.itemsize
        return host.array[offset : offset + num_bytes].view(_NUMPY[field.dtype]).reshape(field.shape)

    def end_of(self, name: str, rows: int | None = None) -> int:
        """Return the bytes up to the end of a field, or of its first `rows` rows."""
        field = self._fields[name]
        counts = field.shape if rows is None else (rows, *field.shape[1:])
        return self._offsets[name] + int(prod(counts) * field.dtype.itemsize)
