"""A matrix that a checkpoint stores as integers, scales and zero points, several tensors for one parameter.

Knows how codes lie in 32-bit words and what every such format has in common; the formats are in the modules
beside it. Knows nothing of parameters' names, row orders or executors.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from math import gcd
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from services.artifacts.errors import ArtifactError
from services.artifacts.tensors import TensorRef
from worker.executors.weights.quantized import GROUPS, CodeLayout, Float32, QuantizedMatrix, UInt8
from worker.plan.shard import Span, WeightPart

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


@dataclass(frozen=True, slots=True)
class Region:
    """What is to be unpacked of a matrix."""

    rows: Span
    """Begin at a whole word of rows, and end at one or where the matrix ends."""
    columns: Span
    """The same of columns."""
    groups: Span | None
    """Those that hold the columns; None: all, because columns are out of order."""


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
    read: Callable[[Region], Unpacked]
    part: WeightPart | None = None
    """What this is of the matrix on disk; None: all of it."""

    def cut(self, part: WeightPart) -> "PackedMatrix":
        """Return a part of the whole matrix; nothing else of it will be read.

        A group that a border goes through becomes smaller ones, all with its scale.

        Raises:
            ArtifactError: A border lies inside a word, or leaves groups that executors do not take.
        """
        rows, columns = self._spans(part)
        word = WORD_BITS // self.bits
        unit = word if self.order is not None else min(GROUPS)
        for axis, span, step, length in (
            ("rows", rows, word, self.shape[0]),
            ("columns", columns, unit, self.shape[1]),
        ):
            if span.start % step or (span.stop % step and span.stop != length):
                raise ArtifactError(
                    f"{self.file}: tensor {self.name}: {axis} {span.start} to {span.stop} cannot be cut out:"
                    f" {step} of them belong together"
                )
        order = None if self.order is None else self.order[columns.start : columns.stop]
        return replace(self, shape=(rows.size, columns.size), order=order, part=part)

    def to_codes(self) -> QuantizedMatrix | None:
        """Return codes in groups that executors take; None where columns are out of order.

        Raises:
            ArtifactError: A scale is not a finite number, or a tensor is of the wrong type.
        """
        if self.order is not None:
            return None
        part = self._unpack()
        group = self._executor_group
        # The first group may have been cut.
        first = self._spans(self.part)[1].start % self.group // group
        kept = slice(first, first + self.shape[1] // group)
        scales, zeros = (
            np.ascontiguousarray(np.repeat(values, self.group // group, axis=1)[:, kept])
            for values in (part.scales, part.zeros)
        )
        return QuantizedMatrix(part.codes, self.bits, group, scales, -(scales * zeros))

    def layout(self) -> CodeLayout | None:
        """Return how `to_codes` will hold it. Zero points are not read, so it counts on offsets."""
        if self.order is not None:
            return None
        return CodeLayout(self.bits, self._executor_group, has_offsets=True)

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

    def _spans(self, part: WeightPart | None) -> tuple[Span, Span]:
        """Return the rows and columns on disk that a part names; an axis that it does not cut is whole."""
        part = part or WeightPart()
        return part.rows or Span(0, self.shape[0]), part.columns or Span(0, self.shape[1])

    @property
    def _executor_group(self) -> int:
        columns = self._spans(self.part)[1]
        shared = gcd(self.group, columns.start, columns.stop)
        return next(size for size in reversed(GROUPS) if shared % size == 0)

    def _unpack(self) -> Unpacked:
        rows, columns = self._spans(self.part)
        is_ordered = self.order is None
        groups = Span(columns.start // self.group, -(-columns.stop // self.group)) if is_ordered else None
        found = self.read(Region(rows, columns, groups))
        num_rows, num_columns = self.shape
        codes = np.ascontiguousarray(found.codes[:num_rows, :num_columns])
        return Unpacked(codes, found.zeros[:num_rows], found.scales)


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


def select(tensor: TensorRef, rows: Span | None, columns: Span | None) -> TensorRef:
    """Return a part of a tensor of codes, words or scales, without reading the rest; None is all."""
    if rows is not None:
        tensor = tensor.select_rows(slice(rows.start, rows.stop))
    return tensor if columns is None else tensor.select_columns(columns.start, columns.stop)


def words(span: Span, bits: int) -> Span:
    """Return the words that hold codes, the last of them perhaps not full (20 codes of 4 bits: 3)."""
    per_word = WORD_BITS // bits
    return Span(span.start // per_word, -(-span.stop // per_word))


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
