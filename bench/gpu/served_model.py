"""Writes a small model of random weights as a folder that a worker opens.

Knows the two files of such a folder; knows nothing of what serves it.
"""

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from bench.gpu.random_model import RandomWeights
from worker.executors.weights.quantized import Float32
from worker.models.registry import build_model
from worker.models.tensor_names import WeightFormat, file_name_of
from worker.quantize.safetensors_writer import Entry, write_safetensors


def write_folder(folder: Path, config: Mapping[str, Any]) -> Path:
    """Write `config.json` and one file of bfloat16 weights, and return the folder."""
    parameters = build_model(config).plan.parameters
    (folder / "config.json").write_text(json.dumps(dict(config)))
    weights = RandomWeights(parameters)
    write_safetensors(
        folder / "model.safetensors",
        {
            file_name_of(name, WeightFormat.HUGGING_FACE): Entry("BF16", shape, _bf16(weights.read(name)))
            for name, shape in parameters.items()
        },
    )
    return folder


def _bf16(values: Float32) -> Iterator[np.ndarray[Any, Any]]:
    """Yield the upper halves of float32 numbers, which are bfloat16 rounded towards zero."""
    yield (values.view(np.uint32) >> 16).astype(np.uint16)
