"""Native executors of tiny models and of single operations, with caches of their own.

Libraries are compiled into the real cache, once for all tests; packed weights go where the test says.
"""

from collections.abc import Callable, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from services.artifacts.artifact import open_artifact
from worker.executors.native.build import build
from worker.executors.native.instruction_sets import this_cpu
from worker.executors.native_executor import NativeExecutor, NativeOptions
from worker.executors.weights.loader import open_model
from worker.executors.weights.quantized import QuantizedMatrix
from worker.models.registry import BuiltModel
from worker.plan.graph import Graph
from worker.plan.op import RopeTable, Slot

Float32 = NDArray[np.float32]

INSTRUCTION_SETS = [entry.name for entry in this_cpu().supported()]
"""All that this machine can run, best first."""


class Arrays:
    """A `WeightSource` of arrays by name."""

    def __init__(self, arrays: Mapping[str, Float32 | QuantizedMatrix]) -> None:
        self._arrays = arrays

    def read(self, parameter: str) -> Float32:
        found = self._arrays[parameter]
        return found.to_float32() if isinstance(found, QuantizedMatrix) else found

    def read_quantized(self, parameter: str) -> QuantizedMatrix | None:
        found = self._arrays[parameter]
        return found if isinstance(found, QuantizedMatrix) else None


def load_native(path: Path, cache: Path, **options: Any) -> NativeExecutor:
    """Load a model as `load_native_executor` does, its packed weights in `cache`."""
    artifact = open_artifact(path)
    model, weights = open_model(artifact)
    chosen = NativeOptions(**{"num_threads": 1, **options})
    return NativeExecutor(
        model,
        weights,
        build(chosen.instruction_set),
        name="tiny",
        revision=artifact.revision,
        options=chosen,
        environment={"QUIRE_CACHE": str(cache)},
    )


def plan_executor(
    forward: Callable[[Graph], Slot],
    arrays: Mapping[str, Float32 | QuantizedMatrix],
    cache: Path,
    *,
    num_heads: int = 1,
    num_kv_heads: int = 1,
    head_dim: int = 16,
    rope: RopeTable | None = None,
    **options: Any,
) -> NativeExecutor:
    """Return an executor of any plan; its output's width stands for the vocabulary."""
    ropes = (RopeTable((1.0,) * (head_dim // 2)) if rope is None else rope,)
    graph = Graph(num_heads=num_heads, num_kv_heads=num_kv_heads, head_dim=head_dim, ropes=ropes)
    output = forward(graph)
    config = SimpleNamespace(vocab_size=output.width, max_positions=4096)
    model = BuiltModel("test", config, graph.finish(output))  # type: ignore[arg-type]
    chosen = NativeOptions(**{"num_threads": 1, **options})
    return NativeExecutor(
        model,
        Arrays(arrays),  # type: ignore[arg-type]
        build(chosen.instruction_set),
        name="test",
        revision="0" * 16,
        options=chosen,
        environment={"QUIRE_CACHE": str(cache)},
    )
