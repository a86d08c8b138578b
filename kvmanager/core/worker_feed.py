"""Numbered changes of one worker's cache: what to apply, what to ignore, when to ask for everything.

Pure. Knows sequence numbers and the parts of a snapshot; does not know where blocks are kept. Any mixture of
lost, doubled and swapped events ends, after a snapshot, in what the worker holds.
"""

from collections.abc import Iterable
from enum import Enum

from services.domain.ids import BlockHash

SNAPSHOT_ASK_PERIOD_S = 1.0
"""Least seconds between two requests for a snapshot."""


class Step(Enum):
    """What to do with one message of events."""

    APPLY = "apply"
    IGNORE = "ignore"
    """Seen before: applied already, or contained in a snapshot."""
    GAP = "gap"
    """Apply it, for it is true by itself; but something before it is missing."""


class WorkerFeed:
    """Where one worker's numbered stream of changes stands."""

    def __init__(self) -> None:
        self.seq = 0
        """The last number seen."""
        self.in_sync = False
        """Nothing is missing up to `seq`."""
        self._asked_at: float | None = None
        self._parts: set[BlockHash] | None = None
        self._parts_seq = 0

    def offer_events(self, seq: int) -> Step:
        """Say what to do with the events of that number."""
        if seq <= self.seq:
            return Step.IGNORE
        follows = seq == self.seq + 1
        self.seq = seq
        if self.in_sync and not follows:
            self.in_sync = False
            return Step.GAP
        return Step.APPLY

    def offer_snapshot(
        self, seq: int, blocks: Iterable[BlockHash], *, first: bool, more: bool
    ) -> set[BlockHash] | None:
        """Take one part; return everything once the last part is in, None before.

        A part that does not continue the snapshot begun last is dropped with it.
        """
        if first:
            self._parts, self._parts_seq = set(), seq
        elif self._parts is None or seq != self._parts_seq:
            self._parts = None
            return None
        assert self._parts is not None
        self._parts.update(blocks)
        if more:
            return None
        whole, self._parts = self._parts, None
        if seq < self.seq and self.in_sync:
            return None
        self.seq, self.in_sync, self._asked_at = seq, True, None
        return whole

    def lost(self) -> None:
        """Something came that could not be read: what is known may be wrong from here on."""
        self.in_sync = False

    def should_ask(self, now: float) -> bool:
        """Whether to ask for a snapshot now; a yes counts as having asked."""
        if self.in_sync or (self._asked_at is not None and now - self._asked_at < SNAPSHOT_ASK_PERIOD_S):
            return False
        self._asked_at = now
        return True

    def reconnected(self, now: float) -> None:
        """A new stream of the same boot: half a snapshot is void, and the worker may speak up by itself."""
        self._parts = None
        self._asked_at = now
