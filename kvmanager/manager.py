"""The one owner of what is known about the fleet's KV: index, feeds of workers, slices, history.

Every method runs between two awaits and takes the time as `now`. Does not know gRPC; allocates no page. Where
the copy's store is down, everything here goes on from memory.
"""

from collections.abc import Mapping

import structlog

from kvmanager.copy_writer import CopyWriter
from kvmanager.core.eviction_policy import EvictionPolicy
from kvmanager.core.index_copy import CopiedWorker, IndexCopy
from kvmanager.core.miss_reason import HistoryBounds
from kvmanager.core.prefix_index import PrefixIndex, WorkerKey
from kvmanager.core.slices import GONE_HOLD_S, SliceBook
from kvmanager.core.worker_feed import Step, WorkerFeed
from kvmanager.known_worker import DROP_AFTER_S, KnownWorker
from kvmanager.lookup import Lookup
from kvmanager.messages import CacheChange, SnapshotPart, WorkerLink, WorkerStatus
from kvmanager.metrics import IndexMetrics
from services.domain.errors import StaleAttempt
from services.domain.ids import Epoch, TenantId, WorkerId
from services.domain.miss_reason import MissReason
from services.domain.slices import SlicesInForce

COPY_GRACE_S = 10.0
"""Seconds that a worker known from the copy only has to say hello."""
MAX_KNOWN_EPOCHS = 1_024

_log = structlog.get_logger()


