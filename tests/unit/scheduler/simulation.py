"""A fleet in virtual time: simulated workers and gateways around the real core.

Workers keep the credit contract; gateways answer a placement late, with Abandon, or never. Everything random
comes from one generator.
"""

import heapq
import itertools
import random
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from scheduler.core.outputs import Output, Placed, PlacementsMade, Rejected
from scheduler.core.policy import QueuePolicy
from scheduler.core.request import Acquire
from scheduler.core.state import SchedulerCore
from services.domain.capacity import Capacity, Fits, worst_case
from services.domain.errors import ServeError
from services.domain.ids import GatewayId, RequestId, RequestKey, WorkerId
from tests.unit.scheduler.builders import acquire, core, hello, report

SUBMIT_WITHIN_S = 2.0
PREFILL_TOKENS_PER_S = 20_000.0
DECODE_TOKENS_PER_S = 200.0


@dataclass
class SimWorker:
    """One boot of a worker: starts requests in order while their worst case fits into its pool."""

    name: WorkerId
    epoch: int
    capacity: Capacity
    slots: int
    started: int = 0
    lost: int = 0
    highest: int = 0
    seen: int = 0
    free: int = 0
    done: set[int] = field(default_factory=set)
    waiting: list[tuple[Acquire, int]] = field(default_factory=list)
    running: dict[RequestKey, int] = field(default_factory=dict)
    news_started: list[RequestKey] = field(default_factory=list)
    news_ended: list[RequestKey] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.free = self.capacity.total_pages

    @property
    def granted(self) -> int:
        return self.started + self.lost + self.slots

    def account(self, seq: int) -> bool:
        """Take note of what became of a placement; False when that was known."""
        if seq <= self.seen or seq in self.done:
            return False
        self.done.add(seq)
        while self.seen + 1 in self.done:
            self.seen += 1
            self.done.remove(self.seen)
        return True

    def pages(self, asked: Acquire) -> int:
        fit = worst_case(asked.num_prompt_tokens, asked.max_output_tokens, asked.num_choices, self.capacity)
        assert isinstance(fit, Fits), "the scheduler placed what can never fit"
        return fit.num_pages


