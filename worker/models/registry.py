"""Finds the family of a config and builds its plan.

Knows which families exist; knows nothing of files or tensors.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from worker.models import gemma3, llama, mistral, qwen2, qwen3
from worker.models.decoder import DecoderConfig
from worker.models.errors import UnsupportedModel
from worker.plan.graph import Graph
from worker.plan.op import Plan, Slot


@dataclass(frozen=True, slots=True)
class Family:
    """One model family: how its config reads and what it computes."""

    name: str
    read_config: Callable[[Mapping[str, Any]], DecoderConfig]
    forward: Callable[[Graph, DecoderConfig], Slot]


_GEMMA3 = Family("gemma3", gemma3.read_config, gemma3.forward)
FAMILIES = {
    "gemma3": _GEMMA3,
    "gemma3_text": _GEMMA3,
    "llama": Family("llama", llama.read_config, llama.forward),
    "mistral": Family("mistral", mistral.read_config, mistral.forward),
    "qwen2": Family("qwen2", qwen2.read_config, qwen2.forward),
    "qwen3": Family("qwen3", qwen3.read_config, qwen3.forward),
}
"""By `model_type` of config.json, which is also GGUF's `general.architecture`."""


@dataclass(frozen=True, slots=True)
class BuiltModel:
    """A model as data: family, what it is, and what one step computes."""

    family: str
    config: DecoderConfig
    plan: Plan


def build_model(config: Mapping[str, Any]) -> BuiltModel:
    """Run the family's forward once and return its plan.

    Raises:
        UnsupportedModel: Unknown family, or a config that its family cannot compute.
    """
    name = config.get("model_type")
    family = FAMILIES.get(name) if isinstance(name, str) else None
    if family is None:
        raise UnsupportedModel(f"model_type {name!r} is not served; supported: {', '.join(sorted(FAMILIES))}")
    decoder = family.read_config(config)
    graph = Graph(
        num_heads=decoder.num_heads,
        num_kv_heads=decoder.num_kv_heads,
        head_dim=decoder.head_dim,
        ropes=decoder.ropes,
    )
    return BuiltModel(family.name, decoder, graph.finish(family.forward(graph, decoder)))
