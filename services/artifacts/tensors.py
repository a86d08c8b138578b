"""Describes one tensor of a model file and reads it through a memory map.

Knows number formats (plain floats, ggml's blocks, and the integers that hold packed codes); knows nothing of
what integers pack, of layers, of transposes or permutations that a family needs, or of where the weights go.
"""

from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from services.artifacts.errors import ArtifactError


@dataclass(frozen=True, slots=True)
class TensorFormat:
    """How numbers are packed: `block_size` of them take `block_bytes` bytes."""

    name: str
    block_size: int
    block_bytes: int

    @property
    def is_quantised(self) -> bool:
        """Whether the values share scales in blocks."""
        return self.block_size > 1

    @property
    def is_integer(self) -> bool:
        """Whether it holds integers: codes, or what describes them."""
        return self.name in _INTEGERS


_INTEGERS = {"I8": "<i1", "I32": "<i4", "I64": "<i8"}


FORMATS = {
    name: TensorFormat(name, block_size, block_bytes)
    for name, block_size, block_bytes in [
        ("F32", 1, 4),
        ("F16", 1, 2),
        ("BF16", 1, 2),
        ("I8", 1, 1),
        ("I32", 1, 4),
        ("I64", 1, 8),
        ("Q4_0", 32, 18),
        ("Q4_1", 32, 20),
        ("Q5_0", 32, 22),
        ("Q5_1", 32, 24),
        ("Q8_0", 32, 34),
        ("Q2_K", 256, 84),
        ("Q3_K", 256, 110),
        ("Q4_K", 256, 144),
        ("Q5_K", 256, 176),
        ("Q6_K", 256, 210),
    ]
}
"""Every format we read, by its name in safetensors headers and in ggml."""


