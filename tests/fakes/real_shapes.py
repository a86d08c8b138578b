"""Shapes of published models, one layer of each kind: enough for every launch that the model makes.

Knows configs as their authors wrote them; knows nothing of weights or of kernels.
"""

from typing import Any


def _shape(
    family: str,
    hidden: int,
    ffn: int,
    heads: int,
    kv_heads: int,
    vocab: int,
    head_dim: int | None = None,
    **more: Any,
) -> dict[str, Any]:
    return {
        "model_type": family,
        "hidden_size": hidden,
        "intermediate_size": ffn,
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
        "vocab_size": vocab,
        "head_dim": head_dim or hidden // heads,
        "num_hidden_layers": 1,
        "max_position_embeddings": 64,
        **more,
    }


_GEMMA3: dict[str, Any] = {
    "num_hidden_layers": 2,
    "layer_types": ["sliding_attention", "full_attention"],
    "sliding_window": 512,
    "hidden_activation": "gelu_pytorch_tanh",
}
_NO_WINDOW: dict[str, Any] = {"sliding_window": None}
_WINDOW = {"sliding_window": 4096}

REAL_SHAPES = {
    "Llama 3.2 1B": _shape("llama", 2048, 8192, 32, 8, 128_256),
    "Llama 3.2 3B": _shape("llama", 3072, 8192, 24, 8, 128_256),
    "Llama 3 8B": _shape("llama", 4096, 14_336, 32, 8, 128_256),
    "Llama 3 70B": _shape("llama", 8192, 28_672, 64, 8, 128_256),
    "Llama 3.1 405B": _shape("llama", 16_384, 53_248, 128, 8, 128_256),
    "Llama 2 13B": _shape("llama", 5120, 13_824, 40, 40, 32_000),
    "SmolLM2 135M": _shape("llama", 576, 1536, 9, 3, 49_152),
    "SmolLM2 1.7B": _shape("llama", 2048, 8192, 32, 32, 49_152),
    "Mistral 7B v0.1": _shape("mistral", 4096, 14_336, 32, 8, 32_000, **_WINDOW),
    "Mistral Small 24B": _shape("mistral", 5120, 32_768, 32, 8, 131_072, 128, **_NO_WINDOW),
    "Danube 1.8B": _shape("mistral", 2560, 6912, 32, 8, 32_000, **_WINDOW),
    "Qwen 2.5 0.5B": _shape("qwen2", 896, 4864, 14, 2, 151_936),
    "Qwen 2.5 7B": _shape("qwen2", 3584, 18_944, 28, 4, 152_064),
    "Qwen 2.5 72B": _shape("qwen2", 8192, 29_568, 64, 8, 152_064),
    "Qwen 3 0.6B": _shape("qwen3", 1024, 3072, 16, 8, 151_936, 128),
    "Qwen 3 8B": _shape("qwen3", 4096, 12_288, 32, 8, 151_936, 128),
    "Qwen 3 32B": _shape("qwen3", 5120, 25_600, 64, 8, 151_936, 128),
    "Gemma 3 270M": _shape("gemma3_text", 640, 2048, 4, 1, 262_144, 256, **_GEMMA3),
    "Gemma 3 12B": _shape("gemma3_text", 3840, 15_360, 16, 8, 262_208, 256, **_GEMMA3),
    "Gemma 3 27B": _shape("gemma3_text", 5376, 21_504, 32, 16, 262_208, 128, **_GEMMA3),
    "Gemma 3 12B with caps": _shape(
        *("gemma3_text", 3840, 15_360, 16, 8, 262_208, 256),
        **_GEMMA3,
        attn_logit_softcapping=50.0,
        final_logit_softcapping=30.0,
    ),
    "Gemma 3 27B with caps": _shape(
        "gemma3_text", 5376, 21_504, 32, 16, 262_208, 128, **_GEMMA3, attn_logit_softcapping=50.0
    ),
}
"""By name. Caps are Gemma 2's, which a config of Gemma 3 may ask for."""
