"""Quantises a model layer by layer: reads one, rounds it, writes it, and passes the text through it.

Owns the run: what is done and what is left. Memory holds one layer, the sums over its inputs and one
sequence; the inputs of the layer at hand lie on disk. A run that was killed goes on behind its last finished
layer, and gives the bytes it would have given.
"""

import hashlib
import json
import shutil
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from services.artifacts.artifact import ModelArtifact
from worker.executors.weights.loader import WeightSource, open_model
from worker.models.registry import BuiltModel
from worker.models.tensor_names import WeightFormat, file_name_of
from worker.plan.op import OpKind
from worker.quantize.activations import ActivationCache
from worker.quantize.checkpoint import CheckpointWriter
from worker.quantize.dense import DenseRunner
from worker.quantize.errors import QuantizeError
from worker.quantize.layer_rounding import LayerRounder, RoundedLayer
from worker.quantize.layers import Layer, SplitPlan, matrices_of, split
from worker.quantize.settings import QuantizeSettings

Sequences = Sequence[Sequence[int]]
_STATE = "state.json"
_ACTIVATIONS = "activations"
_VERSION = 1
"""Of the results: a run begun by another version is not gone on with."""


@dataclass(frozen=True, slots=True)
class LayerDone:
    """Told after each layer."""

    layer: int
    num_layers: int
    errors: dict[str, float]
    """Parameter -> error of its product relative to the product, root mean square over calibration text; of
    the matrix itself where there was none."""


OnLayer = Callable[[LayerDone], None]


def quantize(
    artifact: ModelArtifact,
    settings: QuantizeSettings,
    sequences: Sequences,
    out: Path,
    on_layer: OnLayer = lambda done: None,
) -> None:
    """Write the quantised model to the folder `out`.

    Args:
        artifact: The model.
        settings: Format and method.
        sequences: Token ids of the calibration text; looked at where the settings need it.
        out: The folder to make. Until it is whole it is called `<out>.partial`.
        on_layer: Called after each layer.

    Raises:
        QuantizeError: `out` exists, a width is no multiple of the group, or a partial run is another's.
        ArtifactError: The model cannot be read.
    """
    assert sequences or not settings.is_calibrated, "the settings need text"
    if out.exists():
        raise QuantizeError(f"{out}: exists; remove it or choose another -o")
    model, weights = open_model(artifact)
    check_groups(model, settings)
    run = _Run(artifact, model, weights, settings, sequences, out.with_name(f"{out.name}.partial"))
    with torch.inference_mode():
        run.work(on_layer)
    run.folder.rename(out)
    # Last: killed before this, the model is whole with a file too many; before the rename, the run goes on.
    (out / _STATE).unlink()


def check_groups(model: BuiltModel, settings: QuantizeSettings) -> None:
    """Refuse a group that leaves a tail.

    Raises:
        QuantizeError: Names the tensor, its width and the groups that would do.
    """
    for layer in split(model.plan).layers:
        for name in (name for linear in layer.linears for name in matrices_of(linear)):
            width = model.plan.parameters[name][1]
            if width % settings.group:
                fitting = [str(group) for group in (32, 64, 128) if width % group == 0] or ["none"]
                raise QuantizeError(
                    f"--group {settings.group}: tensor {file_name_of(name, WeightFormat.HUGGING_FACE)} has"
                    f" {width} columns, which are not whole groups; groups that fit it: {', '.join(fitting)}"
                )


