"""Reads compressed-tensors' `pack-quantized` format: integer weights of 4 or 8 bits, float activations.

Knows its layout alone: matrices are stored [out, in], a word holds neighbouring inputs, lowest bits first;
signed codes are stored above their least value; zero points likewise, packed along outputs.

Source: compressed_tensors, compressors/pack_quantized and quantization/quant_args.py.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

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


@dataclass(frozen=True, slots=True)
class _Group:
    """One entry of `config_groups`: which modules, and how they are packed."""

    targets: tuple[str, ...]
    bits: int
    group: int | None
    is_symmetric: bool
    has_input_scale: bool
    """Whether a fixed scale for inputs lies beside each matrix."""

    def names(self, module: str) -> bool:
        """Whether a target names the module itself, by its name or an expression."""
        return any(
            re.match(target[3:], module) is not None
            if target.startswith("re:")
            else module == target or module.endswith(f".{target}")
            for target in self.targets
        )


@dataclass(frozen=True, slots=True)
class CompressedTensorsScheme:
    """One checkpoint's settings."""

    groups: tuple[_Group, ...]

    @property
    def widest_bits(self) -> int:
        return max(group.bits for group in self.groups)

    def take(self, module: str, tensors: dict[str, TensorRef], shape: tuple[int, int]) -> PackedMatrix | None:
        """Remove a module's tensors and return its matrix, None when it is not packed (see `Scheme`)."""
        if f"{module}.weight_packed" not in tensors:
            return None
        parts = Parts(tensors, module, "weight_packed", shape)
        settings = self._settings(module, parts.codes)
        rows, columns = shape
        group = parts.whole_groups(settings.group)
        num_words = -(-columns * settings.bits // WORD_BITS)
        codes = parts.take("weight_packed", rows, num_words, dtypes=("I32",))
        scales = parts.take("weight_scale", rows, columns // group, dtypes=FLOATS)
        declared = parts.take("weight_shape", 2, dtypes=("I64", "I32"))
        if tuple(declared.to_integers()) != shape:
            raise ArtifactError(
                f"{declared.file}: tensor {declared.name} says {declared.to_integers().tolist()}, its config"
                f" wants {list(shape)}"
            )
        zeros = None if settings.is_symmetric else _take_zeros(parts, settings.bits, columns // group)
        if settings.has_input_scale:
            # Proven to be there and put aside: executors scale inputs finer, by token and group.
            read_scales(parts.take("input_scale", 1, dtypes=FLOATS))
        index = parts.take_optional("weight_g_idx")
        if index is not None:
            raise ArtifactError(
                f"{index.file}: tensor {index.name}: columns in order of activation are not supported;"
                " quantise the model again without actorder"
            )

        def read(part: Region) -> Unpacked:
            values = read_scales(select(scales, part.rows, part.groups))
            middle = np.uint8(1 << (settings.bits - 1))
            found = (
                np.full_like(values, middle, np.uint8)
                if zeros is None
                else _zeros(zeros, settings.bits, part)
            )
            packed = read_words(select(codes, part.rows, words(part.columns, settings.bits)), settings.bits)
            return Unpacked(packed.reshape(part.rows.size, -1), found, values)

        return PackedMatrix(
            name=codes.name,
            file=codes.file,
            shape=shape,
            bits=settings.bits,
            group=group,
            order=None,
            read=read,
        )

    def is_ignorable(self, tensor: TensorRef) -> bool:
        """Whether a tensor that no parameter wants changes nothing (see `Scheme`)."""
        return False

    def _settings(self, module: str, tensor: TensorRef) -> _Group:
        """Return the entry that names the module, else the one that names all modules of its kind."""
        for group in (*filter(lambda group: group.names(module), self.groups), *self.groups):
            if group.names(module) or "Linear" in group.targets:
                return group
        raise ArtifactError(
            f"{tensor.file}: tensor {tensor.name} is packed, and quantization_config has no group for it"
        )


def read_compressed_tensors(config: ConfigReader) -> CompressedTensorsScheme:
    """Read the settings.

    Raises:
        UnsupportedModel: Another format, or one that quantises activations.
    """
    config.require("format", "pack-quantized")
    config.require("quantization_status", "compressed", "frozen")
    for key in ("ignore", "version", "global_compression_ratio", "kv_cache_scheme", "sparsity_config"):
        config.value(key)
    for key in ("kv_cache_scheme", "sparsity_config", "transform_config"):
        if config.value(key):
            raise UnsupportedModel(f"quantization_config has {key}, which is not supported")
    groups = config.value("config_groups")
    if not isinstance(groups, Mapping) or not groups:
        raise UnsupportedModel("quantization_config needs config_groups")
    config.finish()
    return CompressedTensorsScheme(tuple(_read_group(name, group) for name, group in groups.items()))


def _read_group(name: str, value: object) -> _Group:
    what = f"quantization_config.config_groups.{name}"
    if not isinstance(value, Mapping) or not isinstance(value.get("weights"), Mapping):
        raise UnsupportedModel(f"{what} needs weights")
    group, weights = ConfigReader(value, what=what), ConfigReader(value["weights"], what=f"{what}.weights")
    group.require("format", "pack-quantized")
    if group.value("output_activations"):
        raise UnsupportedModel(f"{what} has output_activations, which are not supported")
    weights.require("num_bits", 4, 8)
    weights.require("type", "int")
    weights.require("strategy", "group", "channel")
    weights.require("dynamic", False)
    # "group" keeps an index of columns beside the weight, which `take` refuses by name; others do not.
    weights.require("actorder", "weight", "static", "group")
    is_channel = weights.value("strategy") == "channel"
    targets = group.value("targets", ())
    if not isinstance(targets, Sequence) or isinstance(targets, str):
        raise UnsupportedModel(f"{what} needs targets as a list")
    return _Group(
        targets=tuple(map(str, targets)),
        bits=weights.integer("num_bits"),
        group=None if is_channel else weights.integer("group_size"),
        is_symmetric=weights.flag("symmetric", True),
        has_input_scale=_has_input_scale(group.value("input_activations"), what),
    )


def _has_input_scale(inputs: object, what: str) -> bool:
    """Whether inputs have fixed scales.

    Raises:
        UnsupportedModel: They are to be quantised in another way than to int8.
    """
    if not inputs:
        return False
    if not isinstance(inputs, Mapping) or (inputs.get("num_bits"), inputs.get("type")) != (8, "int"):
        raise UnsupportedModel(f"{what} has input_activations = {inputs!r}; supported: none, 8-bit int")
    return not inputs.get("dynamic", False)


def _take_zeros(parts: Parts, bits: int, groups: int) -> TensorRef:
    """Remove and return the zero points: words, or (in early checkpoints) one byte each."""
    num_words = -(-parts.rows * bits // WORD_BITS)
    if parts.dtype_of("weight_zero_point") == "I8":
        return parts.take("weight_zero_point", parts.rows, groups, dtypes=("I8",))
    return parts.take("weight_zero_point", num_words, groups, dtypes=("I32",))


def _zeros(tensor: TensorRef, bits: int, part: Region) -> UInt8:
    """Return zero points above the least code, [out or more, groups]."""
    if tensor.dtype == "I8":
        codes = select(tensor, part.rows, part.groups).to_integers() + (1 << (bits - 1))
        return codes.astype(np.uint8)
    packed = read_words(select(tensor, words(part.rows, bits), part.groups), bits).transpose(0, 2, 1)
    return np.ascontiguousarray(packed.reshape(-1, packed.shape[2]))
