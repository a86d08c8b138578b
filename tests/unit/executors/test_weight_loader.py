"""Every tensor has a place and every parameter a tensor, or loading names the file and the tensor."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file
from structlog.testing import capture_logs

from services.artifacts.artifact import open_artifact
from services.artifacts.errors import ArtifactError
from tests.unit.executors.tiny_models import make_model, save_folder
from worker.executors.weights.loader import open_model, unpermute_heads


def edit(folder: Path, changes: dict[str, np.ndarray | None], **config: Any) -> Path:
    """Rewrite a saved model with tensors replaced, added or (None) removed, and config keys changed."""
    tensors = {**load_file(folder / "model.safetensors"), **changes}
    kept = {name: values for name, values in tensors.items() if values is not None}
    save_file(kept, folder / "model.safetensors", metadata={"format": "np"})
    path = folder / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **config}))
    return folder


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return save_folder(make_model("llama"), tmp_path)


@pytest.mark.failure("B111")
def test_a_missing_tensor_is_named(folder: Path) -> None:
    edit(folder, {"model.layers.1.mlp.up_proj.weight": None})
    with pytest.raises(ArtifactError, match=r"model\.layers\.1\.mlp\.up_proj\.weight is missing"):
        open_model(open_artifact(folder))


@pytest.mark.failure("B111")
def test_a_tensor_left_over_is_named(folder: Path) -> None:
    edit(folder, {"model.layers.0.self_attn.q_norm.weight": np.ones(16, np.float32)})
    with pytest.raises(ArtifactError, match=r"model\.safetensors: tensor .*q_norm\.weight has no place"):
        open_model(open_artifact(folder))


@pytest.mark.failure("B111")
def test_a_tensor_of_another_shape_is_named_with_both_shapes(folder: Path) -> None:
    edit(folder, {"model.norm.weight": np.ones(63, np.float32)})
    with pytest.raises(ArtifactError, match=r"model\.norm\.weight has shape \[63\], its config wants \[64\]"):
        open_model(open_artifact(folder))


def test_a_table_that_only_repeats_the_config_may_be_left_over(folder: Path) -> None:
    edit(folder, {"model.layers.0.self_attn.rotary_emb.inv_freq": np.ones(8, np.float32)})
    assert open_model(open_artifact(folder))[0].family == "llama"


@pytest.mark.failure("B108")
def test_an_untied_model_without_a_head_is_refused(folder: Path) -> None:
    edit(folder, {"lm_head.weight": None})
    with pytest.raises(ArtifactError, match=r"lm_head\.weight is missing"):
        open_model(open_artifact(folder))


@pytest.mark.failure("B108")
@pytest.mark.parametrize("head", ["absent", "equal", "different"])
def test_a_tied_model_uses_its_embedding_and_warns_of_another_head(folder: Path, head: str) -> None:
    embedding = load_file(folder / "model.safetensors")["model.embed_tokens.weight"]
    heads = {"absent": None, "equal": embedding, "different": embedding + 1}
    edit(folder, {"lm_head.weight": heads[head]}, tie_word_embeddings=True)
    with capture_logs() as logs:
        model, _ = open_model(open_artifact(folder))
    assert model.plan.ops[-1].weights == ("embedding",)
    assert [entry["event"] for entry in logs] == (["tied_head_ignored"] if head == "different" else [])


@pytest.mark.failure("B109")
def test_a_config_that_we_do_not_compute_names_its_folder(folder: Path) -> None:
    edit(folder, {}, rope_parameters={"rope_type": "dynamic", "factor": 2.0, "rope_theta": 1e4})
    with pytest.raises(ArtifactError, match=f"{folder.name}.*dynamic"):
        open_model(open_artifact(folder))


def test_unpermuting_brings_the_halves_of_each_head_back() -> None:
    stored = np.array([[0], [2], [1], [3], [4], [6], [5], [7]], np.float32)
    assert unpermute_heads(stored, 2)[:, 0].tolist() == list(range(8))