class World:
    """Core, workers, gateways and the clock."""

    def __init__(
        self,
        seed: int,
        pools: Iterable[int],
        *,
        slots: int = 3,
        policy: QueuePolicy | None = None,
        **rules: float,
    ) -> None:
        self.random = random.Random(seed)
        self.now = 0.0
        self.core: SchedulerCore = core(policy=policy, submit_within_s=SUBMIT_WITHIN_S, **rules)
        self.workers: dict[WorkerId, SimWorker] = {}
        self.asked: dict[RequestKey, tuple[GatewayId, Acquire, float]] = {}
        self.answers: Counter[RequestKey] = Counter()
        self.refused: dict[RequestKey, ServeError] = {}
        self.placed: list[RequestKey] = []
        self.placed_at: dict[RequestKey, float] = {}
        self.placed_on: dict[RequestKey, WorkerId] = {}
        self.forsaken: set[RequestKey] = set()
        """Keys that nobody waits for any more."""
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._numbers = itertools.count()
        self._pools = {WorkerId(f"worker-{i}"): pages for i, pages in enumerate(pools)}
        self._slots = slots
        for name in self._pools:
            self.connect_worker(name, 1)

    # What happens

    def ask(self, gateway: str, asked: Acquire) -> None:
        name = GatewayId(gateway)
        self.asked[asked.key] = name, asked, self.now
        self.handle(self.core.acquire(name, asked, self.now))

    def abandon(self, key: RequestKey) -> None:
        self.forsaken.add(key)
        self.handle(self.core.abandon(key, None))

    def kill_gateway(self, gateway: str) -> None:
        mine = {key for key, (name, _, _) in self.asked.items() if name == gateway}
        self.forsaken |= mine
        self.handle(self.core.gateway_gone(GatewayId(gateway)))
        for worker in self.workers.values():
            for key in [key for key in worker.running if key in mine]:
                self._end(worker, key)
            for entry in [entry for entry in worker.waiting if entry[0].key in mine]:
                worker.waiting.remove(entry)
                worker.lost += 1
                worker.account(entry[1])
                worker.news_ended.append(entry[0].key)

    def kill_worker(self, name: WorkerId) -> None:
        """The worker dies, its requests come back as further attempts, and it restarts after 3 s."""
        worker = self.workers.pop(name, None)
        if worker is None:
            return
        self.handle(self.core.worker_gone(name, self.now))
        lost = [*worker.running, *(asked.key for asked, _ in worker.waiting)]
        for key in lost:
            self._again(key, name)
        self.later(3.0, lambda: self.connect_worker(name, worker.epoch + 1))

    def connect_worker(self, name: WorkerId, epoch: int) -> None:
        said = hello(name, epoch=epoch, pages=self._pools[name], max_sequences=8)
        self.workers[name] = SimWorker(name, epoch, said.capacity, self._slots)
        self.handle(self.core.worker_connected(said, self.now))
        self._report(name, epoch)

    # The clock

    def later(self, delay_s: float, what: Callable[[], None]) -> None:
        heapq.heappush(self._events, (self.now + delay_s, next(self._numbers), what))

    def run_until(self, end: float) -> None:
        """Let everything happen that is due until `end`."""
        self.handle(self.core.place(self.now))
        spins = 0
        while True:
            wake = self.core.next_wake()
            event = self._events[0][0] if self._events else None
            due = min((at for at in (wake, event) if at is not None), default=end)
            if due >= end:
                break
            spins = 0 if due > self.now else spins + 1
            assert spins < 1000, "it wakes again and again and nothing changes"
            self.now = max(self.now, due)
            while self._events and self._events[0][0] <= self.now:
                heapq.heappop(self._events)[2]()
            self.handle(self.core.place(self.now))
        self.now = end

    def handle(self, outputs: Iterable[Output]) -> None:
        for output in outputs:
            if isinstance(output, Placed):
                self._on_placed(output)
            elif isinstance(output, Rejected):
                self.answers[output.acquire.key] += 1
                self.refused[output.acquire.key] = output.error
            elif isinstance(output, PlacementsMade) and output.worker in self.workers:
                worker = self.workers[output.worker]
                for seq in output.abandoned:
                    self._lose(worker, seq)

    # Inside

    def _on_placed(self, output: Placed) -> None:
        worker, key = self.workers[output.worker], output.acquire.key
        assert output.epoch == worker.epoch
        assert output.seq == worker.highest + 1, "numbered without gaps"
        outstanding = self.core.fleet.workers[output.worker].outstanding
        num_beyond = sum(one.beyond_grants for one in outstanding.values())
        assert num_beyond <= 1, "others are asked to yield to one at a time"
        is_beyond = outstanding[key].beyond_grants
        assert is_beyond or output.seq <= worker.granted, "placed beyond the credits"
        assert key not in self.forsaken, "placed for nobody"
        worker.highest = output.seq
        self.answers[key] += 1
        self.placed.append(key)
        self.placed_at[key] = self.now
        self.placed_on[key] = output.worker
        self.later(SUBMIT_WITHIN_S, lambda: self._lose(worker, output.seq))
        fate = self.random.random()
        if fate < 0.9:
            self.later(self.random.uniform(0, 0.05), lambda: self._submit(worker, output))
        elif fate < 0.95:
            self.forsaken.add(key)
            self.later(0.01, lambda: self.handle(self.core.abandon(key, output.seq)))
        else:
            self.forsaken.add(key)

    def _submit(self, worker: SimWorker, output: Placed) -> None:
        if self.workers.get(worker.name) is not worker:
            self._again(output.acquire.key, worker.name)
        elif output.acquire.key not in self.forsaken and worker.account(output.seq):
            worker.waiting.append((output.acquire, output.seq))
            self._start(worker)

    def _lose(self, worker: SimWorker, seq: int) -> None:
        if worker.account(seq):
            worker.lost += 1
            self._report_now(worker)

    def _start(self, worker: SimWorker) -> None:
        while worker.waiting and len(worker.running) < worker.capacity.max_sequences:
            asked, _ = worker.waiting[0]
            pages = worker.pages(asked)
            if pages > worker.free:
                break
            worker.waiting.pop(0)
            worker.free -= pages
            worker.running[asked.key] = pages
            worker.started += 1
            worker.news_started.append(asked.key)
            time_s = (
                asked.num_prompt_tokens / PREFILL_TOKENS_PER_S + asked.max_output_tokens / DECODE_TOKENS_PER_S
            )
            self.later(time_s, lambda key=asked.key: self._end(worker, key))  # type: ignore[misc]
        self._report_now(worker)

    def _end(self, worker: SimWorker, key: RequestKey) -> None:
        if key in worker.running:
            worker.free += worker.running.pop(key)
            worker.news_ended.append(key)
            self._start(worker)

    def _again(self, key: RequestKey, avoid: WorkerId) -> None:
        if key in self.forsaken:
            return
        gateway, asked, since = self.asked[key]
        self.ask(
            gateway,
            acquire(
                key.request_id,
                attempt=key.attempt + 1,
                tokens=asked.num_prompt_tokens,
                output=asked.max_output_tokens,
                band=asked.band,
                avoid=[avoid] if len(self._pools) > 1 else [],
                waited_s=self.now - since,
            ),
        )

    def _report(self, name: WorkerId, epoch: int) -> None:
        worker = self.workers.get(name)
        if worker is not None and worker.epoch == epoch:
            self._report_now(worker)
            self.later(1.0, lambda: self._report(name, epoch))

    def _report_now(self, worker: SimWorker) -> None:
        if self.workers.get(worker.name) is not worker:
            return
        started, ended = worker.news_started, worker.news_ended
        worker.news_started, worker.news_ended = [], []
        said = report(
            granted=worker.granted,
            seen=worker.seen,
            startable=worker.free,
            waiting_tokens=sum(asked.num_prompt_tokens for asked, _ in worker.waiting),
            running=len(worker.running),
            waiting=len(worker.waiting),
            started=started,
            ended=ended,
        )
        self.handle(self.core.report(worker.name, said, self.now))


def last_attempts(world: World) -> dict[RequestId, RequestKey]:
    """Return the newest key of every request."""
    newest: dict[RequestId, RequestKey] = {}
    for key in world.asked:
        if key.attempt >= newest.get(key.request_id, key).attempt:
            newest[key.request_id] = key
    return newest
