"""Blocks of prompts that are being computed: asked for and placed, and in no cache that is known yet.

Knows hashes by request and worker; bounded by the live requests and those that ended in the last second. For
placing the same prompt where it is being computed, and for the honest reason of a miss.
"""

from bisect import bisect_left
from collections import Counter, deque
from collections.abc import Sequence

from services.domain.ids import BlockHash, RequestId, WorkerId

LINGER_S = 1.0
"""Seconds after a request's end in which the index may not have heard of its blocks."""


class InFlight:
    """Who computes what, and where."""

    def __init__(self) -> None:
        self._of: dict[RequestId, tuple[WorkerId, Sequence[BlockHash]]] = {}
        self._ended: deque[tuple[float, WorkerId, Sequence[BlockHash]]] = deque()
        self._on: dict[WorkerId, Counter[BlockHash]] = {}

    def __len__(self) -> int:
        return sum(map(len, self._on.values()))

    def begin(self, request: RequestId, worker: WorkerId, blocks: Sequence[BlockHash]) -> None:
        """A request was placed on a worker, which will compute `blocks`."""
        self.forget(request)
        self._of[request] = worker, blocks
        self._on.setdefault(worker, Counter()).update(blocks)

    def end(self, request: RequestId, now: float) -> None:
        """It has ended."""
        known = self._of.pop(request, None)
        if known is not None:
            self._ended.append((now + LINGER_S, *known))

    def forget(self, request: RequestId) -> None:
        """It will not compute anything, or what it has computed is lost."""
        known = self._of.pop(request, None)
        if known is not None:
            self._drop(*known)

    def lost(self, worker: WorkerId) -> None:
        """The worker is gone, and what those that ended there have computed."""
        for _, _, blocks in (one for one in self._ended if one[1] == worker):
            self._drop(worker, blocks)
        self._ended = deque(one for one in self._ended if one[1] != worker)

    def expire(self, now: float) -> None:
        """Drop what the index must have heard of by now."""
        while self._ended and self._ended[0][0] <= now:
            _, worker, blocks = self._ended.popleft()
            self._drop(worker, blocks)

    def has(self, block: BlockHash) -> bool:
        """Say whether somebody computes the block, or has just done so."""
        return any(block in there for there in self._on.values())

    def num_blocks(self, worker: WorkerId, blocks: Sequence[BlockHash], num_known: int) -> int:
        """Return how many leading blocks of a prompt a worker has or computes, of which it has `num_known`.

        A hash names all that is in front of its block too: whoever computes a block there has or computes
        all before it. So the last one is found by halves, in 13 steps for a prompt of 8,192 blocks.
        """
        there = self._on.get(worker)
        if there is None or num_known >= len(blocks) or blocks[num_known] not in there:
            return num_known
        return bisect_left(blocks, True, lo=num_known, key=lambda block: block not in there)

    def _drop(self, worker: WorkerId, blocks: Sequence[BlockHash]) -> None:
        there = self._on[worker]
        for block in blocks:
            there[block] -= 1
            if not there[block]:
                del there[block]
        if not there:
            del self._on[worker]
