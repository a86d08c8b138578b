"""Parses a GGUF file: its metadata and where its tensors lie.

Knows the container only (version 2 and 3, little endian); knows nothing of what the keys mean.

Source: the GGUF specification in ggml's docs/gguf.md.
"""

import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from services.artifacts.errors import ArtifactError
from services.artifacts.tensors import TensorRef, map_file, tensor_at

MAGIC = b"GGUF"
_STRING, _ARRAY, _BOOL = 8, 9, 7
_SCALARS = {
    0: "<u1",
    1: "<i1",
    2: "<u2",
    3: "<i2",
    4: "<u4",
    5: "<i4",
    6: "<f4",
    7: "<u1",
    10: "<u8",
    11: "<i8",
    12: "<f8",
}
_GGML_TYPES = {
    0: "F32",
    1: "F16",
    2: "Q4_0",
    3: "Q4_1",
    6: "Q5_0",
    7: "Q5_1",
    8: "Q8_0",
    10: "Q2_K",
    11: "Q3_K",
    12: "Q4_K",
    13: "Q5_K",
    14: "Q6_K",
    30: "BF16",
}


@dataclass(frozen=True, slots=True)
class GgufFile:
    """What a GGUF file declares. Arrays are lists of str, or numpy arrays for numbers."""

    path: Path
    metadata: dict[str, Any]
    tensors: dict[str, TensorRef]


class _Cursor:
    """Reads little-endian values off a mapped file; running off its end is an error, not garbage."""

    def __init__(self, mapped: NDArray[np.uint8]) -> None:
        self._bytes = mapped.data
        self.offset = 0

    def take(self, num_bytes: int) -> memoryview:
        end = self.offset + num_bytes
        if end > len(self._bytes):
            raise EOFError(f"a value ends at byte {end} of {len(self._bytes)}")
        taken = self._bytes[self.offset : end]
        self.offset = end
        return taken

    def u32(self) -> int:
        return int(struct.unpack("<I", self.take(4))[0])

    def u64(self) -> int:
        return int(struct.unpack("<Q", self.take(8))[0])

    def string(self) -> str:
        return str(self.take(self.u64()), "utf-8", "replace")

    def value(self, kind: int) -> Any:
        if kind == _STRING:
            return self.string()
        if kind == _ARRAY:
            return self._array()
        scalar = np.frombuffer(self.take(np.dtype(_SCALARS[kind]).itemsize), _SCALARS[kind])[0].item()
        return bool(scalar) if kind == _BOOL else scalar

    def _array(self) -> Any:
        kind, count = self.u32(), self.u64()
        if kind == _STRING:
            return [self.string() for _ in range(count)]
        if kind == _ARRAY:
            return [self._array() for _ in range(count)]
        dtype = np.dtype(_SCALARS[kind])
        return np.frombuffer(self.take(count * dtype.itemsize), dtype)


def read_gguf(path: Path) -> GgufFile:
    """Parse the header of a GGUF file; tensor data stays on disk until it is read.

    Raises:
        ArtifactError: Not a GGUF file, of an unknown version, one part of several, truncated or damaged, or
            with a tensor of a type that we do not read.
    """
    mapped = map_file(path)
    cursor = _Cursor(mapped)
    try:
        if bytes(cursor.take(4)) != MAGIC:
            raise ArtifactError(f"{path}: not a GGUF file; give a .gguf file or a model folder")
        version = cursor.u32()
        if version not in (2, 3):
            raise ArtifactError(f"{path}: GGUF version {version} is not supported; convert the model again")
        num_tensors, num_pairs = cursor.u64(), cursor.u64()
        metadata: dict[str, Any] = {}
        for _ in range(num_pairs):
            key = cursor.string()
            metadata[key] = cursor.value(cursor.u32())
        headers = [_tensor_header(cursor) for _ in range(num_tensors)]
    except (EOFError, KeyError, struct.error) as exc:
        raise ArtifactError(
            f"{path}: damaged or truncated GGUF header ({exc}); fetch the model again"
        ) from exc
    if (num_parts := int(metadata.get("split.count", 1))) > 1:
        number = int(metadata.get("split.no", 0)) + 1
        raise ArtifactError(
            f"{path}: part {number} of {num_parts} of a split file, and the others are not read with it;"
            " join them with llama.cpp's llama-gguf-split --merge"
        )
    alignment = int(metadata.get("general.alignment", 32)) or 32
    start = -(-cursor.offset // alignment) * alignment
    tensors = {
        name: tensor_at(mapped, start + offset, name=name, file=path, dtype=dtype, shape=shape)
        for name, shape, dtype, offset in headers
    }
    if len(tensors) != num_tensors:
        raise ArtifactError(f"{path}: declares a tensor twice; convert the model again")
    return GgufFile(path, metadata, tensors)


def _tensor_header(cursor: _Cursor) -> tuple[str, tuple[int, ...], str, int]:
    """Return name, row-major shape, type name and offset inside the data section."""
    name = cursor.string()
    dimensions = tuple(cursor.u64() for _ in range(cursor.u32()))
    kind = cursor.u32()
    return name, dimensions[::-1], _GGML_TYPES.get(kind, f"ggml type {kind}"), cursor.u64()
