"""Qwen3 (dense): Llama's shape with a norm on every q and k head, and heads wider than hidden / heads.

Knows nothing of files or tensors.
"""

from collections.abc import Mapping
from typing import Any

from worker.models.config_reader import ConfigReader
from worker.models.decoder import DecoderConfig, decoder_forward, read_decoder, require_full_attention
from worker.models.errors import UnsupportedModel
from worker.plan.graph import Graph
from worker.plan.op import Slot


def read_config(config: Mapping[str, Any]) -> DecoderConfig:
    """Map Hugging Face's config.

    Raises:
        UnsupportedModel: It asks for something else than Qwen3's maths.
    """
    reader = ConfigReader(config)
    require_full_attention(reader)
    # The family's own default is 128, never hidden / heads: a silent guess would load and talk nonsense.
    if reader.value("head_dim") is None:
        raise UnsupportedModel("config needs head_dim")
    has_bias = reader.flag("attention_bias")
    return read_decoder(reader, has_qkv_bias=has_bias, has_output_bias=has_bias, has_qk_norm=True)


def forward(g: Graph, config: DecoderConfig) -> Slot:
    """Emit the model; return the logits [O, vocab]."""
    return decoder_forward(g, config)
