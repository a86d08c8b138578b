"""The interface of a copy of the prefix index that outlives this process.

Pure. Does not know when it is written or read; that is the manager's and its writer's.
"""

from collections.abc import Collection
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from typing import Protocol

from kvmanager.core.prefix_index import WorkerKey
from services.domain.ids import BlockHash, WorkerId


@dataclass(frozen=True, slots=True)
class CopiedWorker:
    """What the copy knows of one worker."""

    key: WorkerKey
    blocks: set[BlockHash]


class IndexCopy(Protocol):
    """One boot of each worker at a time.

    Every method raises DependencyDown where the store does not answer.
    """

    async def load(self) -> list[CopiedWorker]:
        """Return everything the copy knows."""

    async def replace(self, key: WorkerKey, blocks: AbstractSet[BlockHash]) -> None:
        """Make `blocks` all that is known of the worker, and forget its other boots."""

    async def change(
        self, key: WorkerKey, added: Collection[BlockHash], removed: Collection[BlockHash]
    ) -> bool:
        """Apply a difference, also an empty one, and renew the worker's time to live.

        Returns:
            False when the copy does not know this boot (any more): replace it.
        """

    async def forget(self, worker: WorkerId) -> None:
        """Drop a worker; nothing for one that is not known."""
