"""Translates GGUF metadata into the config keys of Hugging Face's config.json.

Knows key names; knows nothing of which families can be run (the worker's registry decides that).
"""

from collections.abc import Mapping
from typing import Any

from services.artifacts.errors import ArtifactError
from services.artifacts.gguf_file import GgufFile

ROPE_FACTORS_TENSOR = "rope_freqs.weight"

_KEYS = {
    "block_count": "num_hidden_layers",
    "context_length": "max_position_embeddings",
    "embedding_length": "hidden_size",
    "feed_forward_length": "intermediate_size",
    "attention.head_count": "num_attention_heads",
    "attention.head_count_kv": "num_key_value_heads",
    "attention.key_length": "head_dim",
    "attention.layer_norm_rms_epsilon": "rms_norm_eps",
    "attention.sliding_window": "sliding_window",
    "attn_logit_softcapping": "attn_logit_softcapping",
    "final_logit_softcapping": "final_logit_softcapping",
    "attention.sliding_window_pattern": "sliding_window_pattern",
    "rope.freq_base": "rope_theta",
    "rope.freq_base_swa": "rope_local_base_freq",
    "expert_count": "num_local_experts",
    "vocab_size": "vocab_size",
}
_REQUIRED = ("num_hidden_layers", "hidden_size", "intermediate_size", "num_attention_heads", "rms_norm_eps")


def config_of(file: GgufFile) -> dict[str, Any]:
    """Return the model's config under Hugging Face's names.

    Llama 3's scaling has no metadata in GGUF: a tensor holds one factor per rotated pair, given here as
    `rope_scaling = {"rope_type": "factors", "factors": [head_dim / 2 floats]}` (inverse frequencies are
    divided by them). Tied embeddings and biases follow from which tensors exist.

    Raises:
        ArtifactError: A key without which no model can be built is missing.
    """
    metadata = file.metadata
    architecture = metadata.get("general.architecture")
    if not isinstance(architecture, str):
        raise ArtifactError(f"{file.path}: names no architecture; convert the model again")
    config: dict[str, Any] = {"model_type": architecture}
    for key, name in _KEYS.items():
        if (value := metadata.get(f"{architecture}.{key}")) is not None:
            config[name] = value if isinstance(value, (int, float)) else value.tolist()
    for name in _REQUIRED:
        if name not in config:
            raise ArtifactError(f"{file.path}: metadata has no {name}; convert the model again")
    config.setdefault("num_key_value_heads", config["num_attention_heads"])
    if isinstance(config["num_attention_heads"], int):
        config.setdefault("head_dim", config["hidden_size"] // config["num_attention_heads"])
    config.setdefault("rope_theta", 10000.0)
    config["rope_scaling"] = _rope_scaling(architecture, metadata, file)
    if (embedding := file.tensors.get("token_embd.weight")) is not None:
        config["vocab_size"] = embedding.shape[0]
    config["tie_word_embeddings"] = "output.weight" not in file.tensors
    config["attention_bias"] = "blk.0.attn_q.bias" in file.tensors
    config["mlp_bias"] = "blk.0.ffn_gate.bias" in file.tensors
    config["hidden_act"] = "gelu_pytorch_tanh" if architecture.startswith("gemma") else "silu"
    if architecture == "gemma3":
        config["query_pre_attn_scalar"] = _gemma3_scalar(config)
    if architecture == "llama" and "sliding_window" in config:
        # Converters write Mistral as Llama; only this tells where that is not the same maths.
        config["model_type"] = "mistral"
    return config


def _gemma3_scalar(config: Mapping[str, Any]) -> Any:
    """Return `query_pre_attn_scalar`, which no key carries: the head's size but in the 27B model.

    Source: llama.cpp, llama-model.cpp, where 62 layers mean 27B and a scale of (hidden / heads)^-0.5.
    """
    if config["num_hidden_layers"] == 62:
        return config["hidden_size"] // config["num_attention_heads"]
    return config["head_dim"]


def _rope_scaling(architecture: str, metadata: Mapping[str, Any], file: GgufFile) -> dict[str, Any] | None:
    """Return Hugging Face's rope_scaling, or None for plain rotary embedding."""
    if (factors := file.tensors.get(ROPE_FACTORS_TENSOR)) is not None:
        return {"rope_type": "factors", "factors": factors.to_float32().tolist()}
    kind = metadata.get(f"{architecture}.rope.scaling.type", "none")
    if kind == "none":
        return None
    scaling: dict[str, Any] = {"rope_type": kind}
    for key, name in [
        ("factor", "factor"),
        ("original_context_length", "original_max_position_embeddings"),
        ("attn_factor", "attention_factor"),
    ]:
        if (value := metadata.get(f"{architecture}.rope.scaling.{key}")) is not None:
            scaling[name] = value
    return scaling
