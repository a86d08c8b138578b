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
    ],
)
def test_what_we_do_not_compute_is_refused_by_name(changes: dict[str, Any], named: str) -> None:
    with pytest.raises(UnsupportedModel, match=named):
        build(**changes)


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
def test_only_llama_in_gguf_has_its_heads_permuted() -> None:
    permuted = {
        (family, weight_format, parameter)
        for family in ("llama", "qwen2", "qwen3")
        for weight_format in WeightFormat
        for parameter in ("layers.3.q", "layers.3.k", "layers.3.v", "layers.3.q_bias", "embedding")
        if transform_of(family, weight_format, parameter) is Transform.UNPERMUTE_HEADS
    }
    assert permuted == {("llama", WeightFormat.GGUF, f"layers.3.{role}") for role in ("q", "k", "q_bias")}


def test_parameters_have_their_published_names() -> None:
    names = [file_name_of(name, WeightFormat.HUGGING_FACE) for name in ("layers.7.o_bias", "final_norm")]
    assert names == ["model.layers.7.self_attn.o_proj.bias", "model.norm.weight"]
    assert file_name_of("layers.7.down", WeightFormat.GGUF) == "blk.7.ffn_down.weight"
