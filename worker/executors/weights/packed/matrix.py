"""A matrix that a checkpoint stores as integers, scales and zero points, several tensors for one parameter.

Knows how codes lie in 32-bit words and what every such format has in common; the formats are in the modules
beside it. Knows nothing of parameters' names, row orders or executors.
"""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from services.artifacts.errors import ArtifactError
from services.artifacts.tensors import TensorRef
from worker.executors.weights.quantized import GROUPS, CodeLayout, Float32, QuantizedMatrix, UInt8

WORD_BITS = 32


@dataclass(frozen=True, slots=True, eq=False)
class Unpacked:
    """value = scale * (code - zero), scale and zero those of the row and of the column's group."""

    codes: UInt8
    """[out, in]; `out` and `in` may be filled up to whole words, here and below."""
    zeros: UInt8
    """[out, groups]."""
    scales: Float32
    """[out, groups], never filled up."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PackedMatrix:
    """One packed parameter, still on disk; `name`, `file` and `shape` as a `TensorRef` has them."""

    name: str
    """The tensor with the codes."""
    file: Path
    shape: tuple[int, int]
    """(out, in)."""
    bits: int
    group: int
    """Columns that share a scale; it divides `in`."""
    order: NDArray[np.int64] | None
    """[in]: the group of each column where groups are not runs of columns (act-order), else None."""
    read: Callable[[], Unpacked]

    def to_codes(self) -> QuantizedMatrix | None:
        """Return codes in groups that executors take; None where columns are out of order.

        Raises:
            ArtifactError: A scale is not a finite number, or a tensor is of the wrong type.
        """
        if self.order is not None:
            return None
        part = self._unpack()
        group = _executor_group(self.group)
        repeats = self.group // group
        scales = np.repeat(part.scales, repeats, axis=1)
        zeros = np.repeat(part.zeros, repeats, axis=1)
        return QuantizedMatrix(part.codes, self.bits, group, scales, -(scales * zeros))

    def layout(self) -> CodeLayout | None:
        """Return how `to_codes` will hold it. Zero points are not read, so it counts on offsets."""
        if self.order is not None:
            return None
        return CodeLayout(self.bits, _executor_group(self.group), has_offsets=True)

    def to_float32(self) -> Float32:
        """Return the values, a new array.

        Raises:
            ArtifactError: As `to_codes`.
        """
        matrix = self.to_codes()
        if matrix is not None:
            return matrix.to_float32()
        part = self._unpack()
        values = part.codes.astype(np.float32) * part.scales[:, self.order]
        values -= (part.scales * part.zeros)[:, self.order]
        return values

    def _unpack(self) -> Unpacked:
        rows, columns = self.shape
        part = self.read()
        return Unpacked(np.ascontiguousarray(part.codes[:rows, :columns]), part.zeros[:rows], part.scales)


class Parts:
    """The tensors of one packed module, taken out of the file's one by one, each proven by shape."""

    def __init__(
        self, tensors: dict[str, TensorRef], module: str, codes: str, shape: tuple[int, int]
    ) -> None:
        """Begin with the tensor that holds the codes, which must be there.

        Args:
            tensors: The file's; what is taken is removed.
            module: Name that all parts begin with.
            codes: Last part of that tensor's name.
            shape: (out, in) of the parameter.
        """
        self._tensors = tensors
        self._module = module
        self.codes = tensors[f"{module}.{codes}"]
        self.rows, self.columns = shape

    def take(self, part: str, *shape: int, dtypes: tuple[str, ...]) -> TensorRef:
        """Remove and return a part.

        Raises:
            ArtifactError: It is missing, or of another shape or type.
        """
        name = f"{self._module}.{part}"
        tensor = self._tensors.pop(name, None)
        if tensor is None:
            raise ArtifactError(
                f"{self.codes.file}: tensor {name} is missing beside {self.codes.name}; fetch the model again"
            )
        if tensor.shape != shape:
            raise ArtifactError(
                f"{tensor.file}: tensor {name} has shape {list(tensor.shape)}, a matrix of"
                f" {self.rows} x {self.columns} packed like this needs {list(shape)}"
            )
        if tensor.dtype not in dtypes:
            raise ArtifactError(
                f"{tensor.file}: tensor {name} holds {tensor.dtype}, not {' or '.join(dtypes)}"
            )
        return tensor

    def dtype_of(self, part: str) -> str | None:
        """Return the type of a part that is still to be taken, None when it is missing."""
        tensor = self._tensors.get(f"{self._module}.{part}")
        return None if tensor is None else tensor.dtype

    def take_optional(self, part: str) -> TensorRef | None:
        """Remove and return a part that need not be there."""
        return self._tensors.pop(f"{self._module}.{part}", None)

    def whole_groups(self, group: int | None) -> int:
        """Return the columns of a group, all of them for None.

        Raises:
            ArtifactError: The last group would be smaller than the others, or no executor takes such groups.
        """
        group = self.columns if group is None else group
        if self.columns % group:
            raise ArtifactError(
                f"{self.codes.file}: tensor {self.codes.name}: {self.columns} columns are not whole groups"
                f" of {group}"
            )
        if group % min(GROUPS):
            raise ArtifactError(
                f"{self.codes.file}: tensor {self.codes.name}: groups of {group} columns are not supported;"
                f" multiples of {min(GROUPS)} are"
            )
        return group


FLOATS = ("F16", "BF16", "F32")


def read_words(tensor: TensorRef, bits: int) -> UInt8:
    """Return the codes of a tensor of 32-bit words, [rows, words, codes in a word], lowest bits first.

    Worked number: 4 bits, the word 0x76543210 holds 0, 1, 2, ... 7.
    """
    raw = tensor.raw().reshape(*tensor.shape, WORD_BITS // 8)
    if bits == 8:
        return raw
    return np.stack([raw & 0x0F, raw >> 4], axis=-1).reshape(*tensor.shape, WORD_BITS // bits)


def read_scales(tensor: TensorRef) -> Float32:
    """Return scales as float32.

    Raises:
        ArtifactError: One is not a finite number.
    """
    scales = tensor.to_float32()
    if not np.isfinite(scales).all():
        raise ArtifactError(
            f"{tensor.file}: tensor {tensor.name} holds NaN or infinity; fetch the model again"
        )
    return scales


def _executor_group(group: int) -> int:
    return next(size for size in reversed(GROUPS) if group % size == 0)
