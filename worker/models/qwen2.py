"""Qwen2 and Qwen2.5: Llama's shape with biases on q, k and v alone.

Knows nothing of files or tensors.
"""

from collections.abc import Mapping
from typing import Any

from worker.models.config_reader import ConfigReader
from worker.models.decoder import DecoderConfig, decoder_forward, read_decoder, require_full_attention
from worker.plan.graph import Graph
from worker.plan.op import Slot


def read_config(config: Mapping[str, Any]) -> DecoderConfig:
    """Map Hugging Face's config.

    Raises:
        UnsupportedModel: It asks for something else than Qwen2's maths.
    """
    reader = ConfigReader(config)
    require_full_attention(reader)
    reader.require("attention_bias", True)
    return read_decoder(reader, has_qkv_bias=True)


def forward(g: Graph, config: DecoderConfig) -> Slot:
    """Emit the model; return the logits [O, vocab]."""
    return decoder_forward(g, config)
