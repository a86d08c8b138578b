"""One worker and the scheduler in virtual time: the real cores of both, only the model is a formula.

`SchedulerCore` decides who is placed, `StepScheduler` what each step computes, and a step takes what the sim
executor's cost model says. Messages take no time, the kvmanager is the worker's own pool, and no clock is
read, so a run is the same on every machine. Knows nothing of processes or streams.
"""

import heapq
import itertools
from collections import defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

import numpy as np

from scheduler.core.credits import Report, WorkerHello
from scheduler.core.outputs import AskMatch, Output, Placed, Ranks
from scheduler.core.policy import QueuePolicy
from scheduler.core.request import Acquire, Match, PromptUse, TenantUse
from scheduler.core.rules import Rules
from scheduler.core.state import SchedulerCore
from services.domain.block_hash import BLOCK_SIZE, hash_blocks
from services.domain.capacity import Capacity
from services.domain.generation import Band, Limits, RequestClass, SamplingParams, StopParams
from services.domain.ids import (
    BlockHash,
    Epoch,
    GatewayId,
    Namespace,
    RequestId,
    RequestKey,
    TenantId,
    WorkerId,
)
from services.domain.miss_reason import MissReason
from worker.engine.batch import StepResult
from worker.engine.commands import SetRanks, Submit
from worker.engine.config import EngineConfig
from worker.engine.outputs import Ended, StepOutputs
from worker.engine.step_plan import StepPlan
from worker.engine.step_scheduler import StepScheduler
from worker.executors.sim import CostModel

