"""Hugging Face folders: config, shards, confinement and damage."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from services.artifacts.artifact import open_artifact
from services.artifacts.digest import digest_files
from services.artifacts.errors import ArtifactError
from services.artifacts.model_folder import normalise_config
from services.artifacts.safetensors_file import INDEX_FILE


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, np.ndarray]]:
    """A tiny BF16 Llama in two shards, and its weights."""
    torch = pytest.importorskip("torch")
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        vocab_size=64,
        eos_token_id=[2, 3],
    )
    model = LlamaForCausalLM(config).to(torch.bfloat16)
    model.generation_config.eos_token_id = [4]
    model.generation_config.do_sample = True
    model.generation_config.temperature = 0.6
    folder = tmp_path_factory.mktemp("tiny")
    model.save_pretrained(folder, max_shard_size="20KB")
    return folder, {name: value.float().numpy() for name, value in model.state_dict().items()}


@pytest.fixture
def folder(saved: tuple[Path, dict[str, np.ndarray]], tmp_path: Path) -> Path:
    """A copy that a test may damage."""
    for path in saved[0].iterdir():
        (tmp_path / path.name).write_bytes(path.read_bytes())
    return tmp_path


def edit_json(path: Path, **changes: Any) -> None:
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))


def test_sharded_bf16_weights_read_back_exactly(saved: tuple[Path, dict[str, np.ndarray]]) -> None:
    folder, weights = saved

    artifact = open_artifact(folder)

    assert artifact.tensors.keys() == weights.keys()
    assert len({tensor.file for tensor in artifact.tensors.values()}) > 1
    for name, tensor in artifact.tensors.items():
        assert tensor.dtype == "BF16"
        np.testing.assert_array_equal(tensor.to_float32(), weights[name])


@pytest.mark.failure("B104")
def test_ends_are_the_union_of_config_and_generation_config(folder: Path) -> None:
    assert open_artifact(folder).declared_eos_ids == {2, 3, 4}


@pytest.mark.failure("B093")
def test_generation_defaults_are_exposed(folder: Path) -> None:
    assert open_artifact(folder).generation_defaults["temperature"] == 0.6


@pytest.mark.failure("B109")
@pytest.mark.parametrize(
    "raw",
    [
        {"rope_theta": 5e5, "rope_scaling": {"type": "linear", "factor": 2.0}},
        {"rope_theta": 5e5, "rope_scaling": {"rope_type": "linear", "factor": 2.0}},
        {"rope_parameters": {"rope_theta": 5e5, "rope_type": "linear", "factor": 2.0}},
        {"text_config": {"rope_parameters": {"rope_theta": 5e5, "rope_type": "linear", "factor": 2.0}}},
    ],
)
def test_all_spellings_of_rope_scaling_mean_the_same(raw: dict[str, Any]) -> None:
    assert normalise_config(raw) == {
        "rope_theta": 5e5,
        "rope_scaling": {"rope_type": "linear", "factor": 2.0},
    }


def test_rope_by_kind_of_layer_is_settled_on_full_attention() -> None:
    ropes = {
        "full_attention": {"rope_type": "linear", "rope_theta": 1e6, "factor": 8.0},
        "sliding_attention": {"rope_type": "default", "rope_theta": 1e4},
    }
    config = normalise_config({"rope_parameters": ropes})
    assert (config["rope_theta"], config["rope_local_base_freq"]) == (1e6, 1e4)
    assert config["rope_scaling"] == {"rope_type": "linear", "factor": 8.0}
    assert config["rope_local_scaling"] is None
    ropes["sliding_attention"]["rope_type"] = "yarn"
    assert normalise_config({"rope_parameters": ropes})["rope_local_scaling"] == {"rope_type": "yarn"}


def test_default_rope_is_no_scaling() -> None:
    assert normalise_config({"rope_parameters": {"rope_theta": 1e4, "rope_type": "default"}}) == {
        "rope_theta": 1e4,
        "rope_scaling": None,
    }


@pytest.mark.failure("B176")
@pytest.mark.parametrize(
    "target", ["../outside.safetensors", "/etc/passwd", "weights.bin", "a/b.safetensors"]
)
def test_an_index_may_name_only_safetensors_beside_it(folder: Path, target: str) -> None:
    (folder.parent / "outside.safetensors").write_bytes(b"\0" * 16)
    edit_json(folder / INDEX_FILE, weight_map={"model.norm.weight": target})

    with pytest.raises(ArtifactError, match="is not a safetensors file beside it"):
        open_artifact(folder)


@pytest.mark.failure("B176")
def test_pickled_weights_are_refused(folder: Path) -> None:
    for path in [*folder.glob("*.safetensors"), folder / INDEX_FILE]:
        path.unlink()
    (folder / "pytorch_model.bin").write_bytes(b"x")

    with pytest.raises(ArtifactError, match="pickled weights, which run code"):
        open_artifact(folder)


def test_a_truncated_shard_is_refused_naming_file_and_tensor(folder: Path) -> None:
    shard = sorted(folder.glob("*.safetensors"))[0]
    shard.write_bytes(shard.read_bytes()[:-10])

    with pytest.raises(ArtifactError, match=rf"{shard.name}: truncated, tensor \S+ ends at byte"):
        open_artifact(folder)


def test_a_missing_shard_is_refused(folder: Path) -> None:
    shard = sorted(folder.glob("*.safetensors"))[0]
    shard.unlink()

    with pytest.raises(ArtifactError, match=f"{shard.name}: named by the index and missing"):
        open_artifact(folder)


def test_a_tensor_that_the_index_places_elsewhere_is_refused(folder: Path) -> None:
    weight_map = json.loads((folder / INDEX_FILE).read_text())["weight_map"]
    other = next(name for name in weight_map.values() if name != weight_map["model.norm.weight"])
    edit_json(folder / INDEX_FILE, weight_map={**weight_map, "model.norm.weight": other})

    with pytest.raises(ArtifactError, match=r"tensor model\.norm\.weight is not in"):
        open_artifact(folder)


@pytest.mark.parametrize("header", [b"", b"\xff" * 16, (5).to_bytes(8, "little") + b"{]}  "])
def test_a_damaged_header_is_refused(folder: Path, header: bytes) -> None:
    shard = sorted(folder.glob("*.safetensors"))[0]
    shard.write_bytes(header)

    with pytest.raises(ArtifactError, match=shard.name):
        open_artifact(folder)


def test_a_shape_that_does_not_match_its_bytes_is_refused(folder: Path) -> None:
    for path in [*folder.glob("*.safetensors"), folder / INDEX_FILE]:
        path.unlink()
    header = json.dumps({"w": {"dtype": "F32", "shape": [3], "data_offsets": [0, 8]}}).encode()
    (folder / "model.safetensors").write_bytes(len(header).to_bytes(8, "little") + header + b"\0" * 16)

    with pytest.raises(ArtifactError, match=r"tensor w takes 8 bytes, its shape \(3,\) in F32 needs 12"):
        open_artifact(folder)


def test_a_missing_or_broken_config_is_refused(folder: Path) -> None:
    (folder / "config.json").write_text("{")
    with pytest.raises(ArtifactError, match=r"config\.json: cannot be read"):
        open_artifact(folder)

    (folder / "config.json").unlink()
    with pytest.raises(ArtifactError, match=r"config\.json: cannot be read"):
        open_artifact(folder)


def test_the_revision_covers_config_and_every_shard(folder: Path) -> None:
    revisions = {open_artifact(folder).revision}
    edit_json(folder / "config.json", rms_norm_eps=0.5)
    revisions.add(open_artifact(folder).revision)
    for shard in folder.glob("*.safetensors"):
        data = bytearray(shard.read_bytes())
        data[-1] ^= 1
        shard.write_bytes(data)
        revisions.add(open_artifact(folder).revision)

    assert len(revisions) == 2 + len(list(folder.glob("*.safetensors")))


def test_a_digest_depends_on_size_and_ends_only_when_files_are_huge(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("services.artifacts.digest.FULL_HASH_BYTES", 1 << 20)
    path = tmp_path / "w"
    data = bytearray(4 << 20)
    path.write_bytes(data)
    before = digest_files([path])
    data[-1] = 1
    path.write_bytes(data)

    assert digest_files([path]) != before
