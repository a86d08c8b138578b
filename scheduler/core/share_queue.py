"""Tenants that share one queue by weighted counters of service; see `fair_queue` for the rule and its bound.

One queue is one model, band and class. Knows what its tenants waited for and were charged; knows no worker,
no other queue and no time.
"""

import heapq
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

from scheduler.core.arrival_queue import ArrivalQueue
from scheduler.core.ranked_list import Entry, RankedList
from scheduler.core.request import TenantUse, WaitingRequest
from services.domain.generation import Band
from services.domain.ids import TenantId


@dataclass(frozen=True, slots=True, kw_only=True)
class FairRules:
    """How tenants share. Costs are in tokens of uncached prompt."""

    quantum: float = 4096.0
    """Q: how far a tenant may be ahead of the least served one and still be chosen for its cached prefix."""
    uncached_cost: float = 1.0
    """Of a prompt token that is computed."""
    cached_cost: float = 0.1
    """Of a prompt token found in the cache: it holds memory and is read by attention."""
    output_cost: float = 2.0
    """Of a generated token. Source: VTC (OSDI '24), section 5.1: output weighs twice."""
    window: int = 16
    """Heads compared by cached prefix; 1 is plain VTC."""
    max_passes: int = 64
    """Longer prefixes that may pass a head although it has had less; then it goes first."""
    floors: Mapping[Band, float] = field(
        default_factory=lambda: MappingProxyType({Band.STANDARD: 0.1, Band.BATCH: 0.05})
    )
    """Part of a model's service that a band gets while it waits, however busy the bands before it are."""
    num_bands: int = 3

    def prompt_cost(self, uncached: int, cached: int) -> float:
        """Return what a prompt costs. Worked number: 64 of 2,112 tokens uncached: 64 + 204.8 = 268.8."""
        return self.uncached_cost * uncached + self.cached_cost * cached

    def cost(self, use: TenantUse) -> float:
        """Return the service that tokens are."""
        return self.prompt_cost(use.uncached, use.cached) + self.output_cost * use.output


class TenantShare:
    """One tenant in one queue."""

    __slots__ = (
        "counter",
        "entry",
        "live",
        "number",
        "order",
        "passed",
        "queue",
        "tenant",
        "waiting",
        "weight",
    )

    def __init__(self, tenant: TenantId, number: int, queue: "ShareQueue") -> None:
        self.tenant = tenant
        self.number = number
        self.queue = queue
        self.weight = 1.0
        self.counter = 0.0
        """Weighted tokens of service."""
        self.order = (0.0, number)
        self.entry: Entry | None = None
        self.waiting = ArrivalQueue()
        self.live = 0
        """Requests placed that have not ended."""
        self.passed = 0
        """Times that a longer prefix went before its head."""


