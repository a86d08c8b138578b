"""Tenants that always have something waiting, in front of a queue policy alone.

Counts service by itself, from what was really computed, so that a policy's counters are not their own proof.
"""

import itertools
import random
from collections import defaultdict, deque
from dataclasses import dataclass, field

from scheduler.core.policy import QueuePolicy
from scheduler.core.request import Match, PromptUse, WaitingRequest
from scheduler.core.share_queue import FairRules
from services.domain.generation import Band, RequestClass
from services.domain.ids import Epoch, GatewayId, RequestKey, TenantId, WorkerId
from services.domain.miss_reason import MissReason
from tests.unit.scheduler.builders import MODEL, acquire

WORKER = WorkerId("worker-0")
COSTS = FairRules()


@dataclass
class Tenant:
    """Draws its requests; a share of `hit_rate` finds all but 16 tokens in the cache."""

    name: str
    weight: float = 1.0
    prompts: tuple[int, int] = (1, 512)
    outputs: tuple[int, int] = (0, 64)
    hit_rate: float = 0.0
    band: Band = Band.STANDARD
    long_from: int = 1_000_000
    """Prompts from this length on are of the long class."""
    is_backlogged: bool = True
    """Asks again whenever one is placed."""
    service: float = 0.0
    num_placed: int = 0
    keys: set[RequestKey] = field(default_factory=set)


@dataclass
class Live:
    tenant: Tenant
    request: WaitingRequest
    outputs_left: int


class Backlog:
    """One worker that runs `seats` requests, and tenants of whom two requests each always wait."""

    def __init__(self, policy: QueuePolicy, seed: int, *, seats: int = 4) -> None:
        self.policy = policy
        self.random = random.Random(seed)
        self.live: deque[Live] = deque()
        self.order: list[str] = []
        self._seats = seats
        self._numbers = itertools.count()
        self._tenants: dict[TenantId, Tenant] = {}
        self._waiting: defaultdict[str, int] = defaultdict(int)

    def join(self, tenant: Tenant) -> None:
        self._tenants[TenantId(tenant.name)] = tenant
        self._refill(tenant)

    def ask(self, tenant: Tenant, tokens: int, cached: int = 0) -> WaitingRequest:
        """Let a tenant ask for one more."""
        self._tenants[TenantId(tenant.name)] = tenant
        asked = acquire(
            f"r{next(self._numbers)}",
            tokens=tokens,
            tenant=tenant.name,
            weight=tenant.weight,
            band=tenant.band,
            kind=RequestClass.LONG if tokens >= tenant.long_from else RequestClass.SHORT,
        )
        tokens_on = {(WORKER, Epoch(1)): cached} if cached else {}
        request = WaitingRequest(
            acquire=asked,
            gateway=GatewayId("gateway-0"),
            arrived=float(next(self._numbers)),
            admitted=0.0,
            deadline=None,
            match=Match(at=0.0, tokens=tokens_on, miss_reason=MissReason.NONE, first_miss_token=cached),
        )
        self.policy.add(request)
        self._waiting[tenant.name] += 1
        return request

    def step(self) -> None:
        """Place one request, give some output, end or give back what is due, and fill up the queue."""
        if len(self.live) == self._seats:
            self._end(self.live.popleft())
        request = next(self.policy.candidates(MODEL, held=()))
        tenant = self._tenants[request.acquire.tenant]
        cached = request.cached_tokens((WORKER, Epoch(1)), 16)
        self.policy.placed(request, WORKER, cached)
        self._waiting[tenant.name] -= 1
        if self.random.random() < 0.05:
            self.policy.given_back(request.key)
        else:
            self.order.append(tenant.name)
            tenant.num_placed += 1
            self.live.append(Live(tenant, request, self.random.randint(*tenant.outputs)))
        for live in self.live:
            self._output(live, self.random.randint(0, live.outputs_left))
        self._refill(tenant)

    # Inside

    def _refill(self, tenant: Tenant) -> None:
        while tenant.is_backlogged and self._waiting[tenant.name] < 2:
            tokens = self.random.randint(*tenant.prompts)
            hit = self.random.random() < tenant.hit_rate
            self.ask(tenant, tokens, max(0, tokens - 16) if hit else 0)

    def _output(self, live: Live, count: int) -> None:
        live.outputs_left -= count
        live.tenant.service += COSTS.output_cost * count
        self.policy.used(WORKER, TenantId(live.tenant.name), count)

    def _end(self, live: Live) -> None:
        """One in ten prompts turns out to be cached no more: the prediction was wrong."""
        self._output(live, live.outputs_left)
        tokens = live.request.acquire.num_prompt_tokens
        cached = live.request.cached_tokens((WORKER, Epoch(1)), 16) if self.random.random() < 0.9 else 0
        live.tenant.service += COSTS.prompt_cost(tokens - cached, cached)
        self.policy.ended(live.request.key, PromptUse(tokens - cached, cached))