GATEWAY, WORKER, MODEL = GatewayId("gateway-0"), WorkerId("worker-0"), "m"
LONG_FROM_TOKENS = 2048
OUTPUT_COST, CACHED_COST = 2.0, 0.1
UNBOUNDED = Rules(max_waiting=10**9, max_waiting_tokens=10**12, boot_grace_s=0.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Ask:
    """One request."""

    tenant: str
    num_prompt_tokens: int
    num_output_tokens: int
    prefix_tokens: int = 0
    """First tokens of the prompt that all requests of the tenant share."""
    weight: float = 1.0
    band: Band = Band.STANDARD


@dataclass(slots=True)
class Served:
    """What became of a request. Times in virtual seconds."""

    ask: Ask
    arrived: float
    first_token: float | None = None
    ended: float | None = None


@dataclass(slots=True)
class Used:
    """What a tenant had, in tokens."""

    uncached: int = 0
    cached: int = 0
    output: int = 0

    @property
    def service(self) -> float:
        return self.uncached + CACHED_COST * self.cached + OUTPUT_COST * self.output


@dataclass(slots=True)
class World:
    """Scheduler, worker and the time.

    Args:
        on_placed: Called with every request that was placed; may ask for more.
    """

    policy: QueuePolicy
    rules: Rules = UNBOUNDED
    num_pages: int = 8192
    seats: int = 32
    chunk: int = 512
    cost: CostModel = field(default_factory=CostModel)
    on_placed: Callable[[Ask], Iterable[Ask]] = lambda ask: ()
    now: float = 0.0
    requests: list[Served] = field(default_factory=list)
    used: defaultdict[str, Used] = field(default_factory=lambda: defaultdict(Used))
    full_steps: list[float] = field(default_factory=list)
    """Seconds of the steps with a whole chunk of prefill."""
    core: SchedulerCore = field(init=False)
    engine: StepScheduler = field(init=False)
    _coming: list[tuple[float, int, Ask]] = field(default_factory=list)
    _numbers: "itertools.count[int]" = field(default_factory=itertools.count)
    _prefixes: dict[str, list[BlockHash]] = field(default_factory=dict)
    _submitted: int = 0
    _reports: int = 0

    def __post_init__(self) -> None:
        context = 8192
        self.core = SchedulerCore(self.rules, self.policy, 0.0)
        self.core.set_matching(True)
        self.engine = StepScheduler(
            EngineConfig(
                num_pages=self.num_pages,
                max_context_tokens=context,
                vocab_size=1 << 30,
                max_sequences=self.seats,
                max_step_tokens=self.chunk + self.seats,
                max_prefill_tokens=self.chunk,
                max_waiting=10**6,
            )
        )
        capacity = Capacity(
            max_context_tokens=context, total_pages=self.num_pages, page_size=16, max_sequences=self.seats
        )
        hello = WorkerHello(
            worker=WORKER,
            epoch=Epoch(1),
            address="127.0.0.1:1",
            model=MODEL,
            revision="r",
            namespace=Namespace("n"),
            capacity=capacity,
            max_step_tokens=self.chunk,
            max_prefill_tokens=self.chunk,
        )
        self._handle(self.core.worker_connected(hello, 0.0))
        self._apply(self.engine.plan(0.0))

    def ask(self, at: float, ask: Ask) -> None:
        """Let a request arrive at `at`."""
        heapq.heappush(self._coming, (at, next(self._numbers), ask))

    def run_until(self, end: float, done: Callable[[], bool] = lambda: False) -> None:
        """Let steps and arrivals happen until `end`, until `done`, or until nothing is left."""
        while self.now < end and not done():
            self._arrive(self.now)
            plan = self.engine.plan(self.now)
            if plan.num_rows:
                seconds = self._seconds(plan)
                if plan.num_prefill_tokens == self.chunk:
                    self.full_steps.append(seconds)
                self._arrive(self.now + seconds)
                self.now += seconds
            self._apply(plan)
            if not plan.num_rows and not self.engine.num_live:
                if not self._coming:
                    return
                self.now = max(self.now, self._coming[0][0])

    # Inside

    def _arrive(self, until: float) -> None:
        while self._coming and self._coming[0][0] <= until:
            at, _, ask = heapq.heappop(self._coming)
            self._acquire(ask, at)
            self._place(at)

    def _acquire(self, ask: Ask, at: float) -> None:
        index = len(self.requests)
        self.requests.append(Served(ask, at))
        long = ask.num_prompt_tokens >= LONG_FROM_TOKENS
        acquire = Acquire(
            key=RequestKey(RequestId(str(index)), 1),
            tenant=TenantId(ask.tenant),
            band=ask.band,
            request_class=RequestClass.LONG if long else RequestClass.SHORT,
            model=MODEL,
            num_prompt_tokens=ask.num_prompt_tokens,
            max_output_tokens=ask.num_output_tokens,
            block_hashes=tuple(self._prefix(ask)),
            weight=ask.weight,
        )
        self._handle(self.core.acquire(GATEWAY, acquire, at))

    def _place(self, at: float) -> None:
        while outputs := [o for o in self.core.place(at) if isinstance(o, Placed | AskMatch)]:
            for output in outputs:
                if isinstance(output, AskMatch):
                    hashes = output.acquire.block_hashes
                    tokens = BLOCK_SIZE * len(self.engine.pool.match(hashes))
                    match = Match(
                        at=at,
                        tokens={(WORKER, Epoch(1)): tokens},
                        miss_reason=MissReason.NONE,
                        first_miss_token=tokens,
                    )
                    self.core.match_answered(output.acquire.key, match)
                else:
                    self._submit(output, at)

    def _submit(self, output: Placed, at: float) -> None:
        index = int(output.acquire.key.request_id)
        ask = self.requests[index].ask
        own = ask.num_prompt_tokens - ask.prefix_tokens
        self._submitted += 1
        submit = Submit(
            handle=index,
            key=output.acquire.key,
            tenant=TenantId(ask.tenant),
            band=ask.band,
            prompt_ids=self._prefix_ids(ask) + [index + 1] * own,
            sampling=SamplingParams(),
            stop=StopParams(max_output_tokens=ask.num_output_tokens),
            limits=Limits(),
        )
        self.engine.post(submit)
        for more in self.on_placed(ask):
            self._acquire(more, at)

    def _apply(self, plan: StepPlan) -> None:
        count = plan.num_decodes + sum(row.samples for row in plan.prefills)
        result = StepResult(
            token_ids=np.zeros(count, np.int32),
            failed=np.zeros(count, np.bool_),
            logprobs=np.zeros(count, np.float32),
            top=(None,) * count,
        )
        outputs = self.engine.apply(plan, result if plan.num_rows else None, self.now)
        self._take(outputs)
        self._handle(self.core.report(WORKER, self._report(outputs), self.now))
        self._place(self.now)

    def _take(self, outputs: StepOutputs) -> None:
        for handle in outputs.tokens.handles:
            if self.requests[handle].first_token is None:
                self.requests[handle].first_token = self.now
        for event in outputs.ended:
            self.requests[event.handle].ended = self.now
        for tenant, use in outputs.tenant_use.items():
            self.used[tenant] = Used(use.uncached_tokens, use.cached_tokens, use.output_tokens)

    def _report(self, outputs: StepOutputs) -> Report:
        self._reports += 1
        stats = outputs.stats
        prompts = {}
        for one in outputs.ended:
            assert isinstance(one, Ended), "nothing is refused here"
            cached = one.usage.cached_tokens
            prompts[one.key] = PromptUse(one.usage.prompt_tokens - cached, cached)
        return Report(
            seq=self._reports,
            placements_seen=self._submitted,
            granted=stats.granted,
            startable_pages=stats.startable_pages,
            free_pages=stats.free_pages,
            reclaimable_pages=stats.cached_pages,
            waiting_tokens=stats.waiting_tokens,
            running=stats.running,
            waiting=stats.waiting,
            started=outputs.started,
            ended=tuple(prompts),
            tenant_use={
                tenant: TenantUse(use.uncached_tokens, use.cached_tokens, use.output_tokens)
                for tenant, use in outputs.tenant_use.items()
            },
            prompts=prompts,
        )

    def _handle(self, outputs: Iterable[Output]) -> None:
        for output in outputs:
            if isinstance(output, Ranks):
                self.engine.post(SetRanks(output.over_share))

    def _seconds(self, plan: StepPlan) -> float:
        return self.cost.seconds(
            num_prefill_tokens=plan.num_prefill_tokens,
            num_decodes=plan.num_decodes,
            decode_context_tokens=int(plan.decodes.positions.sum()) + plan.num_decodes,
        )

    def _prefix(self, ask: Ask) -> list[BlockHash]:
        """Return the names of the shared prefix; what follows is never seen again and needs none."""
        if ask.tenant not in self._prefixes:
            self._prefixes[ask.tenant] = list(hash_blocks(self._prefix_ids(ask), salt=b""))
        return self._prefixes[ask.tenant]

    def _prefix_ids(self, ask: Ask) -> list[int]:
        return [1_000_000 + sum(ask.tenant.encode())] * ask.prefix_tokens
