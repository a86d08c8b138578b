"""Mistral (7B and models in its shape): Llama's shape, every layer looking back a window where one is given.

Knows nothing of files or tensors.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from worker.models.config_reader import ConfigReader
from worker.models.decoder import DecoderConfig, LayerConfig, decoder_forward, read_decoder
from worker.plan.graph import Graph
from worker.plan.op import Slot

DEFAULT_WINDOW = 4096
"""The family's own, of a config that does not say; one that says null has none."""


def read_config(config: Mapping[str, Any]) -> DecoderConfig:
    """Map Hugging Face's config.

    Raises:
        UnsupportedModel: It asks for something else than Mistral's maths.
    """
    reader = ConfigReader({"sliding_window": DEFAULT_WINDOW, **config})
    has_window = reader.value("sliding_window") is not None
    window = reader.integer("sliding_window") if has_window else 0
    decoder = read_decoder(reader)
    return replace(decoder, layers=(LayerConfig(window),) * len(decoder.layers))


def forward(g: Graph, config: DecoderConfig) -> Slot:
    """Emit the model; return the logits [O, vocab]."""
    return decoder_forward(g, config)