class Manager:
    """State of the kvmanager."""

    def __init__(
        self,
        *,
        caps: Mapping[TenantId, int],
        policy: EvictionPolicy,
        metrics: IndexMetrics,
        copy: IndexCopy | None = None,
        bounds: HistoryBounds | None = None,
        expect_workers: int = 1,
        epoch: int = 1,
    ) -> None:
        """Args:
        epoch: This boot, larger than those before: versions of slices begin above it.
        """
        self.index = PrefixIndex()
        self.lookup = Lookup(self.index, metrics, bounds or HistoryBounds())
        self.writer = None if copy is None else CopyWriter(copy, self.index)
        self.caps = dict(caps)
        self._slices = SliceBook(caps, expect_workers=expect_workers, first_version=epoch)
        self._policy = policy
        self._metrics = metrics
        self._workers: dict[WorkerId, KnownWorker] = {}
        self._epochs: dict[WorkerId, Epoch] = {}
        self._copied_until: dict[WorkerId, float] = {}
        """Workers that were dropped as silent: until then the copy names them, for their slices count."""

    def restore(self, copied: list[CopiedWorker], now: float) -> None:
        """Take in what the copy knows; it serves until the workers' own snapshots arrive.

        What slices they keep to it does not know: until they are back none is given out.
        """
        for one in copied:
            self._slices.expect_back(one.key.worker, now)
            if one.key.worker in self._workers:
                continue
            self.index.put_worker(one.key)
            self.index.replace(one.key.worker, one.blocks)
            self._workers[one.key.worker] = KnownWorker(
                one.key, WorkerFeed(), now, now, drop_after_s=COPY_GRACE_S, from_copy=True
            )
        _log.info("index_restored", num_workers=len(copied), num_blocks=sum(len(c.blocks) for c in copied))

    def set_caps(self, caps: Mapping[TenantId, int], now: float) -> None:
        """Hold tenants to other caps from now on, on every worker."""
        for tenant in self.caps.keys() - caps.keys():
            self._metrics.slice_pages.set(0, tenant)
        self.caps = dict(caps)
        self._slices.change_caps(caps)
        for worker in self._workers:
            self._push_slices(worker)
        self._move_slices(now)

    def history_unknown(self, now: float) -> None:
        """Note that workers may keep to slices of an earlier boot, and that no copy names them."""
        if self.caps:
            self._slices.expect_back(None, now)
            _log.warning("slices_held_back", seconds=GONE_HOLD_S)

    def connect(
        self, key: WorkerKey, total_pages: int, said: SlicesInForce, link: WorkerLink, now: float
    ) -> None:
        """Take in a worker's hello: a new boot begins empty, the same boot goes on by number.

        Raises:
            StaleAttempt: A later boot of that worker is known.
        """
        newest = self._epochs.get(key.worker, key.epoch)
        known = self._workers.get(key.worker)
        if key.epoch < max(newest, known.key.epoch if known else newest):
            raise StaleAttempt(f"{key.worker} has an older epoch than the one known here")
        self._epochs.pop(key.worker, None)
        self._epochs[key.worker] = key.epoch
        if len(self._epochs) > MAX_KNOWN_EPOCHS:
            self._epochs.pop(next(iter(self._epochs)))
        same_boot = known is not None and known.key == key
        if known is not None and known.link is not None:
            known.link.close()
        if known is not None and not same_boot:
            self._drop(known, now, reason="new_boot")
        if known is None or not same_boot:
            self.index.put_worker(key)
            known = self._workers[key.worker] = KnownWorker(key, WorkerFeed(), now, now)
            self._copy_whole(key.worker)
        known.link, known.last_seen, known.drop_after_s = link, now, DROP_AFTER_S
        known.feed.reconnected(now)
        self._copied_until.pop(key.worker, None)
        self._slices.add_worker(key.worker, total_pages, said, now)
        link.push_policy(self._policy)
        self._push_slices(key.worker)
        self._move_slices(now)
        _log.info("worker_connected", worker=key.worker, epoch=key.epoch, same_boot=same_boot)

    def disconnect(self, worker: WorkerId, link: WorkerLink, now: float) -> None:
        """Note that a stream ended; what is known stays for `DROP_AFTER_S` after its last message."""
        known = self._by_link(worker, link)
        if known is not None:
            known.link = None
            self._slices.lose_worker(worker, now)
            _log.info("worker_disconnected", worker=worker, silent_s=round(now - known.last_seen, 3))

    def on_heartbeat(self, worker: WorkerId, link: WorkerLink, now: float) -> None:
        """Note that a worker lives."""
        known = self._by_link(worker, link)
        if known is not None:
            self._saw(known, now)

    def on_change(self, worker: WorkerId, link: WorkerLink, change: CacheChange, now: float) -> None:
        """Apply one numbered message of changes."""
        known = self._by_link(worker, link)
        if known is None:
            return
        step = known.feed.offer_events(change.seq)
        if step is Step.IGNORE:
            self._metrics.ignored.add()
        else:
            if step is Step.GAP:
                self._metrics.gaps.add()
                _log.warning("index_gap", worker=worker, seq=change.seq)
            self._apply(known, change)
        self._saw(known, now)

    def on_unreadable(self, worker: WorkerId, link: WorkerLink, now: float) -> None:
        """Note a message that made no sense: from here on only a snapshot is sure."""
        known = self._by_link(worker, link)
        if known is not None:
            known.feed.lost()
            self._metrics.ignored.add()
            self._saw(known, now)

    def on_snapshot(self, worker: WorkerId, link: WorkerLink, part: SnapshotPart, now: float) -> None:
        """Take one part of a snapshot; the last one replaces what was known."""
        known = self._by_link(worker, link)
        if known is None:
            return
        whole = known.feed.offer_snapshot(part.seq, part.blocks, first=part.first, more=part.more)
        if whole is not None:
            before = self.index.replace(worker, whole)
            self.lookup.removals.removed(before - whole, MissReason.EVICTED_FOR_SPACE)
            known.from_copy = False
            self._copy_whole(worker)
            self._metrics.snapshots.add()
            _log.info("index_snapshot", worker=worker, num_blocks=len(whole), seq=part.seq)
        self._saw(known, now)

    def on_slices(self, worker: WorkerId, link: WorkerLink, said: SlicesInForce, now: float) -> None:
        """Take a worker's word for the slices it keeps to: what it gave up goes to who needs it."""
        known = self._by_link(worker, link)
        if known is not None:
            self._slices.applied(worker, said, now)
            self._move_slices(now)
            self._saw(known, now)

    def on_policy(self, worker: WorkerId, link: WorkerLink, version: int, refusal: str, now: float) -> None:
        """Note whether a worker follows a policy."""
        known = self._by_link(worker, link)
        if known is None:
            return
        if refusal:
            _log.error("eviction_policy_refused", worker=worker, version=version, why=refusal)
        else:
            known.policy_version = version
        self._saw(known, now)

    def status(self, now: float) -> list[WorkerStatus]:
        return [
            WorkerStatus(
                key=known.key,
                num_blocks=len(self.index.blocks_of(worker)),
                seq=known.feed.seq,
                from_copy=known.from_copy,
                silent_s=max(0.0, now - known.last_seen),
                tenant_pages=known.tenant_pages,
                policy_version=known.policy_version,
            )
            for worker, known in self._workers.items()
        ]

    def tick(self, now: float) -> None:
        """Drop the dead, move slices, set the gauges; call it twice a second."""
        for known in list(self._workers.values()):
            if known.link is None and now - known.last_seen > known.drop_after_s:
                self._drop(known, now, reason="silent")
        for worker in [worker for worker, until in self._copied_until.items() if until <= now]:
            del self._copied_until[worker]
            self._copy_whole(worker)
        self._move_slices(now)
        self._set_gauges(now)

    def _apply(self, known: KnownWorker, change: CacheChange) -> None:
        worker = known.key.worker
        if change.removed:
            self.index.remove(worker, change.removed)
            self.lookup.removals.removed(change.removed, change.removal_reason)
        if change.stored:
            self.index.add(worker, change.stored)
        if self.writer is not None and (change.stored or change.removed):
            self.writer.changed(worker, added=change.stored, removed=change.removed)
        known.tenant_pages.update(change.tenant_pages)
        for tenant in [t for t, pages in known.tenant_pages.items() if not pages]:
            del known.tenant_pages[tenant]
        self._slices.report(worker, change.tenant_pages)

    def _saw(self, known: KnownWorker, now: float) -> None:
        known.last_seen = now
        if known.feed.in_sync:
            known.in_sync_at = now
        elif known.link is not None and known.feed.should_ask(now):
            known.link.ask_snapshot()

    def _drop(self, known: KnownWorker, now: float, *, reason: str) -> None:
        worker = known.key.worker
        self.lookup.removals.worker_gone(self.index.drop_worker(worker))
        self._slices.lose_worker(worker, now)
        del self._workers[worker]
        if reason == "silent" and self.caps:
            self._copied_until[worker] = now + GONE_HOLD_S
        else:
            self._copy_whole(worker)
        self._metrics.blocks.set(0, worker)
        self._metrics.staleness.set(0, worker)
        _log.info("worker_dropped", worker=worker, epoch=known.key.epoch, reason=reason)

    def _move_slices(self, now: float) -> None:
        for worker in self._slices.rebalance(now):
            self._push_slices(worker)

    def _push_slices(self, worker: WorkerId) -> None:
        known = self._workers.get(worker)
        if known is not None and known.link is not None:
            version, max_pages = self._slices.push(worker)
            known.link.push_slices(version, max_pages, self.caps)

    def _copy_whole(self, worker: WorkerId) -> None:
        if self.writer is not None:
            self.writer.replaced(worker)

    def _by_link(self, worker: WorkerId, link: WorkerLink) -> KnownWorker | None:
        """Return the worker if `link` still speaks for it: an older stream has no say any more."""
        known = self._workers.get(worker)
        return known if known is not None and known.link is link else None

    def _set_gauges(self, now: float) -> None:
        for worker, known in self._workers.items():
            self._metrics.blocks.set(len(self.index.blocks_of(worker)), worker)
            self._metrics.staleness.set(max(0.0, now - known.in_sync_at), worker)
        for tenant in self.caps:
            self._metrics.slice_pages.set(self._slices.in_force(tenant), tenant)
        behind = None if self.writer is None else self.writer.is_behind_since
        self._metrics.copy_behind.set(0.0 if behind is None else max(0.0, now - behind))
