"""Tiny random models: made by transformers, saved as a folder or as GGUF, with the reference's logits."""

import json
from collections.abc import Mapping
from copy import deepcopy
from pathlib import Path
from types import MappingProxyType
from typing import Any

import gguf
import numpy as np
import torch
from gguf.quants import dequantize, quantize
from numpy.typing import NDArray
from transformers import (
    Gemma3ForCausalLM,
    Gemma3TextConfig,
    LlamaConfig,
    LlamaForCausalLM,
    MistralConfig,
    MistralForCausalLM,
    PreTrainedModel,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
)

from tests.unit.executors.k_quants import K_FORMATS, random_blocks

Float32 = NDArray[np.float32]

VOCAB = 96
WINDOW = 24
_CLASSES = {
    "gemma3": (Gemma3TextConfig, Gemma3ForCausalLM),
    "llama": (LlamaConfig, LlamaForCausalLM),
    "mistral": (MistralConfig, MistralForCausalLM),
    "qwen2": (Qwen2Config, Qwen2ForCausalLM),
    "qwen3": (Qwen3Config, Qwen3ForCausalLM),
}
_SIZES = {
    "vocab_size": VOCAB,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 512,
}
_OWN_SIZES: dict[str, dict[str, Any]] = {
    "gemma3": {
        "num_hidden_layers": 7,  # the sixth is a global one
        "head_dim": 16,
        "query_pre_attn_scalar": 16,
        "sliding_window": WINDOW,
    },
    "mistral": {"sliding_window": WINDOW},
}
_GGUF_ARCHITECTURES = {"gemma3_text": "gemma3", "mistral": "llama"}
_GEMMA3_GGUF_NAMES = {
    "post_attention_layernorm": "post_attention_norm",
    "pre_feedforward_layernorm": "ffn_norm",
    "post_feedforward_layernorm": "post_ffw_norm",
}
_GGUF_NAMES = {
    "model.embed_tokens": "token_embd",
    "model.norm": "output_norm",
    "lm_head": "output",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
}


def make_model(family: str, seed: int = 0, **overrides: Any) -> PreTrainedModel:
    """Return a random model whose every parameter matters: norms and biases are random too."""
    config_class, model_class = _CLASSES[family]
    torch.manual_seed(seed)
    model = model_class(config_class(**{**_SIZES, **_OWN_SIZES.get(family, {}), **overrides})).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() == 1:
                # Gemma's norms multiply by one more than their weight.
                parameter.copy_((family != "gemma3") + 0.3 * torch.randn_like(parameter))
            else:
                parameter.normal_(0, 0.15)
    model.tie_weights()
    return model


def save_folder(model: PreTrainedModel, folder: Path) -> Path:
    """Save as Hugging Face folder (float32 safetensors)."""
    model.save_pretrained(folder)
    return folder


def save_narrow_shards(model: PreTrainedModel, folder: Path, dtype: torch.dtype) -> Path:
    """Round a model's numbers to 16 bits and save it as several safetensors files of them."""
    deepcopy(model).to(dtype).save_pretrained(folder, max_shard_size="20KB")
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(parameter.to(dtype))
    index = json.loads((folder / "model.safetensors.index.json").read_text())
    assert len(set(index["weight_map"].values())) > 1
    return folder


def reference_logits(model: PreTrainedModel, ids: list[int], **changes: float) -> Float32:
    """Return transformers' logits [len(ids), vocab]; `changes` go to its attention."""
    with torch.no_grad():
        logits: Float32 = model(torch.tensor([ids]), **changes).logits[0].float().numpy()
    return logits


def save_gguf(
    model: PreTrainedModel, path: Path, kind: str, kinds: Mapping[str, str] = MappingProxyType({})
) -> Path:
    """Save as GGUF the way converters do; the model gets what its stored weights dequantise to.

    Args:
        model: Changed in place.
        path: The file to write.
        kind: ggml's name of the matrices' format. In a K format they are random ones, not the model's.
        kinds: Formats of single projections (`q_proj`) where they differ from `kind`.
    """
    config = model.config
    family = _GGUF_ARCHITECTURES.get(config.model_type, config.model_type)
    names = {**_GGUF_NAMES, **(_GEMMA3_GGUF_NAMES if family == "gemma3" else {})}
    writer = gguf.GGUFWriter(path, family)
    _add_config(writer, config)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            values = parameter.numpy()
            heads = {"q_proj": config.num_attention_heads, "k_proj": config.num_key_value_heads}
            part = name.rsplit(".", 2)[-2]
            permuted = family == "llama" and part in heads
            stored = _permute(values, heads[part]) if permuted else values
            if values.ndim == 2:
                ggml_type = gguf.GGMLQuantizationType[kinds.get(part, kind)]
                packed = (
                    random_blocks(stored.shape, ggml_type.name, seed=sum(name.encode()))
                    if ggml_type.name in K_FORMATS
                    else quantize(stored, ggml_type)
                )
                writer.add_tensor(_gguf_name(name, names), packed, raw_dtype=ggml_type)
                exact = dequantize(packed, ggml_type).reshape(stored.shape)
                parameter.copy_(torch.from_numpy(unpermute(exact, heads[part]) if permuted else exact))
            else:
                stored = stored + 1 if family == "gemma3" else stored
                writer.add_tensor(_gguf_name(name, names), np.ascontiguousarray(stored))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def _add_config(writer: gguf.GGUFWriter, config: Any) -> None:
    writer.add_block_count(config.num_hidden_layers)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    rope = config.rope_parameters
    writer.add_rope_freq_base(rope.get("full_attention", rope)["rope_theta"])
    if (window := getattr(config, "sliding_window", None)) is not None:
        writer.add_sliding_window(window)
    if (head_dim := getattr(config, "head_dim", None)) is not None:
        writer.add_key_length(head_dim)
        writer.add_value_length(head_dim)


def _gguf_name(name: str, names: Mapping[str, str]) -> str:
    stem, kind = name.rsplit(".", 1)
    if stem.startswith("model.layers."):
        layer, stem = stem.removeprefix("model.layers.").split(".", 1)
        return f"blk.{layer}.{names[stem]}.{kind}"
    return f"{names[stem]}.{kind}"


def _permute(values: Float32, heads: int) -> Float32:
    """Order rows as ggml's llama wants them: (first half, second half) of a head become pairs."""
    split = values.reshape(heads, 2, -1, *values.shape[1:])
    return np.ascontiguousarray(np.swapaxes(split, 1, 2)).reshape(values.shape)


def unpermute(values: Float32, heads: int) -> Float32:
    """Place row 2i of a head at i and row 2i + 1 at i + d/2, one by one."""
    result = np.empty_like(values)
    head_dim = len(values) // heads
    for row in range(len(values)):
        head, offset = divmod(row, head_dim)
        result[head * head_dim + offset // 2 + (offset % 2) * (head_dim // 2)] = values[row]
    return result
