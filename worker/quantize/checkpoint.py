"""Writes the quantised model as a Hugging Face folder: shards by layer, index, config, tokeniser, template.

Knows the folder's layout and what is stored how; knows nothing of methods. What the source file stores in
plain floats is copied byte for byte; what a method changed is float32; matrices that stay floats (embedding,
head) and were blocks in the source are float16.
"""

import json
from collections.abc import Iterator, Mapping
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from services.artifacts.artifact import ModelArtifact
from services.artifacts.safetensors_file import INDEX_FILE
from worker.executors.weights.loader import WeightSource
from worker.models.registry import BuiltModel
from worker.models.tensor_names import Transform, WeightFormat, file_name_of, transform_of
from worker.quantize.folder_files import copy_small_files, source_config
from worker.quantize.layer_rounding import RoundedLayer
from worker.quantize.packing import pack, quantization_config
from worker.quantize.safetensors_writer import Entry, write_safetensors
from worker.quantize.settings import QuantizeSettings

_ROWS = 4096
"""Rows of a matrix that are converted at once."""


class CheckpointWriter:
    """Writes one model, shard by shard, into a folder that becomes the model when all are there."""

    def __init__(
        self, folder: Path, artifact: ModelArtifact, model: BuiltModel, weights: WeightSource
    ) -> None:
        self._folder = folder
        self._artifact = artifact
        self._model = model
        self._weights = weights
        self._num_shards = model.plan.num_layers + 1

    def write_layer(
        self,
        layer: int,
        parameters: tuple[str, ...],
        rounded: RoundedLayer,
        largest_inputs: Mapping[str, float],
    ) -> None:
        """Write the shard of one layer.

        Args:
            layer: Its number.
            parameters: Everything that it reads.
            rounded: Its quantised matrices, and what else is no longer the source's.
            largest_inputs: Greatest size of an input, of the matrices that get a scale for theirs.
        """
        entries: dict[str, Entry] = {}
        for name in parameters:
            if (matrix := rounded.matrices.get(name)) is not None:
                module = self._tensor_name(name).removesuffix(".weight")
                entries |= pack(module, matrix, largest_inputs.get(name))
            else:
                entries[self._tensor_name(name)] = self._floats(name, rounded.changed.get(name))
        write_safetensors(self._shard(layer), entries)

    def finish(self, settings: QuantizeSettings) -> None:
        """Write what is beside the layers, the index, and the small files."""
        rest = [name for name in self._model.plan.parameters if not name.startswith("layers.")]
        write_safetensors(
            self._shard(self._num_shards - 1), {self._tensor_name(name): self._floats(name) for name in rest}
        )
        config = source_config(self._artifact, self._model)
        config["quantization_config"] = quantization_config(settings)
        (self._folder / "config.json").write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")
        copy_small_files(self._artifact, self._folder)
        self._write_index()

    def _write_index(self) -> None:
        """Name every tensor's shard, as read back from the shards themselves."""
        weight_map: dict[str, str] = {}
        total = 0
        for number in range(self._num_shards):
            path = self._shard(number)
            with path.open("rb") as file:
                size = int.from_bytes(file.read(8), "little")
                header = json.loads(file.read(size))
            del header["__metadata__"]
            weight_map |= dict.fromkeys(header, path.name)
            total += path.stat().st_size - 8 - size
        index = {"metadata": {"total_size": total}, "weight_map": weight_map}
        (self._folder / INDEX_FILE).write_text(json.dumps(index, indent=2) + "\n", encoding="utf-8")

    def _floats(self, name: str, changed: Tensor | None = None) -> Entry:
        stored = self._weights.stored_floats(name)
        if changed is None and stored is not None:
            return Entry(stored.dtype, stored.shape, (stored.raw(),))
        shape = self._model.plan.parameters[name]
        if len(shape) == 2:
            return Entry("F16", shape, self._halves(name, shape[0]))
        values = self._weights.read(name) if changed is None else changed.numpy()
        kind = transform_of(self._model.family, WeightFormat.HUGGING_FACE, name)
        assert kind in (Transform.NONE, Transform.ADD_ONE)
        return Entry.of("F32", values - np.float32(kind is Transform.ADD_ONE))

    def _halves(self, name: str, num_rows: int) -> Iterator[NDArray[np.float16]]:
        for start in range(0, num_rows, _ROWS):
            yield self._weights.read_rows(name, slice(start, start + _ROWS)).astype("<f2")

    def _tensor_name(self, parameter: str) -> str:
        return file_name_of(parameter, WeightFormat.HUGGING_FACE)

    def _shard(self, number: int) -> Path:
        return self._folder / f"model-{number + 1:05}-of-{self._num_shards:05}.safetensors"
