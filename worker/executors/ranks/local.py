"""Loads one rank's share of a model into the executor that its spec names.

Knows which module computes what and imports it when it is asked for; knows nothing of other processes.
"""

from pathlib import Path
from typing import Protocol

from services.artifacts.artifact import ModelArtifact
from worker.executors.base import Executor
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


def load_rank(spec: RankSpec, source: ModelArtifact | Path) -> RankExecutor:
    """Load what `spec` says; `join` and `allocate` come next.

    Raises:
        ArtifactError: The model cannot be read, or a group or block of it would have to be cut.
        CannotShard: It does not divide over so many ranks.
        ModuleNotFoundError: The executor's own needs are not installed.
    """
    from worker.executors.torch_executor import load_torch_executor
    from worker.executors.torch_ranks import Ranks

    ranks = Ranks(spec.rank, spec.size, device=spec.device, limit_s=spec.limit_s)
    return load_torch_executor(
        source,
        model_name=spec.model_name,
        page_size=spec.page_size,
        num_threads=spec.num_threads,
        ranks=ranks,
    )
