"""What every worker's cache holds, as sets of block hashes, and the longest prefix of a prompt in each.

Pure. Does not know where its knowledge comes from (events, snapshots, a copy) nor how fresh it is.
"""

from collections.abc import Iterable, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field

from services.domain.ids import BlockHash, Epoch, Namespace, WorkerId


@dataclass(frozen=True, slots=True)
class WorkerKey:
    """One boot of one worker and what its KV may be exchanged with."""

    worker: WorkerId
    epoch: Epoch
    namespace: Namespace


@dataclass(frozen=True, slots=True)
class PrefixMatch:
    """How many leading blocks of a prompt one worker holds."""

    worker: WorkerId
    epoch: Epoch
    num_blocks: int


@dataclass(slots=True)
class _Held:
    key: WorkerKey
    blocks: set[BlockHash] = field(default_factory=set)


class PrefixIndex:
    """Blocks by worker. One boot of a worker at a time: a worker that is put again begins empty."""

    def __init__(self) -> None:
        self._held: dict[WorkerId, _Held] = {}
        self.version = 0
        """Grows with every change."""

    def put_worker(self, key: WorkerKey) -> None:
        """Begin with nothing known of `key`; what was known of another boot of the worker is forgotten."""
        self._held[key.worker] = _Held(key)
        self.version += 1

    def drop_worker(self, worker: WorkerId) -> set[BlockHash]:
        """Forget a worker and return what it held; nothing for one that is not known."""
        held = self._held.pop(worker, None)
        if held is None:
            return set()
        self.version += 1
        return held.blocks

    def add(self, worker: WorkerId, blocks: Iterable[BlockHash]) -> None:
        """Note that a known worker holds `blocks`; those it held already change nothing."""
        self._held[worker].blocks.update(blocks)
        self.version += 1

    def remove(self, worker: WorkerId, blocks: Iterable[BlockHash]) -> None:
        """Note that a known worker no longer holds `blocks`; those it did not hold change nothing."""
        self._held[worker].blocks.difference_update(blocks)
        self.version += 1

    def replace(self, worker: WorkerId, blocks: set[BlockHash]) -> set[BlockHash]:
        """Make `blocks` all that a known worker holds; return what it held before."""
        held = self._held[worker]
        before, held.blocks = held.blocks, blocks
        self.version += 1
        return before

    def workers(self) -> list[WorkerKey]:
        return [held.key for held in self._held.values()]

    def key_of(self, worker: WorkerId) -> WorkerKey | None:
        held = self._held.get(worker)
        return None if held is None else held.key

    def blocks_of(self, worker: WorkerId) -> AbstractSet[BlockHash]:
        """Return what a worker holds, live: copy it to keep it. Empty for one that is not known."""
        held = self._held.get(worker)
        return frozenset() if held is None else held.blocks

    def is_held(self, block: BlockHash, namespace: Namespace | None = None) -> bool:
        """Whether any worker (of the namespace) holds the block."""
        return any(
            block in held.blocks
            for held in self._held.values()
            if namespace is None or held.key.namespace == namespace
        )

    def longest_prefixes(
        self, hashes: Sequence[BlockHash], namespace: Namespace | None = None
    ) -> list[PrefixMatch]:
        """Return the longest cached prefix of `hashes` for every worker that holds its first block.

        A hole ends the match: of blocks a, b, c a worker with a and c matches one.

        Args:
            namespace: None asks workers of all namespaces.
        """
        matches = []
        for worker, held in self._held.items():
            if namespace is not None and held.key.namespace != namespace:
                continue
            num_blocks = prefix_length(held.blocks, hashes)
            if num_blocks:
                matches.append(PrefixMatch(worker, held.key.epoch, num_blocks))
        return matches


def prefix_length(blocks: AbstractSet[BlockHash], hashes: Sequence[BlockHash]) -> int:
    """Return how many leading items of `hashes` are in `blocks`."""
    for index, block in enumerate(hashes):
        if block not in blocks:
            return index
    return len(hashes)
