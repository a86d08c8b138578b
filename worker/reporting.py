"""Turns steps into what scheduler and kvmanager are told, and what they say into commands.

Knows both links by their small interfaces; knows nothing of gateways, streams or messages.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Protocol

from services.domain.ids import BlockHash, RequestKey, TenantId
from services.domain.slices import NO_SLICES, SliceInForce, SlicesInForce
from services.rpc.worker_scheduler_link import EndedRequest, Load, TokensUsed
from worker.async_engine import AsyncEngine
from worker.engine.commands import Drain, SetIdleTtl, SetRanks, SetSlices
from worker.engine.kv_events import RemovalReason, Removed
from worker.engine.outputs import Accepted, Ended, Refused, StepOutputs, StepStats
from worker.placements import PlacementBook

CANCELLED = 1
"""gRPC's code of an end by a cancel."""
SPEED_WEIGHT = 0.2
"""Weight of the newest prefill step in the measured speed."""


class LoadListener(Protocol):
    """The scheduler's link, as far as steps drive it."""

    def changed(self, *, soon: bool) -> None: ...


class LoadReport:
    """Gathers the scheduler's report from steps and placements."""

    def __init__(self, engine: AsyncEngine, book: PlacementBook) -> None:
        self._engine = engine
        self._book = book
        self._listener: LoadListener | None = None
        self._draining = False
        self._taken_at_hello = 0
        self._granted = 0
        self._started: list[RequestKey] = []
        self._ended: list[EndedRequest] = []
        self._use: dict[TenantId, TokensUsed] = {}
        self._changed_tenants: set[TenantId] = set()
        self._prefill_tokens_per_s = 0.0
        self._at_slice: tuple[TenantId, ...] = ()
        self._idle = True
        engine.listen(self.on_step)

    @property
    def is_draining(self) -> bool:
        """Whether the worker takes nothing more, by its own end or the scheduler's word."""
        return self._draining

    def tell(self, listener: LoadListener) -> None:
        """Say to `listener` from now on that there is something to report."""
        self._listener = listener

    def on_step(self, outputs: StepOutputs) -> None:
        """Take in one step; ask for a report soon when someone may be placed, started or ended by it."""
        stats = outputs.stats
        for event in outputs.events:
            if isinstance(event, Accepted | Refused):
                self._book.entered(event.key)
        self._started += outputs.started
        self._ended += map(_ended, outputs.ended)
        for tenant, use in outputs.tenant_use.items():
            self._use[tenant] = TokensUsed(
                uncached=use.uncached_tokens, cached=use.cached_tokens, output=use.output_tokens
            )
            self._changed_tenants.add(tenant)
        if outputs.slices is not None:
            self._at_slice = tuple(t for t, one in outputs.slices.tenants.items() if one.needs)
        self._measure(stats)
        idle = stats.running == 0 and stats.waiting == 0
        told = outputs.started or outputs.ended or outputs.events or outputs.slices
        soon = bool(told) or idle != self._idle
        self._idle = idle
        self._changed(soon=soon or stats.granted != self._granted)
        self._granted = stats.granted

    def begin_link(self) -> tuple[Sequence[RequestKey], bool]:
        """Count grants from 0 on; return what is live and whether the worker drains."""
        stats = self._stats
        self._book.begin_link()
        self._taken_at_hello = stats.taken + self._book.num_inside
        self._started.clear()
        self._ended.clear()
        self._changed_tenants.update(self._use)
        return [request.key for request in self._engine.live], self._draining

    def take(self) -> Load:
        """Return the report of now; started, ended and changed use are given once."""
        stats, book = self._stats, self._book
        load = Load(
            placements_seen=book.seen,
            granted=max(0, stats.granted - self._taken_at_hello) + book.lost,
            startable_pages=stats.startable_pages,
            free_pages=stats.free_pages,
            reclaimable_pages=stats.cached_pages,
            waiting_tokens=stats.waiting_tokens,
            running=stats.running,
            waiting=stats.waiting,
            started=tuple(self._started),
            ended=tuple(self._ended),
            tenant_use={tenant: self._use[tenant] for tenant in self._changed_tenants},
            at_slice=self._at_slice,
            draining=self._draining,
            steps=stats.step,
            stuck_s=self._engine.stuck_s(),
            prefill_tokens_per_s=self._prefill_tokens_per_s,
        )
        self._started.clear()
        self._ended.clear()
        self._changed_tenants.clear()
        return load

    def obey(self, term: int, submit_within_s: float) -> bool:
        """Accept the scheduler of `term`, and its limit for submits, unless a higher term has spoken."""
        obeyed = self._book.obey(term)
        if obeyed:
            self._book.submit_within_s = submit_within_s
        return obeyed

    def placed(self, highest_seq: int, abandoned: Sequence[int]) -> None:
        """Note which placements exist."""
        self._book.placed(highest_seq, abandoned, time.monotonic())
        if abandoned:
            self._changed(soon=True)

    def expire_placements(self, now: float) -> None:
        """Take back the credit of placements that were not submitted in time."""
        if self._book.expire(now):
            self._changed(soon=True)

    def set_ranks(self, over_share: Mapping[TenantId, float]) -> None:
        """Pass on who is over its share."""
        self._engine.post(SetRanks(over_share))

    def drain(self) -> None:
        """Take nothing more; what runs ends."""
        self._draining = True
        self._engine.post(Drain())
        self._changed(soon=True)

    @property
    def _stats(self) -> StepStats:
        stats = self._engine.last
        assert stats is not None, "links start after the first step"
        return stats

    def _changed(self, *, soon: bool) -> None:
        if self._listener is not None:
            self._listener.changed(soon=soon)

    def _measure(self, stats: StepStats) -> None:
        if stats.num_prefill_tokens and stats.step_s > 0:
            speed = stats.num_prefill_tokens / stats.step_s
            old = self._prefill_tokens_per_s or speed
            self._prefill_tokens_per_s = old + SPEED_WEIGHT * (speed - old)


