"""Who is computing which page right now, so that the same prefix is not computed twice at once.

A sequence that would compute a page which a started one (its leader) is about to publish waits for it:
until the page is published, the leader ends or is preempted, or makes no progress for a bounded time.
Knows pages by name (the hash of the last block) and nothing of places or seats.
"""

from services.domain.ids import BlockHash
from worker.engine.sequence import Sequence


class PrefixLeaders:
    """Names of pages under computation, each with the sequence that computes it."""

    def __init__(self, max_wait_steps: int) -> None:
        self._max_wait_steps = max_wait_steps
        self._leaders: dict[BlockHash, Sequence] = {}

    def __len__(self) -> int:
        return len(self._leaders)

    def lead(self, sequence: Sequence, names: list[BlockHash]) -> None:
        """Let others wait for those pages that nobody computes yet."""
        for name in names:
            if self._leaders.setdefault(name, sequence) is sequence:
                sequence.leading.append(name)

    def resign(self, sequence: Sequence) -> None:
        """Let nobody wait for the sequence: its prefill is done, or it computes no more."""
        for name in sequence.leading:
            del self._leaders[name]
        sequence.leading.clear()

    def should_wait(self, sequence: Sequence, next_page: BlockHash, step: int) -> bool:
        """Say whether to wait for another sequence to compute `next_page`; give up after a bounded time."""
        leader = self._leaders.get(next_page)
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
