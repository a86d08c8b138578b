"""Fair shares: deficit longest-prefix match on weighted virtual token counters, in strict bands with floors.

One queue for each model and band (`ShareQueue`), with a line for each class. In it, a tenant t of weight w
has one counter, whatever its requests' lengths:

    c[t] += (uncached_cost * uncached + cached_cost * cached + output_cost * output) / w

The prompt is charged at placement as predicted, output as workers report it, and at the end the prompt is
trued up. A tenant that had nothing waiting is lifted to the least counter of those that have: idleness
earns nothing. Eligible is who is at most Q (`FairRules.quantum`) above the least of both classes; a bounded
window of them is looked at in each class. Short heads go before long ones; inside a class the longest
cached prefix goes first, a head passed `max_passes` times before all; and when so many short ones of a
tenant have passed its own long head, its next short one waits for that.

The bound. Let U[t] be the most that one prompt of t and the outputs of its live requests can add to c[t].
1. While t waits it is charged a prompt only when chosen, and then c[t] <= m + Q for the least counter m;
   later only its live requests add to it. So at all times m <= c[t] <= m + Q + U[t], and m never falls but
   for a placement that is given back or a prompt that cost less than predicted (both within U).
2. For f and g that both wait from time 1 to time 2, with service S[t] = w[t] * (c2[t] - c1[t]):
   c2[f] - c1[f] <= (m2 + Q + U[f]) - m1   and   c2[g] - c1[g] >= m2 - (m1 + Q + U[g]), therefore
   | S[f] / w[f] - S[g] / w[g] |  <=  2 * Q + U[f] + U[g].
   Worked number: Q 4,096, prompts to 512, 4 live requests of 64 tokens: U = 512 + 4 * 2 * 64 = 1,024, so two
   tenants never differ by more than 10,240 tokens of service, however long they wait.
3. Nobody starves: a waiting tenant at m is passed by each other tenant for at most Q + U[t] of service, then
   it alone is eligible; inside a tenant the order is that of arrival. This holds for what can be placed: a
   head that fits on no worker is passed `Rules.max_bypasses` times, then a worker is kept free for it.
4. Classes. To 1 and 2 it is one whether a tenant is charged for a short or a long prompt, and every choice
   is of an eligible tenant, so the bound holds across classes with U of the longest prompt; short before
   long costs a long tenant no more than Q. A long head that has no room in its class's window is no choice.
   So that it is not passed by `max_bypasses` short ones each time, a worker is kept free for it at once
   when all short tenants are more than Q ahead (`is_owed`); so it is with short and long exchanged, and
   then short ones may take every seat (`ClassLimits`). Not for a tenant over its share (`band_use`): beside a
   flood of very long prompts the counter of who asks little runs ahead while one of them is computed, and the
   worker must not be kept from it for the next one. What others get meanwhile drains that excess: so its head
   is passed by at most (MOST_OVER + U) * W / LEEWAY tokens of theirs more (W: the band's weights together),
   and never by more than `max_bypasses` heads. While a class is at its limit of seats nothing of it can be
   placed; what it is behind stays. With one seat both classes get their part: a tenant of either is
   at most Q + U behind, and inside one tenant one in `max_passes` + 1 is long.
With a window of 1 and Q = 0 this is VTC itself.

A weight that is edited divides what is charged from then on, whoever waits meanwhile; the bound begins anew.

A tenant that uses several bands of a model at once has its output split over their queues in proportion to
its live requests, because workers report it by tenant.

Every decision costs O(log n) in tenants and O(window); nothing depends on how many requests wait.
Knows no worker's room and no clock.

Source: Sheng et al., "Fairness in Serving Large Language Models" (VTC), OSDI '24, sections 4 and 5; Cao et
al., "Locality-aware Fair Scheduling in LLM Serving" (DLPM), arXiv 2501.14312, section 4.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import replace

from scheduler.core.band_floors import BandFloors
from scheduler.core.band_use import BandUse
from scheduler.core.charges import Charge, Charges
from scheduler.core.request import Acquire, PromptUse, WaitingRequest
from scheduler.core.share_queue import FairRules, ShareQueue
from scheduler.core.tenant_share import TenantShare
from services.domain.generation import Band, RequestClass
from services.domain.ids import RequestKey, TenantId, WorkerId

MOST_OVER = 8192.0
"""Service by weight beyond the quantum, in tokens, that a tenant's excess is remembered up to."""


