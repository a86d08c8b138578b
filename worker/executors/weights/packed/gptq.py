"""Reads GPTQ's packing, as AutoGPTQ and GPTQModel write it.

Knows its layout alone: matrices are stored [in, out], a word holds neighbouring inputs of one output column
(zero points: neighbouring outputs), lowest bits first. Version 1 stores each zero point less one, modulo
2 ** bits; version 2 stores it as it is.

Source: AutoGPTQ, auto_gptq/nn_modules/qlinear/qlinear_cuda_old.py; GPTQModel, gptqmodel/utils/model.py.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from services.artifacts.errors import ArtifactError
from services.artifacts.tensors import TensorRef
from worker.executors.weights.packed.matrix import (
    FLOATS,
    WORD_BITS,
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
from worker.models.errors import UnsupportedModel

_HARMLESS = (
    *("damp_percent", "desc_act", "static_groups", "sym", "lm_head", "true_sequential", "model_name_or_path"),
    *("model_file_base_name", "quant_method", "meta", "modules_in_block_to_quantize"),
    *(
        "dataset",
        "tokenizer",
        "batch_size",
        "block_name_to_quantize",
        "cache_block_outputs",
        "exllama_config",
    ),
    *(
        "max_input_length",
        "model_seqlen",
        "module_name_preceding_first_block",
        "pad_token_id",
        "use_cuda_fp16",
    ),
    *("disable_exllama", "use_exllama", "backend", "is_marlin_format", "mse", "act_group_aware"),
)
"""Keys about how the codes were found or which kernel ran; the tensors say the rest."""


@dataclass(frozen=True, slots=True)
class GptqScheme:
    """One checkpoint's settings."""

    bits: int
    group: int | None
    is_version_1: bool

    @property
    def widest_bits(self) -> int:
        return self.bits

    def take(self, module: str, tensors: dict[str, TensorRef], shape: tuple[int, int]) -> PackedMatrix | None:
        """Remove a module's tensors and return its matrix, None when it is not packed (see `Scheme`)."""
        if f"{module}.qweight" not in tensors:
            return None
        parts = Parts(tensors, module, "qweight", shape)
        rows, columns = shape
        group = parts.whole_groups(self.group)
        per_word = WORD_BITS // self.bits
        codes = parts.take("qweight", -(-columns // per_word), rows, dtypes=("I32",))
        zeros = parts.take("qzeros", columns // group, -(-rows // per_word), dtypes=("I32",))
        scales = parts.take("scales", columns // group, rows, dtypes=FLOATS)
        index = parts.take_optional("g_idx")

        def read(part: Region) -> Unpacked:
            return Unpacked(
                self._codes(select(codes, words(part.columns, self.bits), part.rows)),
                self._zeros(select(zeros, part.groups, words(part.rows, self.bits))),
                _transposed(read_scales(select(scales, part.groups, part.rows))),
            )

        return PackedMatrix(
            name=codes.name,
            file=codes.file,
            shape=shape,
            bits=self.bits,
            group=group,
            order=None if index is None else _order(index, columns, group),
            read=read,
        )

    def is_ignorable(self, tensor: TensorRef) -> bool:
        """Whether a tensor that no parameter wants changes nothing: AutoGPTQ writes biases of zeros."""
        return tensor.name.endswith(".bias") and not tensor.to_float32().any()

    def _codes(self, tensor: TensorRef) -> UInt8:
        words = read_words(tensor, self.bits).transpose(1, 0, 2)
        return np.ascontiguousarray(words.reshape(len(words), -1))

    def _zeros(self, tensor: TensorRef) -> UInt8:
        words = read_words(tensor, self.bits)
        zeros = words.reshape(len(words), -1).T
        # uint8 arithmetic wraps at 256; at 4 bits the mask does what the packers do.
        return (zeros + np.uint8(self.is_version_1)) & np.uint8((1 << self.bits) - 1)


def read_gptq(config: ConfigReader) -> GptqScheme:
    """Read the settings.

    Raises:
        UnsupportedModel: Another packing, width or group.
    """
    version = config.value("checkpoint_format") or config.value("format", "gptq")
    if version not in ("gptq", "gptq_v2"):
        raise UnsupportedModel(
            f"quantization_config has checkpoint_format = {version!r}; supported: 'gptq', 'gptq_v2'"
        )
    config.require("bits", 4, 8)
    config.require("pack_dtype", "int32")
    if config.value("dynamic"):
        raise UnsupportedModel("quantization_config has dynamic: widths of single modules are not supported")
    for key in ("format", *_HARMLESS):
        config.value(key)
    is_whole = config.value("group_size", -1) == -1
    scheme = GptqScheme(
        bits=config.integer("bits"),
        group=None if is_whole else config.integer("group_size"),
        is_version_1=version == "gptq",
    )
    config.finish()
    return scheme


def _order(index: TensorRef, columns: int, group: int) -> NDArray[np.int64] | None:
    """Return the group of each column, None when they are in order.

    Raises:
        ArtifactError: It has another length, or names a group that is not there.
    """
    order = index.to_integers()
    if order.shape != (columns,) or order.min() < 0 or order.max() >= columns // group:
        raise ArtifactError(
            f"{index.file}: tensor {index.name} does not name a group of {columns // group} for each of"
            f" {columns} columns; fetch the model again"
        )
    return None if np.array_equal(order, np.arange(columns) // group) else order


def _transposed(scales: NDArray[np.float32]) -> NDArray[np.float32]:
    return np.ascontiguousarray(scales.T)
