"""A folder that `quire quantize` wrote is refused by file and tensor once it is damaged, or not all there."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from services.artifacts.artifact import open_artifact
from services.artifacts.errors import ArtifactError
from tests.unit.executors.tiny_models import make_model, save_folder
from worker.executors.weights.loader import open_model
from worker.quantize.quantizer import quantize
from worker.quantize.settings import Method, QuantizeSettings

SHARD = "model-00002-of-00003.safetensors"
"""The second layer's."""
UP = "model.layers.1.mlp.up_proj"


@pytest.fixture(params=[4, 8], ids=["int4", "int8"])
def folder(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    source = open_artifact(save_folder(make_model("llama"), tmp_path / "floats"))
    settings = QuantizeSettings(bits=request.param, group=32, method=Method.RTN)
    quantize(source, settings, (), tmp_path / "out")
    open_model(open_artifact(tmp_path / "out"))
    return tmp_path / "out"


def change(folder: Path, part: str, edit: Callable[[torch.Tensor], torch.Tensor]) -> Path:
    tensors = load_file(folder / SHARD)
    tensors[f"{UP}.{part}"] = edit(tensors[f"{UP}.{part}"]).contiguous()
    save_file(tensors, folder / SHARD)
    return folder


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_a_damaged_scale_is_refused(folder: Path, bad: float) -> None:
    def spoil(scales: torch.Tensor) -> torch.Tensor:
        scales[3, 1] = bad
        return scales

    _, weights = open_model(open_artifact(change(folder, "weight_scale", spoil)))
    for read in (weights.read, weights.read_quantized):
        with pytest.raises(ArtifactError, match=rf"{SHARD}: tensor {UP}\.weight_scale holds NaN"):
            read("layers.1.up")


@pytest.mark.parametrize("part", ["weight_packed", "weight_scale", "weight_zero_point"])
def test_a_wrong_axis_is_refused(folder: Path, part: str) -> None:
    change(folder, part, lambda values: values.T)
    with pytest.raises(ArtifactError, match=rf"{SHARD}: tensor {UP}\.{part} (has shape|does not)"):
        open_model(open_artifact(folder))


@pytest.mark.failure("B118")
def test_a_group_tail_is_refused(folder: Path) -> None:
    path = folder / "config.json"
    config = json.loads(path.read_text())
    (group,) = config["quantization_config"]["config_groups"].values()
    group["weights"]["group_size"] = 48
    path.write_text(json.dumps(config))
    with pytest.raises(ArtifactError, match=r"tensor .*q_proj\..*: 64 columns are not whole groups of 48"):
        open_model(open_artifact(folder))


def test_a_missing_shard_is_refused(folder: Path) -> None:
    (folder / SHARD).unlink()
    with pytest.raises(ArtifactError, match=f"{SHARD}: named by the index and missing"):
        open_artifact(folder)