class KvFeed(Protocol):
    """The kvmanager's link, as far as steps feed it."""

    def removed(self, block: BlockHash, *, by_policy: bool) -> None: ...

    def stored(self, block: BlockHash) -> None: ...

    def flush_soon(self, tenant_pages: Mapping[TenantId, int]) -> None: ...

    def slices_changed(self, slices: SlicesInForce) -> None: ...


class KvReport:
    """Feeds the kvmanager's link, and is the engine to it."""

    def __init__(self, engine: AsyncEngine) -> None:
        self._engine = engine
        self._feed: KvFeed | None = None
        self._slices = NO_SLICES
        self._posted: list[SetSlices] = []
        """Slices given to the engine and not applied."""

    def tell(self, feed: KvFeed) -> None:
        """Tell `feed` what every step publishes and removes from now on."""
        self._feed = feed
        self._engine.listen(self.on_step)

    def on_step(self, outputs: StepOutputs) -> None:
        """Pass on one step's changes in their order."""
        assert self._feed is not None
        for event in outputs.kv_events:
            if isinstance(event, Removed):
                self._feed.removed(event.hash, by_policy=event.why is RemovalReason.IDLE)
            else:
                self._feed.stored(event.hash)
        if outputs.kv_events or outputs.tenant_pages:
            self._feed.flush_soon(outputs.tenant_pages)
        if outputs.slices is not None:
            self._slices = outputs.slices
            self._posted = [one for one in self._posted if one.version > outputs.slices.version]
            self._feed.slices_changed(outputs.slices)

    def set_slices(
        self,
        version: int,
        max_pages: Mapping[TenantId, int],
        caps: Mapping[TenantId, int],
        default_max: int | None,
    ) -> None:
        """Replace the tenants' slices."""
        slices = SetSlices(max_pages, default_max, version, caps)
        self._posted.append(slices)
        self._engine.post(slices)

    def slices(self) -> SlicesInForce:
        """Return what is kept to; of what is given to the engine and not applied the most that it allows."""
        tenants = dict(self._slices.tenants)
        for tenant, pages in ((t, p) for one in self._posted for t, p in one.max_pages.items()):
            known = tenants.get(tenant) or SliceInForce(max_pages=0, bound=0, held=0)
            bound = max(known.bound, pages)
            tenants[tenant] = replace(known, max_pages=max(known.max_pages, pages), bound=bound)
        return SlicesInForce(version=self._slices.version, tenants=tenants)

    def set_idle_ttl(self, idle_ttl_s: float | None) -> None:
        """Give up cached pages that nobody has used for so long."""
        self._engine.post(SetIdleTtl(idle_ttl_s))

    def snapshot(self, reply: Callable[[Sequence[BlockHash]], None]) -> None:
        """Give every published block to `reply`, after all changes told until then."""
        self._engine.snapshot(lambda blocks: reply([block.hash for block in blocks]))


def _ended(end: Ended | Refused) -> EndedRequest:
    code = 0 if end.error is None else end.error.code.value
    if isinstance(end, Refused):
        return EndedRequest(key=end.key, code=code)
    code = CANCELLED if end.cancelled else code
    cached = end.usage.cached_tokens
    # What it computed beyond its prompt is output, or was computed again after a preemption.
    uncached = min(end.usage.prompt_tokens - cached, end.computed_tokens)
    return EndedRequest(key=end.key, code=code, uncached_tokens=uncached, cached_tokens=cached)
