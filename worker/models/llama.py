"""Llama (1 to 3, and models in its shape such as SmolLM2): config mapping and forward.

Knows nothing of files or tensors.
"""

from collections.abc import Mapping
from typing import Any

from worker.models.config_reader import ConfigReader
from worker.models.decoder import DecoderConfig, decoder_forward, read_decoder
from worker.plan.graph import Graph
from worker.plan.op import Slot


def read_config(config: Mapping[str, Any]) -> DecoderConfig:
    """Map Hugging Face's config.

    Raises:
        UnsupportedModel: It asks for something else than Llama's maths.
    """
    reader = ConfigReader(config)
    # pretraining_tp splits matrices for training and changes nothing but rounding.
    reader.value("pretraining_tp")
    has_bias = reader.flag("attention_bias")
    return read_decoder(
        reader, has_qkv_bias=has_bias, has_output_bias=has_bias, has_mlp_bias=reader.flag("mlp_bias")
    )


def forward(g: Graph, config: DecoderConfig) -> Slot:
    """Emit the model; return the logits [O, vocab]."""
    return decoder_forward(g, config)