def as_vtc(rules: FairRules) -> FairRules:
    """Return the rules of virtual token counters alone: who has had least is next, whatever is cached."""
    return replace(rules, quantum=0.0, window=1)


class _Model:
    """The queues of one model. Lists by band, because a decision asks for them often."""

    def __init__(self, rules: FairRules) -> None:
        self.bands = [Band(rank) for rank in range(1, rules.num_bands + 1)]
        self.queues = [ShareQueue(rules) for _ in self.bands]
        self.floors = BandFloors(rules.floors, rules.num_bands)
        self.uses = [BandUse(rules.quantum + MOST_OVER) for _ in range(rules.num_bands + 1)]
        """By band: who is over its share."""
        self.num_waiting = [0] * (rules.num_bands + 1)
        """By band."""
        self.num_tokens = [0] * (rules.num_bands + 1)

    def queue(self, band: Band) -> ShareQueue:
        return self.queues[band - 1]

    def waiting_bands(self) -> list[Band]:
        return [band for band in self.bands if self.num_waiting[band]]


class FairPolicy:
    """`QueuePolicy` with fair shares between tenants."""

    def __init__(self, rules: FairRules | None = None) -> None:
        self._rules = rules or FairRules()
        self._models: dict[str, _Model] = {}
        self._place_of: dict[ShareQueue, tuple[_Model, Band]] = {}
        self._charges = Charges()

    # Who waits

    def add(self, request: WaitingRequest) -> None:
        acquire = request.acquire
        model = self._models.get(acquire.model)
        if model is None:
            model = self._models[acquire.model] = _Model(self._rules)
            for band in model.bands:
                self._place_of[model.queue(band)] = model, band
        model.queue(acquire.band).add(request)
        model.uses[acquire.band].came(acquire.tenant, acquire.weight)
        model.num_waiting[acquire.band] += 1
        model.num_tokens[acquire.band] += acquire.num_prompt_tokens

    def remove(self, request: WaitingRequest) -> None:
        acquire = request.acquire
        self._models[acquire.model].uses[acquire.band].left(acquire.tenant)
        self._queue(request).remove(request)
        self._left(request)

    def placed(self, request: WaitingRequest, worker: WorkerId, cached_tokens: int) -> None:
        share = self._queue(request).chosen(request)
        cost = self._rules.prompt_cost(request.acquire.num_prompt_tokens - cached_tokens, cached_tokens)
        self._charge(share, cost)
        self._charges.begin(request.key, Charge(share, worker, cost))
        self._left(request)

    def candidates(
        self, model: str, *, closed: Collection[RequestClass] = (), held: Collection[TenantId] | None = None
    ) -> Iterator[WaitingRequest]:
        known = self._models.get(model)
        if known is None:
            return
        for band in known.floors.order(known.waiting_bands()):
            yield from known.queue(band).candidates(closed, held)

    def models(self) -> Iterable[str]:
        return tuple(name for name, model in self._models.items() if any(model.num_waiting))

    def num_waiting(self, model: str, lowest: Band | None = None) -> int:
        known = self._models.get(model)
        return 0 if known is None else sum(known.num_waiting[: None if lowest is None else lowest + 1])

    def num_tokens(self, model: str, lowest: Band | None = None) -> int:
        known = self._models.get(model)
        return 0 if known is None else sum(known.num_tokens[: None if lowest is None else lowest + 1])

    def waiting_of_tenant(self, acquire: Acquire) -> tuple[int, int]:
        model = self._models.get(acquire.model)
        if model is None:
            return 0, 0
        share = model.queue(acquire.band).get(acquire.tenant)
        if share is None:
            return 0, 0
        return share.num_waiting, share.num_tokens_waiting

    def position(self, request: WaitingRequest) -> int:
        acquire = request.acquire
        queue = self._queue(request)
        share = queue.get(acquire.tenant)
        assert share is not None, "it waits"
        turn = round(share.num_waiting * queue.active_weight / share.weight)
        before = (
            self.num_waiting(acquire.model, acquire.band)
            - self._models[acquire.model].num_waiting[acquire.band]
        )
        return before + max(1, min(turn, queue.num_waiting))

    def weigh(self, tenant: TenantId, weight: float) -> None:
        for model in self._models.values():
            for band in model.bands:
                model.queue(band).weigh(tenant, weight)
                model.uses[band].weigh(tenant, weight)

    # What became of it

    def used(self, worker: WorkerId, tenant: TenantId, num_output_tokens: int) -> None:
        for share, part in self._charges.at_work(worker, tenant):
            self._charge(share, self._rules.output_cost * num_output_tokens * part)

    def ended(self, key: RequestKey, use: PromptUse | None) -> None:
        charge = self._charges.end(key)
        if charge is None:
            return
        if use is not None:
            self._charge(charge.share, self._rules.prompt_cost(use.uncached, use.cached) - charge.cost)
        model, band = self._place_of[charge.share.queue]
        model.uses[band].left(charge.share.tenant)
        charge.share.queue.released(charge.share)

    def given_back(self, key: RequestKey) -> None:
        self.ended(key, PromptUse(0, 0))

    def worker_gone(self, worker: WorkerId, kept: Collection[RequestKey]) -> None:
        for key in self._charges.on(worker):
            if key not in kept:
                self.ended(key, None)

    def over_share(self, worker: WorkerId) -> Mapping[TenantId, float]:
        quantum, place_of = self._rules.quantum, self._place_of
        over = {}
        for tenant, shares in self._charges.tenants_on(worker):
            places = [place_of[share.queue] for share in shares]
            over[tenant] = max(model.uses[band].level(tenant) for model, band in places) - quantum
        return over

    def asks_within_share(self, tenant: TenantId, model: str, band: Band) -> bool:
        known = self._models.get(model)
        share = None if known is None else known.queue(band).get(tenant)
        asked = 0.0 if share is None else share.num_tokens_waiting / share.weight
        level = 0.0 if known is None else known.uses[band].level(tenant)
        return level + asked <= self._rules.quantum

    def owed_class(self, model: str) -> RequestClass | None:
        known = self._models.get(model)
        band = next(iter(known.waiting_bands()), None) if known is not None else None
        return None if known is None or band is None else known.queue(band).owed_class

    def is_owed(self, request: WaitingRequest) -> bool:
        acquire = request.acquire
        if self._models[acquire.model].uses[acquire.band].level(acquire.tenant) > self._rules.quantum:
            return False
        return self._queue(request).is_owed(request)

    def floor(self, band: Band) -> float:
        return self._rules.floors.get(band, 0.0)

    # Inside

    def _queue(self, request: WaitingRequest) -> ShareQueue:
        acquire = request.acquire
        return self._models[acquire.model].queue(acquire.band)

    def _charge(self, share: TenantShare, cost: float) -> None:
        share.queue.charge(share, cost)
        model, band = self._place_of[share.queue]
        model.floors.served(band, cost, model.waiting_bands())
        model.uses[band].served(share.tenant, cost)

    def _left(self, request: WaitingRequest) -> None:
        """Count one less; a model of which nothing is left to know is forgotten."""
        acquire = request.acquire
        model = self._models[acquire.model]
        model.num_waiting[acquire.band] -= 1
        model.num_tokens[acquire.band] -= acquire.num_prompt_tokens
        if not model.num_waiting[acquire.band]:
            model.floors.idle(acquire.band)
            if not any(model.num_waiting) and all(queue.is_forgotten for queue in model.queues):
                del self._models[acquire.model]
                for queue in model.queues:
                    del self._place_of[queue]
