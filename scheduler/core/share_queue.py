"""Tenants that share one queue by weighted counters of service; see `fair_queue` for the rule and its bound.

One queue is one model and band. Short and long requests have lines of their own in it, and a tenant has one
counter for both. Knows what its tenants waited for and were charged; knows no worker, no other queue and no
time.
"""

import heapq
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

from scheduler.core.ranked_list import RankedList
from scheduler.core.request import TenantUse, WaitingRequest
from scheduler.core.tenant_share import LONG, SHORT, Line, TenantShare
from services.domain.generation import Band, RequestClass
from services.domain.ids import TenantId

CLASS_WINDOW = 8
"""Short heads offered before the long ones."""

_CLASSES = tuple(RequestClass)


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
    """Longer prefixes that may pass a head although it has had less; then it goes first. So it is with short
    requests that pass a long one of the same tenant."""
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


class ShareQueue:
    """Who waits, and what each has had."""

    def __init__(self, rules: FairRules) -> None:
        self._rules = rules
        self._shares: dict[TenantId, TenantShare] = {}
        self._active: tuple[RankedList[Line], RankedList[Line]] = (RankedList(), RankedList())
        """By class: lines in which something waits."""
        self._virtual_times = [0.0, 0.0]
        """By class: the least counter of its active lines (where none is, of the other's), as far as it had
        come when somebody came or left."""
        self._windows: tuple[list[Line], list[Line]] = ([], [])
        self._held: set[Line] = set()
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
        """Lines put in their place, or looked at, so far."""
        return sum(active.num_moves for active in self._active)

    def get(self, tenant: TenantId) -> TenantShare | None:
        return self._shares.get(tenant)

    def add(self, request: WaitingRequest) -> None:
        """Take a request in. Its tenant, if idle, is lifted to the least active counter of its class."""
        acquire = request.acquire
        place = acquire.request_class - 1
        share = self._shares.get(acquire.tenant)
        if share is None:
            self._number += 1
            share = self._shares[acquire.tenant] = TenantShare(acquire.tenant, self._number, self)
        line = share.lines[place]
        if not share.is_waiting:
            self._advance()
            self._set(share, max(share.counter, self._virtual_times[place]))
            self.active_weight += share.weight
        if line.entry is None:
            self._active[place].add(line)
        line.waiting.add(request)
        self.num_waiting += 1
        self.weigh(acquire.tenant, acquire.weight)

    def weigh(self, tenant: TenantId, weight: float) -> None:
        """Charge a tenant by this weight from now on; what it was charged stays."""
        share = self._shares.get(tenant)
        if share is not None:
            self.active_weight += weight - share.weight if share.is_waiting else 0.0
            share.weight = weight

    def remove(self, request: WaitingRequest) -> TenantShare:
        """Take a request out; return its tenant's share."""
        share = self._shares[request.acquire.tenant]
        place = request.acquire.request_class - 1
        line = share.lines[place]
        line.waiting.remove(request)
        self.num_waiting -= 1
        if line.waiting.first is None:
            self._advance()
            self._active[place].remove(line)
            self._held.discard(line)
            line.passed = 0
            if place == LONG:
                share.long_passed = 0
            if not share.is_waiting:
                self.active_weight = self.active_weight - share.weight if self.num_waiting else 0.0
                self._forget(share)
        return share

    def chosen(self, request: WaitingRequest) -> TenantShare:
        """Take out a request that was placed, and remember whom it passed by its prefix or its class."""
        share = self._shares[request.acquire.tenant]
        place = request.acquire.request_class - 1
        line, window = share.lines[place], self._windows[place]
        if line in window:
            for other in window[: window.index(line)]:
                other.passed += 1
        line.passed = 0
        if place == LONG:
            share.long_passed = 0
        elif share.lines[LONG].entry is not None:
            share.long_passed += 1
        share.live += 1
        self.remove(request)
        return share

    def charge(self, share: TenantShare, cost: float) -> None:
        """Count service (or take back what was counted wrongly)."""
        self._set(share, share.counter + cost / share.weight)
        if not self.num_waiting:
            # While nobody waits nobody is behind: the next ones begin where the furthest is.
            self._virtual_times = [max(time, share.counter) for time in self._virtual_times]

    def released(self, share: TenantShare) -> None:
        """One of its placed requests is over."""
        share.live -= 1
        self._forget(share)
        if len(self._shares) >= self._sweep_at:
            for idle in list(self._shares.values()):
                self._forget(idle)
            self._sweep_at = 64 + 2 * len(self._shares)

    @property
    def owed_class(self) -> RequestClass | None:
        """The class of which somebody is more than the quantum behind all that wait in the other one."""
        short, long = self._least(SHORT), self._least(LONG)
        if short is None or long is None or abs(short - long) <= self._rules.quantum:
            return None
        return RequestClass.SHORT if short < long else RequestClass.LONG

    def is_owed(self, request: WaitingRequest) -> bool:
        """Say whether all that wait in the other class are more than the quantum ahead of its tenant."""
        other = self._least(2 - request.acquire.request_class)
        counter = self._shares[request.acquire.tenant].counter
        return other is not None and other > counter + self._rules.quantum

    def candidates(
        self, closed: Collection[RequestClass], held: Collection[TenantId] | None
    ) -> Iterator[WaitingRequest]:
        """Yield what waits, next first: the heads of the eligible, short ones before long ones and inside a
        class by cached prefix, then the others as their counters would let them follow if every prompt were
        computed. See `QueuePolicy.candidates`."""
        if held is not None and (held or self._held):
            self._hold(held)
        self._windows = short, long = self._eligible(closed)
        heads = self._by_prefix(short)
        # Short ones that find no room do not hide the long ones.
        yield from heads[:CLASS_WINDOW]
        yield from self._by_prefix(long)
        yield from heads[CLASS_WINDOW:]
        yield from self._followers([*short, *long], closed)

    # Inside

    def _eligible(self, closed: Collection[RequestClass]) -> tuple[list[Line], list[Line]]:
        """Return the lines of each class that are at most the quantum above the least of both."""
        rules, (of_short, of_long) = self._rules, self._active
        short: list[Line] = []
        long: list[Line] = []
        if of_short and RequestClass.SHORT not in closed:
            short = of_short.least(rules.window, rules.quantum, self._held)
        if of_long and RequestClass.LONG not in closed:
            long = of_long.least(rules.window, rules.quantum, self._held)
        if short and long:
            most = min(short[0].order[0], long[0].order[0]) + rules.quantum
            long = [line for line in long if line.order[0] <= most]
            short = [
                line for line in short if line.order[0] <= most and line.share.long_passed < rules.max_passes
            ]
        return short, long

    def _by_prefix(self, window: list[Line]) -> list[WaitingRequest]:
        """Return the heads of a window, the longest cached prefix first."""
        heads = [head for line in window if (head := line.waiting.first) is not None]
        if len(heads) < 2:
            return heads
        most, level = self._rules.max_passes, heads[0].longest_prefix
        for line, head in zip(window, heads, strict=True):
            if head.longest_prefix != level or line.passed >= most:
                break
        else:  # Mostly no prefix is longer than another: who has had least goes first as it is.
            return heads
        ranks = [
            (line.passed < most, -head.longest_prefix, place, head)
            for place, (line, head) in enumerate(zip(window, heads, strict=True))
        ]
        ranks.sort()
        return [rank[3] for rank in ranks]

    def _followers(self, window: list[Line], closed: Collection[RequestClass]) -> Iterator[WaitingRequest]:
        """Yield all but the heads of `window`, of the classes that are not closed."""
        cost_of = self._rules.prompt_cost
        coming: list[tuple[float, int, Line, Iterator[WaitingRequest]]] = []
        for line in window:
            requests = iter(line.waiting)
            virtual = line.order[0] + cost_of(next(requests).acquire.num_prompt_tokens, 0) / line.share.weight
            heapq.heappush(coming, (virtual, line.number, line, requests))
        of_class = [a for kind, a in zip(_CLASSES, self._active, strict=True) if kind not in closed]
        lines = heapq.merge(*of_class, key=lambda line: line.order)
        others = (line for line in lines if line not in window and line not in self._held)
        other = next(others, None)
        while other is not None or coming:
            if other is not None and (not coming or other.order < coming[0][:2]):
                heapq.heappush(coming, (*other.order, other, iter(other.waiting)))
                other = next(others, None)
                continue
            virtual, _, line, requests = heapq.heappop(coming)
            request = next(requests, None)
            if request is not None:
                yield request
                virtual += cost_of(request.acquire.num_prompt_tokens, 0) / line.share.weight
                heapq.heappush(coming, (virtual, line.number, line, requests))

    def _hold(self, held: Collection[TenantId]) -> None:
        """Leave out the tenants `held`; treat one that can be served again as having been idle."""
        shares = (self._shares.get(tenant) for tenant in held)
        now = {
            line for share in shares if share is not None for line in share.lines if line.entry is not None
        }
        released, self._held = self._held - now, now
        if not released:
            return
        for place, active in enumerate(self._active):
            first = next((line for line in active if line not in now and line not in released), None)
            if first is None:
                continue
            for line in released:
                if line is line.share.lines[place] and line.order[0] < first.order[0]:
                    self._set(line.share, first.order[0])

    def _least(self, place: int) -> float | None:
        """Return the least counter of a class of whom something can be placed."""
        for line in self._active[place]:
            if line not in self._held:
                return line.order[0]
        return None

    def _advance(self) -> None:
        short, long = self._least(SHORT), self._least(LONG)
        times = self._virtual_times
        for place, own, other in ((SHORT, short, long), (LONG, long, short)):
            least = other if own is None else own
            if least is not None and least > times[place]:
                times[place] = least

    def _set(self, share: TenantShare, counter: float) -> None:
        share.counter = counter
        for place, line in enumerate(share.lines):
            line.order = (counter, line.number)
            if line.entry is not None:
                self._active[place].moved(line)

    def _forget(self, share: TenantShare) -> None:
        """Drop an idle tenant whose counter says no more than the virtual time."""
        if share.live == 0 and not share.is_waiting and share.counter <= max(self._virtual_times):
            self._shares.pop(share.tenant, None)
