"""Loads one rank's share of a model into the executor that its spec names.

Knows which module computes what and imports it when it is asked for; knows nothing of other processes.
"""

from pathlib import Path
from typing import Protocol

from services.artifacts.artifact import ModelArtifact, open_artifact
from services.domain.kv_layout import KvFormat
from worker.devices import Device
from worker.executors.base import Executor, OverlappingExecutor
from worker.executors.ranks.messages import RankSpec


class RankExecutor(Executor, Protocol):
    """An executor of one rank's share, whose steps exchange with the other ranks'."""

    def join(self, store: Path) -> None:
        """Meet the other ranks, once, before memory is allocated.

        Raises:
            ExecutorFault: They did not all come in time.
        """

    def leave(self) -> None:
        """Exchange nothing with them any more."""


class OverlappingRank(RankExecutor, OverlappingExecutor, Protocol):
    """One whose device runs a step while the next one is prepared."""


def load_rank(spec: RankSpec, source: ModelArtifact | Path) -> RankExecutor:
    """Load what `spec` says; `join` and `allocate` come next.

    Raises:
        ArtifactError: The model cannot be read, or a group or block of it would have to be cut.
        CannotShard: It does not divide over so many ranks.
        FatalError: A GPU is lacking, or its memory.
        ModuleNotFoundError: The executor's own needs are not installed.
    """
    return _load_torch(spec, source) if spec.executor == "torch" else _load_triton(spec, source)


def _load_torch(spec: RankSpec, source: ModelArtifact | Path) -> RankExecutor:
    from worker.executors.torch_executor import load_torch_executor
    from worker.executors.torch_ranks import Ranks

    return load_torch_executor(
        source,
        model_name=spec.model_name,
        page_size=spec.limits.page_size,
        num_threads=spec.num_threads,
        ranks=Ranks(spec.rank, spec.size, device="cpu", limit_s=spec.limit_s),
    )


def _load_triton(spec: RankSpec, source: ModelArtifact | Path) -> RankExecutor:
    from worker.executors.torch_ranks import Ranks
    from worker.executors.triton_device import Interpreter, device_of_rank, load_on

    device: Device = Interpreter() if spec.device == "cpu" else device_of_rank(spec.rank, spec.size)
    return load_on(
        device,
        source if isinstance(source, ModelArtifact) else open_artifact(source),
        model_name=spec.model_name,
        kv_format=KvFormat(spec.kv_format),
        int8_rows=spec.int8_rows,
        vendor_products=spec.vendor_products,
        limits=spec.limits,
        graph_sizes=spec.graph_sizes,
        ranks=Ranks(spec.rank, spec.size, device=device.name, limit_s=spec.limit_s),
    )
