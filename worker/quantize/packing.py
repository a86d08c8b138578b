"""Packs a quantised matrix as compressed-tensors' `pack-quantized` format does.

Knows that layout alone; `worker.executors.weights.packed.compressed_tensors` reads it back.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from worker.quantize.rounding import Rounded
from worker.quantize.safetensors_writer import Entry
from worker.quantize.settings import QuantizeSettings

_WORD_BITS = 32
_LARGEST_INT8 = 127
_LEAST = 1e-30
"""Stands for the size of inputs that were all zero."""


def pack(module: str, matrix: Rounded, largest_input: float | None = None) -> Mapping[str, Entry]:
    """Return the tensors of a module, by name.

    Args:
        module: Name that they begin with.
        matrix: Its codes.
        largest_input: Greatest size of an input where inputs have one fixed scale, else None.
    """
    bits, codes = matrix.grid.bits, matrix.codes.numpy()
    zeros = matrix.grid.zeros.numpy().astype(np.uint8)
    scales = matrix.grid.scales.numpy()
    # The grid's scales are bfloat16 numbers already: the lower half of each is zero.
    upper = (scales.view(np.uint32) >> 16).astype("<u2")
    entries = {
        f"{module}.weight_packed": Entry.of("I32", pack_words(codes, bits)),
        f"{module}.weight_scale": Entry.of("BF16", upper),
        f"{module}.weight_zero_point": Entry.of("I32", np.ascontiguousarray(pack_words(zeros.T, bits).T)),
        f"{module}.weight_shape": Entry.of("I64", np.array(codes.shape, "<i8")),
    }
    if largest_input is not None:
        scale = np.array([max(largest_input, _LEAST) / _LARGEST_INT8], "<f4")
        entries[f"{module}.input_scale"] = Entry.of("F32", scale)
    return entries


def pack_words(codes: NDArray[np.uint8], bits: int) -> NDArray[np.uint32]:
    """Return rows of codes as words, lowest bits first, the last word filled up with zeros.

    Worked number: 4 bits, codes 0, 1, 2, ... 7 are the word 0x76543210.
    """
    per_word = _WORD_BITS // bits
    rows, columns = codes.shape
    padded = np.zeros((rows, -(-columns // per_word) * per_word), np.uint32)
    padded[:, :columns] = codes
    shifts = np.arange(per_word, dtype=np.uint32) * np.uint32(bits)
    words: NDArray[np.uint32] = np.bitwise_or.reduce(padded.reshape(rows, -1, per_word) << shifts, axis=2)
    return words.astype("<u4")


def quantization_config(settings: QuantizeSettings) -> dict[str, Any]:
    """Return what config.json says of the packing."""
    weights = {
        "num_bits": settings.bits,
        "type": "int",
        "symmetric": False,
        "strategy": "group",
        "group_size": settings.group,
        "dynamic": False,
    }
    inputs = {"num_bits": 8, "type": "int", "symmetric": True, "strategy": "tensor", "dynamic": False}
    group = {
        "targets": ["Linear"],
        "weights": weights,
        "input_activations": inputs if settings.has_static_activations else None,
        "output_activations": None,
    }
    return {
        "quant_method": "compressed-tensors",
        "format": "pack-quantized",
        "quantization_status": "compressed",
        "config_groups": {"group_0": group},
        "ignore": ["lm_head"],
    }
