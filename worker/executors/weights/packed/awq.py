"""Reads AutoAWQ's packing (version `gemm`).

Knows its layout alone. A word holds one row of 8 neighbouring output columns, in the order 0, 2, 4, 6, 1, 3,
5, 7; matrices are stored [in, out].

Source: AutoAWQ, awq/modules/linear/gemm.py and awq/utils/packing_utils.py.
"""

from dataclasses import dataclass

import numpy as np

from services.artifacts.tensors import TensorRef
from worker.executors.weights.packed.matrix import (
    FLOATS,
    PackedMatrix,
    Parts,
    Region,
    Unpacked,
    read_scales,
    read_words,
    select,
    words,
)
from worker.executors.weights.quantized import UInt8
from worker.models.config_reader import ConfigReader

_BITS = 4
_PER_WORD = 8
_PLACE = [0, 4, 1, 5, 2, 6, 3, 7]
"""Place in a word of each of its 8 columns."""


@dataclass(frozen=True, slots=True)
class AwqScheme:
    """One checkpoint's settings."""

    group: int | None

    @property
    def widest_bits(self) -> int:
        return _BITS

    def take(self, module: str, tensors: dict[str, TensorRef], shape: tuple[int, int]) -> PackedMatrix | None:
        """Remove a module's tensors and return its matrix, None when it is not packed (see `Scheme`)."""
        if f"{module}.qweight" not in tensors:
            return None
        parts = Parts(tensors, module, "qweight", shape)
        rows, columns = shape
        group = parts.whole_groups(self.group)
        num_words = -(-rows // _PER_WORD)
        codes = parts.take("qweight", columns, num_words, dtypes=("I32",))
        zeros = parts.take("qzeros", columns // group, num_words, dtypes=("I32",))
        scales = parts.take("scales", columns // group, rows, dtypes=FLOATS)

        def read(part: Region) -> Unpacked:
            packed = words(part.rows, _BITS)
            values = read_scales(select(scales, part.groups, part.rows))
            return Unpacked(
                _columns(select(codes, part.columns, packed)),
                _columns(select(zeros, part.groups, packed)),
                np.ascontiguousarray(values.T),
            )

        return PackedMatrix(
            name=codes.name,
            file=codes.file,
            shape=shape,
            bits=_BITS,
            group=group,
            order=None,
            read=read,
        )

    def is_ignorable(self, tensor: TensorRef) -> bool:
        """Whether a tensor that no parameter wants changes nothing (see `Scheme`)."""
        return False


def read_awq(config: ConfigReader) -> AwqScheme:
    """Read the settings.

    Raises:
        UnsupportedModel: Another packing, width or group.
    """
    config.require("version", "gemm")
    config.require("bits", _BITS)
    config.require("zero_point", True)
    for key in ("modules_to_not_convert", "backend", "do_fuse", "exllama_config", "fuse_max_seq_len"):
        config.value(key)
    group = config.value("group_size", 128)
    scheme = AwqScheme(None if group == -1 else config.integer("group_size", 128))
    config.finish()
    return scheme


def _columns(tensor: TensorRef) -> UInt8:
    """Return codes stored [n, out / 8] as [out, n]."""
    ordered = read_words(tensor, _BITS)[:, :, _PLACE]
    return np.ascontiguousarray(ordered.reshape(len(ordered), -1).T)
