"""Who is computing which block right now, so that the same prefix is not computed twice at once.

A sequence that would compute a block which a started one (its leader) is about to publish waits for it:
until the block is published, the leader ends or is preempted, or makes no progress for a bounded time.
Knows nothing of pages or seats.
"""

from services.domain.ids import BlockHash
from worker.engine.sequence import Sequence


class PrefixLeaders:
    """Blocks under computation, each with the sequence that computes it."""

    def __init__(self, max_wait_steps: int) -> None:
        self._max_wait_steps = max_wait_steps
        self._leaders: dict[BlockHash, Sequence] = {}

    def __len__(self) -> int:
        return len(self._leaders)

    def lead(self, sequence: Sequence, hashes: list[BlockHash]) -> None:
        """Let others wait for those of `hashes` that nobody computes yet."""
        for block_hash in hashes:
            if self._leaders.setdefault(block_hash, sequence) is sequence:
                sequence.leading.append(block_hash)

    def resign(self, sequence: Sequence) -> None:
        """Let nobody wait for the sequence: its prefill is done, or it computes no more."""
        for block_hash in sequence.leading:
            del self._leaders[block_hash]
        sequence.leading.clear()

    def should_wait(self, sequence: Sequence, next_block: BlockHash, step: int) -> bool:
        """Say whether to wait for another sequence to compute `next_block`; give up after a bounded time."""
        leader = self._leaders.get(next_block)
        if leader is None or leader is sequence or not sequence.may_wait_for_prefix:
            return False
        seen = sequence.prefix_watch
        moved = seen is None or seen[0] != id(leader) or seen[1] != leader.num_computed
        if moved:
            sequence.prefix_watch = (id(leader), leader.num_computed, step)
            return True
        assert seen is not None
        if step - seen[2] <= self._max_wait_steps:
            return True
        sequence.may_wait_for_prefix = False
        return False
