"""A bad line between a worker and the manager, in virtual time."""

import random

import pytest

from kvmanager.messages import CacheChange, SnapshotPart
from services.domain.block_hash import hash_blocks
from services.domain.ids import BlockHash
from tests.fakes.index_copy_memory import MemoryIndexCopy
from tests.fakes.kv_fleet import W0, FakeLink, Fleet

BLOCKS = hash_blocks(range(16 * 200), salt=b"t")


@pytest.mark.failure("B155")
@pytest.mark.parametrize("seed", range(8))
async def test_after_loss_doubling_swaps_and_a_cut_the_index_equals_the_truth(seed: int) -> None:
    draw = random.Random(seed)
    copy = MemoryIndexCopy()
    fleet = Fleet(copy=copy)
    worker = FuzzedWorker(fleet, draw)
    worker.connect()
    for step in range(1_500):
        if step == 500:
            fleet.manager.disconnect(W0, worker.link, fleet.now)
        if step == 1_000:  # 10 s later.
            worker.connect()
        fleet.now += 0.02
        worker.work(connected=not 500 <= step < 1_000)
        if step % 25 == 0:
            fleet.manager.tick(fleet.now)
    worker.faulty = False
    for _ in range(150):
        fleet.now += 0.02
        worker.work(connected=True)
    assert fleet.manager.index.blocks_of(W0) == worker.truth
    assert (fleet.metric("quire_prefix_index_gaps_total") or 0) > 5
    assert fleet.manager.writer is not None
    assert await fleet.manager.writer.flush()
    assert [copied.blocks for copied in await copy.load()] == [worker.truth]


class FuzzedWorker:
    """Changes its cache for ever and tells of it over a bad line; answers when asked for a snapshot."""

    def __init__(self, fleet: Fleet, draw: random.Random) -> None:
        self.truth: set[BlockHash] = set()
        self.faulty = True
        self.link = FakeLink()
        self._fleet = fleet
        self._draw = draw
        self._seq = 0
        self._ring: list[CacheChange] = []
        self._held_back: CacheChange | None = None
        self._num_answered = 0

    def connect(self) -> None:
        self.link = self._fleet.connect()
        self._num_answered = 0
        for change in self._ring[-100:]:
            self._send(change)

    def work(self, *, connected: bool) -> None:
        stored = set(self._draw.sample(BLOCKS, 3))
        removed = (
            set(self._draw.sample(sorted(self.truth), min(len(self.truth), self._draw.randrange(4)))) - stored
        )
        self.truth = (self.truth - removed) | stored
        self._seq += 1
        change = CacheChange(seq=self._seq, stored=sorted(stored), removed=sorted(removed), tenant_pages={})
        self._ring.append(change)
        if connected:
            self._send(change)
            if self.link.num_asked > self._num_answered:
                self._num_answered = self.link.num_asked
                self._send_snapshot()

    def _send(self, change: CacheChange) -> None:
        """Drop 5 %, double 5 %, swap 5 % with their follower."""
        chance = self._draw.random() if self.faulty else 1.0
        if chance < 0.05:
            return
        if chance < 0.10 and self._held_back is None:
            self._held_back = change
            return
        for _ in range(2 if chance < 0.15 else 1):
            self._fleet.manager.on_change(W0, self.link, change, self._fleet.now)
        if self._held_back is not None:
            late, self._held_back = self._held_back, None
            self._fleet.manager.on_change(W0, self.link, late, self._fleet.now)

    def _send_snapshot(self) -> None:
        blocks = sorted(self.truth)
        for start in range(0, max(1, len(blocks)), 64):
            part = SnapshotPart(
                seq=self._seq,
                blocks=blocks[start : start + 64],
                first=start == 0,
                more=start + 64 < len(blocks),
            )
            self._fleet.manager.on_snapshot(W0, self.link, part, self._fleet.now)
