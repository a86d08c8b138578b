"""Blocks of prompts that are being computed: asked for and placed, and in no cache that is known yet.

Knows hashes by request; bounded by the live requests and those that ended in the last second. Only for the
honest reason of a miss: nothing is placed by it.
"""

from collections import Counter, deque
from collections.abc import Sequence

from services.domain.ids import BlockHash, RequestId

LINGER_S = 1.0
"""Seconds after a request's end in which the index may not have heard of its blocks."""


class InFlight:
    """Who computes what."""

    def __init__(self) -> None:
        self._of: dict[RequestId, Sequence[BlockHash]] = {}
        self._ended: deque[tuple[float, Sequence[BlockHash]]] = deque()
        self._num: Counter[BlockHash] = Counter()

    def __len__(self) -> int:
        return len(self._num)

    def begin(self, request: RequestId, blocks: Sequence[BlockHash]) -> None:
        """A request was placed that will compute `blocks`."""
        self.forget(request)
        self._of[request] = blocks
        self._num.update(blocks)

    def end(self, request: RequestId, now: float) -> None:
        """It has ended."""
        blocks = self._of.pop(request, ())
        if blocks:
            self._ended.append((now + LINGER_S, blocks))

    def forget(self, request: RequestId) -> None:
        """It will not compute anything, or what it has computed is lost."""
        self._drop(self._of.pop(request, ()))

    def has(self, block: BlockHash, now: float) -> bool:
        """Say whether somebody computes the block, or has just done so."""
        while self._ended and self._ended[0][0] <= now:
            self._drop(self._ended.popleft()[1])
        return block in self._num

    def _drop(self, blocks: Sequence[BlockHash]) -> None:
        for block in blocks:
            self._num[block] -= 1
            if not self._num[block]:
                del self._num[block]