class _Run:
    """One run in its folder."""

    def __init__(
        self,
        artifact: ModelArtifact,
        model: BuiltModel,
        weights: WeightSource,
        settings: QuantizeSettings,
        sequences: Sequences,
        folder: Path,
    ) -> None:
        self.folder = folder
        self._weights = weights
        self._settings = settings
        self._sequences = sequences if settings.is_calibrated else ()
        self._plan: SplitPlan = split(model.plan)
        self._runner = DenseRunner(model.plan)
        self._rounder = LayerRounder(model.plan, settings, self._runner)
        self._writer = CheckpointWriter(folder, artifact, model, weights)
        self._identity = {
            "version": _VERSION,
            "model": artifact.revision,
            **asdict(settings),
            "calibration": _digest(self._sequences),
        }
        self._width = model.config.hidden_size

    def work(self, on_layer: OnLayer) -> None:
        """Do what is left."""
        done = self._begin()
        cache = ActivationCache(
            self.folder / _ACTIVATIONS, [len(ids) for ids in self._sequences], self._width
        )
        for layer in self._plan.layers[done:]:
            if self._sequences and layer.index == 0:
                cache.write(0, self._embedded())
            elif self._sequences and not cache.has(layer.index):
                raise QuantizeError(
                    f"{self.folder}: the inputs of layer {layer.index} are missing; remove it and begin again"
                )
            rounded = self._quantise(layer, cache)
            largest: dict[str, float] = {}
            if self._sequences:
                cache.write(layer.index + 1, self._passed_on(layer, rounded, cache, largest))
            inputs = largest if self._settings.has_static_activations else {}
            self._writer.write_layer(layer.index, layer.parameters, rounded, inputs)
            self._save_state(layer.index + 1)
            # Not before: a kill up to here has to do this layer again, from its inputs.
            cache.keep_only(layer.index + 1)
            on_layer(LayerDone(layer.index, len(self._plan.layers), rounded.errors))
        self._writer.finish(self._settings)
        shutil.rmtree(self.folder / _ACTIVATIONS)

    def _begin(self) -> int:
        """Return how many layers are done; a new folder begins with none.

        Raises:
            QuantizeError: The folder is of a run with other settings, or damaged.
        """
        path = self.folder / _STATE
        if not self.folder.exists():
            self.folder.mkdir(parents=True)
            self._save_state(0)
            return 0
        try:
            state = json.loads(path.read_bytes())
            identity, done = state["run"], int(state["layers_done"])
        except (OSError, ValueError, KeyError, TypeError) as exc:
            raise QuantizeError(f"{path}: damaged ({exc!r}); remove {self.folder} and begin again") from exc
        for key, value in self._identity.items():
            if identity.get(key) != value:
                raise QuantizeError(
                    f"{self.folder}: was begun with {key} = {identity.get(key)}, now it is {value}; finish"
                    " that run or remove the folder"
                )
        return done

    def _save_state(self, layers_done: int) -> None:
        unfinished = self.folder / f"{_STATE}.unfinished"
        unfinished.write_text(json.dumps({"run": self._identity, "layers_done": layers_done}))
        unfinished.rename(self.folder / _STATE)

    def _embedded(self) -> Iterator[NDArray[np.float32]]:
        """Give what enters the first layer, sequence by sequence."""
        first = self._plan.layers[0].input
        for ids in self._sequences:
            slots: dict[int, Tensor] = {}
            for op in self._plan.prologue:
                if op.kind is OpKind.EMBED:
                    rows = self._weights.read_rows(op.weights[0], np.array(ids, np.int64))
                    slots[op.outputs[0]] = torch.from_numpy(rows)
                else:
                    self._runner.run([op], slots, {})
            yield slots[first].numpy()

    def _quantise(self, layer: Layer, cache: ActivationCache) -> RoundedLayer:
        values = {name: torch.from_numpy(self._weights.read(name)) for name in layer.parameters}

        def inputs() -> Iterator[Tensor]:
            return (torch.from_numpy(x) for x in cache.read(layer.index))

        return self._rounder.round_layer(layer, values, inputs if self._sequences else None)

    def _passed_on(
        self, layer: Layer, rounded: RoundedLayer, cache: ActivationCache, largest: dict[str, float]
    ) -> Iterator[NDArray[np.float32]]:
        """Give what the quantised layer makes of its inputs, sequence by sequence.

        `largest` gets the greatest size of an input of each matrix.
        """
        for x in cache.read(layer.index):
            slots = {layer.input: torch.from_numpy(x)}
            self._runner.run(layer.ops, slots, rounded.values)
            for linear in layer.linears:
                size = float(slots[linear.inputs[0]].abs().max())
                for name in matrices_of(linear):
                    largest[name] = max(size, largest.get(name, 0.0))
            yield slots[layer.output].numpy()


def _digest(sequences: Sequences) -> str:
    digest = hashlib.sha256()
    for ids in sequences:
        digest.update(np.array([len(ids), *ids], "<i8").tobytes())
    return digest.hexdigest()[:16]