@dataclass(frozen=True, slots=True)
class TensorRef:
    """One tensor inside a mapped file. Row-major; the last dimension is contiguous (ggml's first)."""

    name: str
    file: Path
    format: TensorFormat
    shape: tuple[int, ...]
    _mapped: NDArray[np.uint8] = field(repr=False)

    @property
    def dtype(self) -> str:
        """Name of the format: `F32`, `F16`, `BF16`, `Q4_1`, ..."""
        return self.format.name

    @property
    def num_bytes(self) -> int:
        """Bytes the tensor takes in the file."""
        return int(self._mapped.nbytes)

    def raw(self) -> NDArray[np.uint8]:
        """Return the mapped bytes, read-only: [rows, bytes in a row] uint8, or [bytes] for a vector."""
        if len(self.shape) < 2:
            return self._mapped
        return self._mapped.reshape(*self.shape[:-1], -1)

    def select_rows(self, rows: slice | NDArray[np.int64]) -> "TensorRef":
        """Return some rows of a matrix as a tensor of their own, without reading the others."""
        selected = self.raw()[rows]
        return replace(self, shape=(len(selected), *self.shape[1:]), _mapped=selected.reshape(-1))

    def select_columns(self, start: int, stop: int) -> "TensorRef":
        """Return some columns of a matrix, or numbers of a vector, as a tensor of their own; reads no others.

        Raises:
            ArtifactError: A border lies inside a block.
        """
        block, size = self.format.block_size, self.format.block_bytes
        if start % block or stop % block:
            raise ArtifactError(
                f"{self.file}: tensor {self.name}: columns {start} to {stop} are not whole blocks of {block}"
                f" ({self.dtype})"
            )
        selected = self.raw()[..., start // block * size : stop // block * size]
        shape = (*self.shape[:-1], stop - start)
        return replace(self, shape=shape, _mapped=np.ascontiguousarray(selected).reshape(-1))

    def to_float32(self) -> NDArray[np.float32]:
        """Return a new float32 array of `shape`, dequantised.

        Raises:
            ArtifactError: The stored numbers cannot be read in this format, or are integers.
        """
        raw = self._mapped
        if self.format.is_integer:
            raise ArtifactError(f"{self.file}: tensor {self.name} holds {self.dtype}, not real numbers")
        if self.dtype == "F32":
            return raw.view("<f4").astype(np.float32).reshape(self.shape)
        if self.dtype == "F16":
            return raw.view("<f2").astype(np.float32).reshape(self.shape)
        if self.dtype == "BF16":
            return (raw.view("<u2").astype(np.uint32) << 16).view(np.float32).reshape(self.shape)
        return _dequantise(raw, self)

    def to_integers(self) -> NDArray[np.int64]:
        """Return a new int64 array of `shape`.

        Raises:
            ArtifactError: The tensor does not hold integers.
        """
        if not self.format.is_integer:
            raise ArtifactError(f"{self.file}: tensor {self.name} holds {self.dtype}, not integers")
        return self._mapped.view(_INTEGERS[self.dtype]).astype(np.int64).reshape(self.shape)


def _dequantise(raw: NDArray[np.uint8], tensor: TensorRef) -> NDArray[np.float32]:
    """Expand blocks. Q8_0, Q4_0 and Q4_1 here (one pass over the tensor), the others by the gguf package.

    Source: block layouts of ggml-common.h. Worked number: Q4_1, d = 0.5, m = -1, nibble 15 -> 6.5.
    """
    blocks = raw.reshape(-1, tensor.format.block_bytes)
    if tensor.dtype == "Q8_0":
        scale = blocks[:, :2].copy().view("<f2").astype(np.float32)
        return (blocks[:, 2:].view(np.int8) * scale).reshape(tensor.shape)
    if tensor.dtype in ("Q4_0", "Q4_1"):
        header = 2 if tensor.dtype == "Q4_0" else 4
        numbers = blocks[:, :header].copy().view("<f2").astype(np.float32)
        values = np.empty((blocks.shape[0], 32), np.float32)
        values[:, :16] = blocks[:, header:] & 0x0F
        values[:, 16:] = blocks[:, header:] >> 4
        if header == 2:
            values -= 8
        values *= numbers[:, :1]
        if header == 4:
            values += numbers[:, 1:]
        return values.reshape(tensor.shape)
    # Only workers dequantise: the import costs more memory than a gateway should pay.
    from gguf import GGMLQuantizationType
    from gguf.quants import dequantize

    try:
        values = dequantize(raw.reshape(tensor.raw().shape), GGMLQuantizationType[tensor.dtype])
    except (ValueError, NotImplementedError) as exc:
        raise ArtifactError(
            f"{tensor.file}: tensor {tensor.name} is not readable as {tensor.dtype} ({exc});"
            " fetch the model again"
        ) from exc
    return np.ascontiguousarray(values, np.float32).reshape(tensor.shape)


def map_file(path: Path) -> NDArray[np.uint8]:
    """Map a file read-only.

    Raises:
        ArtifactError: It is missing, empty or not readable.
    """
    try:
        return np.asarray(np.memmap(path, np.uint8, mode="r"))
    except (OSError, ValueError) as exc:
        raise ArtifactError(f"{path}: cannot be opened ({exc}); check the path and its permissions") from exc


def tensor_at(
    mapped: NDArray[np.uint8], offset: int, *, name: str, file: Path, dtype: str, shape: tuple[int, ...]
) -> TensorRef:
    """Return the tensor whose bytes begin at `offset` of a mapped file.

    Raises:
        ArtifactError: Unknown format, rows that are not whole blocks, or bytes beyond the end of the file.
    """
    tensor_format = FORMATS.get(dtype)
    if tensor_format is None:
        raise ArtifactError(
            f"{file}: tensor {name} has the unsupported type {dtype}; use a model in {', '.join(FORMATS)}"
        )
    if shape and shape[-1] % tensor_format.block_size:
        raise ArtifactError(f"{file}: rows of tensor {name} {shape} are not whole blocks of {dtype}")
    count = 1
    for size in shape:
        count *= size
    num_bytes = count // tensor_format.block_size * tensor_format.block_bytes
    if offset < 0 or offset + num_bytes > mapped.size:
        raise ArtifactError(
            f"{file}: truncated, tensor {name} ends at byte {offset + num_bytes} of {mapped.size};"
            " fetch the model again"
        )
    return TensorRef(name, file, tensor_format, shape, mapped[offset : offset + num_bytes])
