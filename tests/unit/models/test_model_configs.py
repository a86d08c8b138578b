"""Configs are understood wholly or refused: no key that changes maths is ignored."""

import math
from typing import Any

import pytest

from worker.models.errors import UnsupportedModel
from worker.models.registry import build_model
from worker.models.tensor_names import Transform, WeightFormat, file_name_of, transform_of

CONFIG: dict[str, Any] = {
    "model_type": "llama",
    "vocab_size": 100,
    "hidden_size": 8,
    "intermediate_size": 12,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "max_position_embeddings": 32,
}


def build(**changes: Any) -> Any:
    return build_model({**CONFIG, **changes})


@pytest.mark.failure("B109")
@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"model_type": "mamba"}, "mamba"),
        ({"hidden_act": "gelu"}, "hidden_act"),
        ({"partial_rotary_factor": 0.5}, "partial_rotary_factor"),
        ({"quantization_config": {"bits": 4}}, "quantization_config"),
        ({"final_logit_softcapping": 30.0}, "final_logit_softcapping"),
        ({"rope_scaling": {"rope_type": "dynamic", "factor": 2.0}}, "dynamic"),
        ({"rope_scaling": {"rope_type": "novel"}}, "novel"),
        ({"rope_scaling": {"rope_type": "linear"}}, "factor"),
        ({"rope_scaling": {"rope_type": "linear", "factor": 2.0, "twist": 1.0}}, "twist"),
        ({"rope_scaling": {"rope_type": "factors", "factors": [1.0, 1.0, 1.0]}}, "factors"),
        ({"num_key_value_heads": 3}, "3 key-value heads"),
        ({"head_dim": 3}, "head_dim"),
        ({"hidden_size": "8"}, "hidden_size"),
        ({"max_position_embeddings": None}, "max_position_embeddings"),
        ({"tie_word_embeddings": 1}, "tie_word_embeddings"),
        ({"model_type": "qwen2", "use_sliding_window": True}, "use_sliding_window"),
        ({"model_type": "qwen2", "layer_types": ["sliding_attention"]}, "sliding_attention"),
        ({"model_type": "qwen3"}, "head_dim"),
        ({"model_type": "mistral", "sliding_window": 0}, "sliding_window"),
        ({"model_type": "mistral", "layer_types": ["sliding_attention"] * 2}, "layer_types"),
        ({"model_type": "gemma3_text", "hidden_activation": "gelu"}, "hidden_activation"),
        ({"model_type": "gemma3_text", "use_bidirectional_attention": True}, "use_bidirectional"),
        ({"model_type": "gemma3_text", "layer_types": ["full_attention"]}, "layer_types as 2 of"),
        ({"model_type": "gemma3_text", "layer_types": ["full_attention", "x"]}, "layer_types as 2 of"),
        ({"model_type": "gemma3_text", "rope_local_scaling": {"rope_type": "yarn"}}, "rope_local_scaling"),
    ],
)
def test_what_we_do_not_compute_is_refused_by_name(changes: dict[str, Any], named: str) -> None:
    with pytest.raises(UnsupportedModel, match=named):
        build(**changes)


def test_a_mistral_that_says_nothing_has_the_window_of_its_family_and_one_that_says_null_none() -> None:
    windows = [build(model_type="mistral", **said).plan.windows for said in ({}, {"sliding_window": None})]
    assert windows == [(4096,), (0,)]


def test_five_layers_of_gemma_3_in_six_are_local_and_turn_by_their_own_table() -> None:
    model = build(model_type="gemma3_text", num_hidden_layers=12, sliding_window=16)
    local = [layer for layer, kind in enumerate(model.config.layers) if kind.window]
    assert local == [layer for layer in range(12) if layer not in (5, 11)]
    assert {(kind.window, kind.rope) for kind in model.config.layers} == {(16, 1), (0, 0)}
    theta = [rope.inverse_frequencies[1] ** -128 for rope in model.plan.ropes]
    assert theta == pytest.approx([1e6, 1e4])


def test_a_published_gemma_3_config_may_leave_out_what_its_family_says() -> None:
    config = build_model(
        {
            "model_type": "gemma3_text",
            "hidden_size": 2560,
            "intermediate_size": 10240,
            "num_hidden_layers": 34,
            "rope_scaling": {"factor": 8.0, "rope_type": "linear"},
            "sliding_window": 1024,
            "vision_config": {"num_hidden_layers": 27},
            "boi_token_index": 255_999,
        }
    ).config
    assert (config.num_heads, config.num_kv_heads, config.head_dim, config.vocab_size) == (8, 4, 256, 262_208)
    assert (config.max_positions, config.attention_scale, config.is_tied) == (131_072, 1 / 16, True)
    assert config.ropes[0].inverse_frequencies[0] == 1 / 8
    assert config.ropes[1].inverse_frequencies[0] == 1
    assert config.embedding_scale == pytest.approx(2560**0.5)


def test_keys_that_change_no_logit_are_accepted() -> None:
    changes = {"torch_dtype": "bfloat16", "use_cache": True, "rope_interleaved": False, "unknown": None}
    assert build(**changes).plan == build().plan


def test_factors_of_a_gguf_divide_the_frequencies() -> None:
    plain = build(head_dim=4).plan.ropes[0].inverse_frequencies
    scaled = build(head_dim=4, rope_scaling={"rope_type": "factors", "factors": [1.0, 8.0]}).plan.ropes[0]
    assert scaled.inverse_frequencies == (plain[0], plain[1] / 8)


def test_yarn_raises_the_magnitude_by_a_tenth_of_the_logarithm() -> None:
    rope = build(rope_scaling={"rope_type": "yarn", "factor": 4.0}).plan.ropes[0]
    assert rope.magnitude == pytest.approx(0.1 * math.log(4) + 1)


@pytest.mark.failure("B107")
def test_only_llama_and_mistral_in_gguf_have_their_heads_permuted() -> None:
    permuted = {
        (family, weight_format, parameter)
        for family in ("llama", "mistral", "gemma3", "qwen2", "qwen3")
        for weight_format in WeightFormat
        for parameter in ("layers.3.q", "layers.3.k", "layers.3.v", "layers.3.q_bias", "embedding")
        if transform_of(family, weight_format, parameter) is Transform.UNPERMUTE_HEADS
    }
    assert permuted == {
        (family, WeightFormat.GGUF, f"layers.3.{role}")
        for family in ("llama", "mistral")
        for role in ("q", "k", "q_bias")
    }


def test_parameters_have_their_published_names() -> None:
    names = [file_name_of(name, WeightFormat.HUGGING_FACE) for name in ("layers.7.o_bias", "final_norm")]
    assert names == ["model.layers.7.self_attn.o_proj.bias", "model.norm.weight"]
    assert file_name_of("layers.7.down", WeightFormat.GGUF) == "blk.7.ffn_down.weight"