class ShareQueue:
    """Who waits, and what each has had."""

    def __init__(self, rules: FairRules) -> None:
        self._rules = rules
        self._shares: dict[TenantId, TenantShare] = {}
        self._active: RankedList[TenantShare] = RankedList()
        """Those with something waiting."""
        self._virtual_time = 0.0
        """The least counter of the active, as far as it had come when somebody came or left."""
        self._window: list[TenantShare] = []
        self._held: set[TenantShare] = set()
        self._number = 0
        self._sweep_at = 64
        self.num_waiting = 0
        self.active_weight = 0.0

    @property
    def is_forgotten(self) -> bool:
        """Whether nothing is left to know."""
        return not self._shares

    @property
    def num_moves(self) -> int:
        """Tenants put in their place, or looked at, so far."""
        return self._active.num_moves

    def get(self, tenant: TenantId) -> TenantShare | None:
        return self._shares.get(tenant)

    def add(self, request: WaitingRequest) -> None:
        """Take a request in. Its tenant, if idle, is lifted to the least active counter."""
        acquire = request.acquire
        share = self._shares.get(acquire.tenant)
        if share is None:
            self._number += 1
            share = self._shares[acquire.tenant] = TenantShare(acquire.tenant, self._number, self)
        is_active = share.waiting.first is not None
        if is_active:
            self.active_weight += acquire.weight - share.weight
        share.weight = acquire.weight
        if not is_active:
            self._advance()
            self._set(share, max(share.counter, self._virtual_time))
            self._active.add(share)
            self.active_weight += share.weight
        share.waiting.add(request)
        self.num_waiting += 1

    def remove(self, request: WaitingRequest) -> TenantShare:
        """Take a request out; return its tenant's share."""
        share = self._shares[request.acquire.tenant]
        share.waiting.remove(request)
        self.num_waiting -= 1
        if share.waiting.first is None:
            self._advance()
            self._active.remove(share)
            self._held.discard(share)
            self.active_weight = self.active_weight - share.weight if self._active else 0.0
            share.passed = 0
            self._forget(share)
        return share

    def chosen(self, request: WaitingRequest) -> TenantShare:
        """Take out a request that was placed, and remember whom it passed by its prefix."""
        share = self._shares[request.acquire.tenant]
        if share in self._window:
            for other in self._window[: self._window.index(share)]:
                other.passed += 1
        share.passed = 0
        share.live += 1
        self.remove(request)
        return share

    def charge(self, share: TenantShare, cost: float) -> None:
        """Count service (or take back what was counted wrongly)."""
        self._set(share, share.counter + cost / share.weight)
        if share.entry is not None:
            self._active.moved(share)
        elif not self._active:
            # While nobody waits nobody is behind: the next ones begin where the furthest is.
            self._virtual_time = max(self._virtual_time, share.counter)

    def released(self, share: TenantShare) -> None:
        """One of its placed requests is over."""
        share.live -= 1
        self._forget(share)
        if len(self._shares) >= self._sweep_at:
            for idle in list(self._shares.values()):
                self._forget(idle)
            self._sweep_at = 64 + 2 * len(self._shares)

    def candidates(self, held: Collection[TenantId] | None) -> Iterator[WaitingRequest]:
        """Yield what waits, next first: the heads of the eligible by cached prefix, then the others as their
        counters would let them follow if every prompt were computed. See `QueuePolicy.candidates`."""
        if held is not None and (held or self._held):
            self._hold(held)
        rules = self._rules
        window = self._window = self._active.least(rules.window, rules.quantum, self._held)
        heads = [head for share in window if (head := share.waiting.first) is not None]
        prefixes = [head.longest_prefix for head in heads]
        # Mostly no prefix is longer than another, and then who has had least goes first as it is.
        is_level = len(heads) < 2 or min(prefixes) == max(prefixes)
        if not is_level or (window and max([share.passed for share in window]) >= rules.max_passes):
            ranks = [
                (share.passed < rules.max_passes, -prefix, place, head)
                for place, (share, prefix, head) in enumerate(zip(window, prefixes, heads, strict=True))
            ]
            ranks.sort()
            heads = [rank[3] for rank in ranks]
        yield from heads
        yield from self._followers(window)

    # Inside

    def _followers(self, window: list[TenantShare]) -> Iterator[WaitingRequest]:
        """Yield all but the heads of `window`."""
        cost_of = self._rules.prompt_cost
        coming: list[tuple[float, int, TenantShare, Iterator[WaitingRequest]]] = []
        for share in window:
            requests = iter(share.waiting)
            virtual = share.counter + cost_of(next(requests).acquire.num_prompt_tokens, 0) / share.weight
            heapq.heappush(coming, (virtual, share.number, share, requests))
        others = (share for share in self._active if share not in window and share not in self._held)
        other = next(others, None)
        while other is not None or coming:
            if other is not None and (not coming or other.order < coming[0][:2]):
                heapq.heappush(coming, (*other.order, other, iter(other.waiting)))
                other = next(others, None)
                continue
            virtual, _, share, requests = heapq.heappop(coming)
            request = next(requests, None)
            if request is not None:
                yield request
                virtual += cost_of(request.acquire.num_prompt_tokens, 0) / share.weight
                heapq.heappush(coming, (virtual, share.number, share, requests))

    def _hold(self, held: Collection[TenantId]) -> None:
        """Leave out the tenants `held`; treat one that can be served again as having been idle."""
        shares = (self._shares.get(tenant) for tenant in held)
        now = {share for share in shares if share is not None and share.waiting}
        released, self._held = self._held - now, now
        if not released:
            return
        first = next((s for s in self._active if s not in now and s not in released), None)
        for share in released:
            if first is not None and share.counter < first.counter:
                self._set(share, first.counter)
                self._active.moved(share)

    def _advance(self) -> None:
        for share in self._active:
            if share not in self._held:
                self._virtual_time = max(self._virtual_time, share.counter)
                return

    def _set(self, share: TenantShare, counter: float) -> None:
        share.counter = counter
        share.order = (counter, share.number)

    def _forget(self, share: TenantShare) -> None:
        """Drop an idle tenant whose counter says no more than the virtual time."""
        if share.live == 0 and share.waiting.first is None and share.counter <= self._virtual_time:
            self._shares.pop(share.tenant, None)
