"""Quantising holds one layer, however many the model has: what numpy and what torch hold, layer by layer."""

import gc
import tracemalloc
from pathlib import Path

import numpy as np
import pytest
from torch import Tensor

from services.artifacts.artifact import open_artifact
from tests.unit.executors.tiny_models import VOCAB, make_model, save_folder
from tests.unit.quantize.test_quantizer import with_tokenizer
from worker.executors.weights.loader import open_model
from worker.quantize.quantizer import LayerDone, quantize
from worker.quantize.settings import Method, QuantizeSettings

LAYERS = 5
SEQUENCES = [np.random.default_rng(i).integers(0, VOCAB, 40).tolist() for i in range(2)]


def bytes_of_tensors() -> int:
    """Return the bytes of all tensors that something still holds."""
    gc.collect()
    tensors = (one for one in gc.get_objects() if issubclass(type(one), Tensor))
    storages = {one.untyped_storage().data_ptr(): one.untyped_storage().nbytes() for one in tensors}
    return sum(storages.values())


@pytest.mark.parametrize("method", [*Method])
def test_memory_is_bounded_by_one_layer(method: Method, tmp_path: Path) -> None:
    made = make_model("llama", num_hidden_layers=LAYERS, hidden_size=128, intermediate_size=256)
    artifact = open_artifact(with_tokenizer(save_folder(made, tmp_path / "model")))
    del made
    parameters = open_model(artifact)[0].plan.parameters
    layer_bytes = 4 * sum(
        int(np.prod(shape)) for name, shape in parameters.items() if name.startswith("layers.0.")
    )
    assert artifact.revision, "hashing reads large pieces: done before anything is watched"
    peaks: list[int] = []
    held: list[int] = []

    def on_layer(done: LayerDone) -> None:
        peaks.append(tracemalloc.get_traced_memory()[1])
        if done.layer == LAYERS - 1:
            held.append(bytes_of_tensors() - before)
        tracemalloc.reset_peak()

    before = bytes_of_tensors()
    tracemalloc.start()
    try:
        quantize(
            artifact,
            QuantizeSettings(bits=4, group=32, method=method),
            SEQUENCES,
            tmp_path / "out",
            on_layer,
        )
    finally:
        tracemalloc.stop()
    assert len(peaks) == LAYERS
    # Its floats and what is being written of it; a second layer beside it would be more.
    assert max(peaks) < 2 * layer_bytes, (layer_bytes, peaks)
    # The last one's floats and codes.
    assert held[0] < 2 * layer_bytes, (layer_bytes, held)
