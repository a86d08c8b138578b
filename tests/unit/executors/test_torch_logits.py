"""The torch executor computes what transformers computes, from every file format."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file, save_file
from transformers import PreTrainedModel

from tests.unit.executors.batches import Part, logits_of
from tests.unit.executors.gguf_cases import GGUF_FORMATS, cases_of, is_covering, make_gguf_model
from tests.unit.executors.tiny_models import (
    VOCAB,
    WINDOW,
    make_model,
    reference_logits,
    save_folder,
    save_gguf,
    save_narrow_shards,
)
from worker.executors.torch_executor import load_torch_executor

IDS = np.random.default_rng(0).integers(0, VOCAB, 65).tolist()

LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 500.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 32,
}
GEMMA3_ROPES = {
    "full_attention": {"rope_type": "linear", "rope_theta": 5000.0, "factor": 8.0},
    "sliding_attention": {"rope_type": "default", "rope_theta": 100.0},
}
YARN = {"rope_type": "yarn", "rope_theta": 500.0, "factor": 4.0, "original_max_position_embeddings": 32}


def assert_equal_logits(path: Path, model: PreTrainedModel, ids: list[int], **changes: float) -> None:
    """Compare with the reference, called with `changes`, at every position, in one prefill."""
    executor = load_torch_executor(path, model_name="tiny", num_threads=1)
    executor.allocate(40)
    ours = logits_of(executor, [Part(ids, 0, list(range(40)))])
    theirs = reference_logits(model, ids, **changes)
    assert np.abs(theirs).max() > 0.5
    np.testing.assert_allclose(ours, theirs, rtol=0, atol=1e-4)


@pytest.mark.failure("B106")
@pytest.mark.failure("B107")
@pytest.mark.failure("B111")
@pytest.mark.parametrize(
    ("family", "overrides"),
    [
        ("llama", {"num_attention_heads": 8, "num_key_value_heads": 8}),
        ("llama", {"num_attention_heads": 8, "num_key_value_heads": 2}),
        ("llama", {"num_attention_heads": 8, "num_key_value_heads": 1}),
        ("llama", {"head_dim": 32}),
        ("llama", {"tie_word_embeddings": True}),
        ("llama", {"attention_bias": True, "mlp_bias": True}),
        ("mistral", {}),
        ("mistral", {"sliding_window": None, "head_dim": 32}),
        ("gemma3", {}),
        ("gemma3", {"num_attention_heads": 8, "num_key_value_heads": 1, "query_pre_attn_scalar": 50}),
        ("gemma3", {"num_hidden_layers": 3, "layer_types": ["full_attention", *["sliding_attention"] * 2]}),
        ("gemma3", {"final_logit_softcapping": 3.0, "attention_bias": True, "tie_word_embeddings": False}),
        ("gemma3", {"rope_parameters": GEMMA3_ROPES, "sliding_window": 64}),
        ("qwen2", {}),
        ("qwen2", {"num_attention_heads": 8, "num_key_value_heads": 1, "tie_word_embeddings": True}),
        ("qwen3", {"head_dim": 32}),
        ("qwen3", {"head_dim": 32, "attention_bias": True, "tie_word_embeddings": True}),
    ],
)
def test_a_folder_gives_the_logits_of_transformers(
    family: str, overrides: dict[str, Any], tmp_path: Path
) -> None:
    model = make_model(family, **overrides)
    assert_equal_logits(save_folder(model, tmp_path), model, IDS)


@pytest.mark.failure("B106")
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_a_folder_of_sixteen_bits_in_several_files_gives_the_logits_of_transformers(
    dtype: torch.dtype, tmp_path: Path
) -> None:
    model = make_model("llama", num_attention_heads=8, num_key_value_heads=2)
    assert_equal_logits(save_narrow_shards(model, tmp_path, dtype), model, IDS)


@pytest.mark.failure("B109")
@pytest.mark.parametrize(
    "rope",
    [
        {"rope_type": "linear", "rope_theta": 500.0, "factor": 4.0},
        LLAMA3,
        YARN,
        {**YARN, "beta_fast": 16.0, "beta_slow": 2.0, "attention_factor": 0.8},
    ],
    ids=lambda rope: rope["rope_type"],
)
def test_rope_scaling_is_applied_up_to_four_times_the_original_length(
    rope: dict[str, Any], tmp_path: Path
) -> None:
    model = make_model("llama", rope_parameters=rope, max_position_embeddings=128)
    assert_equal_logits(save_folder(model, tmp_path), model, IDS + IDS[:63])


@pytest.mark.parametrize("window", [WINDOW, 127, 128, 150, 400])
@pytest.mark.parametrize("family", ["mistral", "gemma3"])
def test_windows_reach_back_over_blocks_of_keys(family: str, window: int, tmp_path: Path) -> None:
    model = make_model(family, sliding_window=window)
    assert_equal_logits(save_folder(model, tmp_path), model, IDS * 7)


def test_scores_of_attention_are_capped(tmp_path: Path) -> None:
    model = make_model("gemma3", attn_logit_softcapping=1.5, attn_implementation="eager")
    # Transformers' Gemma 3 reads the key and does not apply it: its attention takes it by hand.
    assert_equal_logits(save_folder(model, tmp_path), model, IDS, softcap=1.5)
    assert np.abs(reference_logits(model, IDS) - reference_logits(model, IDS, softcap=1.5)).max() > 0.01


@pytest.mark.parametrize("spelling", ["model.language_model.", "language_model.model."])
def test_the_text_part_of_a_model_that_also_sees_is_served(spelling: str, tmp_path: Path) -> None:
    model = make_model("gemma3")
    folder = save_folder(model, tmp_path)
    tensors = load_file(folder / "model.safetensors")
    wrapped = {name.replace("model.", spelling, 1): values for name, values in tensors.items()}
    wrapped["vision_tower.embeddings.weight"] = np.ones((3, 3), np.float32)
    wrapped["multi_modal_projector.mm_soft_emb_norm.weight"] = np.ones(3, np.float32)
    save_file(wrapped, folder / "model.safetensors", metadata={"format": "np"})
    text = json.loads((folder / "config.json").read_text())
    config = {"model_type": "gemma3", "text_config": text, "vision_config": {}, "mm_tokens_per_image": 256}
    (folder / "config.json").write_text(json.dumps(config))
    assert_equal_logits(folder, model, IDS)


@pytest.mark.failure("B106")
@pytest.mark.failure("B107")
@pytest.mark.parametrize(("family", "kind", "num_kv_heads"), cases_of(GGUF_FORMATS, is_quick=is_covering))
def test_a_gguf_gives_the_logits_of_transformers(
    family: str, kind: str, num_kv_heads: int, tmp_path: Path
) -> None:
    model = make_gguf_model(family, num_kv_heads)
    path = save_gguf(model, tmp_path / "tiny.gguf", kind)
    assert_equal_logits(path, model, IDS)


@pytest.mark.failure("B106")
@pytest.mark.parametrize(
    ("family", "overrides"),
    [
        ("llama", {"attention_bias": True, "tie_word_embeddings": True}),
        ("qwen2", {}),
        ("qwen3", {"head_dim": 32, "tie_word_embeddings": True}),
    ],
)
def test_biases_norms_and_tied_heads_survive_gguf(
    family: str, overrides: dict[str, Any], tmp_path: Path
) -> None:
    model = make_model(family, **overrides)
    assert_equal_logits(save_gguf(model, tmp_path / "tiny.gguf", "Q8_0"), model, IDS)


@pytest.mark.failure("B115")
def test_formats_may_differ_inside_a_fused_group(tmp_path: Path) -> None:
    model = make_model("llama", hidden_size=256, intermediate_size=256, num_attention_heads=8)
    kinds = {"k_proj": "F16", "v_proj": "BF16", "up_proj": "Q4_1", "down_proj": "F32"}
    assert_equal_logits(save_gguf(model, tmp_path / "tiny.gguf", "Q8_0", kinds), model, IDS)
