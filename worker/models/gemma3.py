"""Gemma 3: local layers (a window, a rope of their own) between global ones, norms before and after.

Knows nothing of files or tensors. Of a model that also sees, this is the text part.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from worker.models.config_reader import ConfigReader
from worker.models.decoder import DecoderConfig, LayerConfig, decoder_forward, read_decoder
from worker.models.errors import UnsupportedModel
from worker.models.rope import plain_rope
from worker.plan.graph import Graph
from worker.plan.op import Slot

_DEFAULTS = {
    "vocab_size": 262_208,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "head_dim": 256,
    "max_position_embeddings": 131_072,
    "query_pre_attn_scalar": 256,
    "sliding_window": 4096,
    "sliding_window_pattern": 6,
    "tie_word_embeddings": True,
}
"""The family's own: published configs leave them out."""
_IMAGES = (
    "vision_config",
    "mm_tokens_per_image",
    "image_token_index",
    "boi_token_index",
    "eoi_token_index",
)
_LOCAL, _GLOBAL = "sliding_attention", "full_attention"


def read_config(config: Mapping[str, Any]) -> DecoderConfig:
    """Map Hugging Face's config.

    Raises:
        UnsupportedModel: It asks for something else than Gemma 3's maths.
    """
    reader = ConfigReader({**_DEFAULTS, **config})
    for key in _IMAGES:
        reader.value(key)
    reader.require("use_bidirectional_attention", False)
    reader.require("hidden_activation", "gelu_pytorch_tanh")
    caps = {key: _cap(reader, key) for key in ("attn_logit_softcapping", "final_logit_softcapping")}
    layers = _layers(reader)
    local_theta = reader.number("rope_local_base_freq", 10_000.0)
    scalar = reader.number("query_pre_attn_scalar")
    has_bias = reader.flag("attention_bias")
    decoder = read_decoder(
        reader,
        has_qkv_bias=has_bias,
        has_output_bias=has_bias,
        has_qk_norm=True,
        activation="gelu_pytorch_tanh",
        default_theta=1_000_000.0,
    )
    return replace(
        decoder,
        layers=layers,
        ropes=(*decoder.ropes, plain_rope(local_theta, decoder.head_dim)),
        has_post_norms=True,
        attention_scale=scalar**-0.5,
        attention_soft_cap=caps["attn_logit_softcapping"],
        # A number of the weights' type there, of float32 here.
        embedding_scale=float(np.float32(decoder.hidden_size**0.5)),
        logit_soft_cap=caps["final_logit_softcapping"],
    )


def _layers(reader: ConfigReader) -> tuple[LayerConfig, ...]:
    """Read which layers are local: `layer_types`, else all but every n-th."""
    num_layers, window = reader.integer("num_hidden_layers"), reader.integer("sliding_window")
    pattern = reader.integer("sliding_window_pattern")
    reader.value("_sliding_window_pattern")  # written beside layer_types, which says more
    kinds = reader.value(
        "layer_types", [_LOCAL if (layer + 1) % pattern else _GLOBAL for layer in range(num_layers)]
    )
    if not isinstance(kinds, list) or len(kinds) != num_layers or not set(kinds) <= {_LOCAL, _GLOBAL}:
        raise UnsupportedModel(
            f"config needs layer_types as {num_layers} of {_LOCAL!r} and {_GLOBAL!r}, got {kinds!r}"
        )
    return tuple(LayerConfig(window, rope=1) if kind == _LOCAL else LayerConfig() for kind in kinds)


def _cap(reader: ConfigReader, key: str) -> float:
    return 0.0 if reader.value(key) is None else reader.number(key)


def forward(g: Graph, config: DecoderConfig) -> Slot:
    """Emit the model; return the logits [O, vocab]."""
    return decoder_forward(g, config)
