"""Ranks that compute one model together, as one executor: rank 0's own share and the processes of the others.

Each step goes to all ranks, each computes its share of it over its own heads' pages, which have the same
numbers everywhere, and rank 0 draws. Knows nothing of requests, or of what is exchanged inside a step.
"""

import contextlib
import hashlib
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from services.artifacts.artifact import ModelArtifact
from services.domain.ids import Namespace
from worker.engine.batch import Batch, StepResult
from worker.executors.base import ExecutorFault, ModelProfile, OverlappingExecutor, nothing
from worker.executors.ranks.local import OverlappingRank, RankExecutor, load_rank
from worker.executors.ranks.messages import Kind, RankProfile, RankSpec, pack_batch
from worker.executors.ranks.processes import RankLost, RankProcesses


class GroupExecutor:
    """`worker.executors.base.Executor` over several ranks, this process being rank 0."""

    def __init__(
        self,
        local: RankExecutor,
        others: RankProcesses,
        profile: ModelProfile,
        folder: "tempfile.TemporaryDirectory[str]",
        *,
        is_on_gpus: bool,
    ) -> None:
        """Args:
        local: Rank 0's share; the ranks have met.
        others: The processes of ranks 1 and up.
        profile: Of the whole model.
        folder: Where the ranks met; it goes when they do.
        is_on_gpus: Whether an exchange with a rank that is gone goes on waiting.
        """
        self._is_on_gpus = is_on_gpus
        self._local = local
        self._others = others
        self._profile = profile
        self._folder = folder

    @property
    def profile(self) -> ModelProfile:
        """What is loaded in all ranks, and what it costs."""
        return self._profile

    def watch(self, on_lost: Callable[[ExecutorFault], None]) -> None:
        """Call `on_lost`, from another thread, when a rank ends; idle workers would not notice."""

        def lose(fault: ExecutorFault) -> None:
            on_lost(fault)
            if self._is_on_gpus:
                self._local.leave()

        self._others.watch(lose)

    def allocate(self, num_pages: int, *, captures: bool = True) -> None:
        """Allocate the KV memory of every rank, once, before the first step (see `Executor.allocate`).

        Raises:
            ExecutorFault: This rank or another does not have that much memory, or is gone.
        """
        with self._blaming():
            self._others.allocate(num_pages, captures, self._local)

    def execute(self, batch: Batch, meanwhile: Callable[[], None] = nothing) -> StepResult:
        """Run one step in every rank and draw (see `Executor.execute`).

        Raises:
            ExecutorFault: It failed here, or a rank is gone, or did not do its part in time.
        """
        self._others.tell(Kind.STEP, pack_batch(batch))
        with self._blaming():
            return self._local.execute(batch, meanwhile)

    def close(self) -> None:
        """Release the KV memory of every rank; the ranks live on, until `end` or the end of this process."""
        with contextlib.suppress(RankLost):
            self._others.tell(Kind.RELEASE)
        self._local.close()

    def end(self) -> None:
        """End all ranks and wait for it."""
        self._others.close()
        self._local.leave()
        self._folder.cleanup()

    @contextlib.contextmanager
    def _blaming(self) -> Iterator[None]:
        """Say which rank it was, where one that ended has failed this one's step."""
        try:
            yield
        except ExecutorFault as fault:
            raise self._others.blame(fault) from fault


class OverlappingGroup(GroupExecutor):
    """One whose ranks have the next step queued while one runs; what rank 0 drew they get inside of it."""

    _local: OverlappingRank

    def launch(self, batch: Batch) -> Any:
        """Queue a step in every rank (see `OverlappingExecutor.launch`).

        Raises:
            ExecutorFault: As `execute`.
        """
        self._others.tell(Kind.STEP, pack_batch(batch))
        with self._blaming():
            return self._local.launch(batch)

    def collect(self, launched: Any) -> StepResult:
        """Wait for the oldest step under way (see `OverlappingExecutor.collect`).

        Raises:
            ExecutorFault: As `execute`.
        """
        with self._blaming():
            return self._local.collect(launched)


def load_group(artifact: ModelArtifact, spec: RankSpec) -> GroupExecutor:
    """Start the other ranks, load all shares at the same time, and let the ranks meet.

    Args:
        artifact: The model at `spec.path`.
        spec: Rank 0's; the others' differ in their rank. Its `store` is chosen here.

    Raises:
        ArtifactError: The model cannot be read.
        CannotShard: It does not divide over so many ranks.
        FatalError: A rank failed or ended.
        ExecutorFault: The ranks did not meet.
    """
    folder = tempfile.TemporaryDirectory(prefix="quire-ranks-")
    store = Path(folder.name) / "store"
    own = replace(spec, store=str(store))
    others = RankProcesses([replace(own, rank=rank) for rank in range(1, spec.size)])
    try:
        local = load_rank(own, artifact)
        profiles = others.wait_loaded()
        others.tell(Kind.JOIN)
        local.join(store)
    except BaseException:
        others.close()
        folder.cleanup()
        raise
    is_on_gpus = spec.device != "cpu"
    profile = _profile_of(local.profile, profiles, is_on_gpus=is_on_gpus)
    made = OverlappingGroup if isinstance(local, OverlappingExecutor) else GroupExecutor
    return made(local, others, profile, folder, is_on_gpus=is_on_gpus)


def _profile_of(own: ModelProfile, others: Sequence[RankProfile], *, is_on_gpus: bool) -> ModelProfile:
    """Return the group's profile: its bits are those of all ranks, in their order and number."""
    size = len(others) + 1
    # Ranks on one host share its memory; each GPU has its own.
    page_bytes = own.page_bytes * (1 if is_on_gpus else size)
    return replace(
        own,
        namespace=Namespace(_digest(own.namespace, *(rank.namespace for rank in others))),
        numerics=_digest(own.numerics, *(rank.numerics for rank in others)),
        page_bytes=page_bytes,
        weight_bytes=own.weight_bytes + sum(rank.weight_bytes for rank in others),
    )


def _digest(*ranks: str) -> str:
    """Return a digest of what all ranks have, which names how many there are."""
    text = "\0".join(("ranks", str(len(ranks)), *ranks))
    return hashlib.sha256(text.encode()).hexdigest()[:32]
