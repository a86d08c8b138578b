"""An IndexCopy in memory, for tests of what stands above it; passes the same contract suite as Redis.

Outlives a manager, not the process.
"""

from collections.abc import Collection
from collections.abc import Set as AbstractSet

from kvmanager.core.index_copy import CopiedWorker
from kvmanager.core.prefix_index import WorkerKey
from services.domain.ids import BlockHash, WorkerId


class MemoryIndexCopy:
    """See `IndexCopy`."""

    def __init__(self) -> None:
        self._workers: dict[WorkerId, CopiedWorker] = {}

    async def load(self) -> list[CopiedWorker]:
        return [CopiedWorker(copied.key, set(copied.blocks)) for copied in self._workers.values()]

    async def replace(self, key: WorkerKey, blocks: AbstractSet[BlockHash]) -> None:
        self._workers[key.worker] = CopiedWorker(key, set(blocks))

    async def change(
        self, key: WorkerKey, added: Collection[BlockHash], removed: Collection[BlockHash]
    ) -> bool:
        copied = self._workers.get(key.worker)
        if copied is None or copied.key != key:
            return False
        copied.blocks.difference_update(removed)
        copied.blocks.update(added)
        return True

    async def forget(self, worker: WorkerId) -> None:
        self._workers.pop(worker, None)
