"""What the step loop does while the device computes: it tells the step before, and changes nothing else."""

import queue
import threading
from collections.abc import Callable, Iterator

import pytest

from services.domain.generation import Limits
from tests.fakes.engine_harness import (
    EngineHarness,
    drawn,
    engine_config,
    kv_checking_config,
    prompt,
    submit,
    tokens_alone,
)
from tests.fakes.kv_checking_executor import KvCheckingExecutor
from worker.engine.batch import Batch, StepResult
from worker.engine.batch_builder import build_batch
from worker.engine.commands import Cancel, Command, SetIdleTtl, SnapshotKv
from worker.engine.kv_events import Removed, Stored
from worker.engine.outputs import Ended, StepOutputs
from worker.engine.step_plan import StepPlan
from worker.engine.step_scheduler import StepScheduler
from worker.executors.base import ExecutorFault, ModelProfile, nothing
from worker.step_loop import StepLoop

WAIT_S = 60


class LoggingExecutor:
    """Notes when each step is launched, and what happens before its result is there."""

    def __init__(self, log: list[object]) -> None:
        self.inner = KvCheckingExecutor(kv_checking_config(16))
        self.log = log
        self.num_launched = 0
        self.at_launch: dict[int, Callable[[], None]] = {}
        """By step, from 1: called when it has been launched and the step before told."""

    @property
    def profile(self) -> ModelProfile:
        return self.inner.profile

    def allocate(self, num_pages: int) -> None:
        self.inner.allocate(num_pages)

    def execute(self, batch: Batch, meanwhile: Callable[[], None] = nothing) -> StepResult:
        self.num_launched += 1
        self.log.append(("launched", self.num_launched))
        meanwhile()
        self.at_launch.pop(self.num_launched, nothing)()
        result = self.inner.execute(batch)
        self.log.append(("computed", self.num_launched))
        return result

    def close(self) -> None:
        self.inner.close()


class Running:
    """A loop over a logging executor. Steps with rows are numbered from 1 in the log."""

    def __init__(self, num_pages: int = 64) -> None:
        self.log: list[object] = []
        self.executor = LoggingExecutor(self.log)
        self.outputs: list[StepOutputs] = []
        self.over: queue.Queue[object] = queue.Queue()
        config = engine_config(num_pages=num_pages)
        self.executor.allocate(config.num_pages)
        self.loop = StepLoop(
            StepScheduler(config), self.executor, on_step=self._on_step, on_fault=self.over.put
        )
        self._num_told = 0

    def run(self, *commands: Command) -> None:
        """Run until what is submitted here has ended, and stop."""
        for command in commands:
            self.loop.post(command)
        self.loop.start()
        fault = self.over.get(timeout=WAIT_S)
        assert isinstance(fault, str), fault
        assert self.loop.stop(WAIT_S)

    def _on_step(self, outputs: StepOutputs) -> None:
        self.outputs.append(outputs)
        if outputs.stats.num_rows:
            self._num_told += 1
            self.log.append(("told", self._num_told))
        if outputs.stats.live_requests == 0 and any(isinstance(event, Ended) for event in outputs.events):
            self.over.put("all have ended")


@pytest.fixture
def running() -> Iterator[Running]:
    engine = Running()
    yield engine
    assert engine.loop.stop(WAIT_S)


def test_each_step_is_launched_before_the_one_before_it_is_told(running: Running) -> None:
    running.run(submit(1, prompt(20), max_output=40), submit(2, prompt(70, 2), max_output=40))
    last = running.executor.num_launched
    assert last > 40
    for step in range(1, last):
        assert running.log.index(("launched", step + 1)) < running.log.index(("told", step))
        assert running.log.index(("told", step)) < running.log.index(("computed", step + 1))
    assert running.log[-1] == ("told", last)


def test_what_is_told_comes_in_order_and_once(running: Running) -> None:
    running.run(*(submit(i, prompt(11 * i, i), max_output=30) for i in range(1, 6)))
    steps = [outputs.stats.step for outputs in running.outputs]
    assert steps == sorted(set(steps))
    engine = EngineHarness()
    for outputs in running.outputs:
        engine.record(outputs)
    for i in range(1, 6):
        assert engine.tokens[i, 0] == tokens_alone(prompt(11 * i, i), max_output=30)


def test_a_cancel_that_comes_while_a_step_computes_acts_before_the_next_plan(running: Running) -> None:
    running.executor.at_launch[10] = lambda: running.loop.post(Cancel(1))
    running.run(submit(1, prompt(20), max_output=1000))
    assert running.executor.num_launched == 10


def test_a_snapshot_comes_after_all_that_was_told_before(running: Running) -> None:
    seen: list[tuple[tuple[Stored, ...], list[StepOutputs]]] = []

    def reply(blocks: tuple[Stored, ...]) -> None:
        seen.append((blocks, list(running.outputs)))

    # The 13th token of the output completes a page: its step is what has just been computed.
    running.executor.at_launch[13] = lambda: running.loop.post(SnapshotKv(reply))
    running.run(submit(1, prompt(20), max_output=40))
    ((blocks, told),) = seen
    events = [event for outputs in told for event in outputs.kv_events]
    assert len(blocks) == 2
    assert {block.hash for block in blocks} == {event.hash for event in events if isinstance(event, Stored)}


def test_a_fault_of_the_next_step_does_not_hold_back_what_was_computed(running: Running) -> None:
    def fail() -> None:
        raise ExecutorFault("the device is gone")

    running.executor.at_launch[5] = fail
    running.loop.post(submit(1, prompt(20), max_output=40))
    running.loop.start()
    assert isinstance(running.over.get(timeout=WAIT_S), ExecutorFault)
    assert ("told", 4) in running.log
    assert sum(len(outputs.tokens.token_ids) for outputs in running.outputs) == 4


def test_stopping_hands_over_what_was_computed(running: Running) -> None:
    stopping = threading.Event()

    def stop() -> None:
        # From a thread of its own: whoever stops waits for the loop.
        threading.Thread(target=lambda: running.loop.stop(WAIT_S)).start()
        while not running.loop._is_stopping:
            stopping.wait(0.001)

    running.executor.at_launch[6] = stop
    running.loop.post(submit(1, prompt(20), max_output=40))
    running.loop.start()
    running.loop._thread.join(WAIT_S)
    assert running.log[-1] == ("told", 6)


# -- planning on ----------------------------------------------------------------------------------------


def test_a_step_is_planned_before_the_last_is_told_when_all_go_on() -> None:
    engine = EngineHarness(plans_on=True)
    engine.post(*(submit(i, prompt(9 + 5 * i, i), max_output=40) for i in range(4)))
    engine.run()
    # Not after the few steps in which requests started or ended, nor while a prompt was still computed.
    assert engine.num_planned_on >= 30
    for i in range(4):
        assert engine.tokens[i, 0] == tokens_alone(prompt(9 + 5 * i, i), max_output=40)
    engine.assert_idle()


def test_planning_on_tells_the_same_in_the_same_order() -> None:
    """With a pool so small that pages are evicted for those which grow."""
    told = []
    for plans_on in (False, True):
        engine = EngineHarness(engine_config(num_pages=20, max_sequences=3), plans_on=plans_on)
        engine.post(*(submit(i, prompt(30, i), max_output=60) for i in range(12)))
        engine.run()
        engine.assert_idle()
        removed = sum(isinstance(event, Removed) for event in engine.kv_events)
        assert removed > 0
        told.append((dict(engine.tokens), engine.reasons, dict(engine.totals), engine.kv_events))
        assert bool(engine.num_planned_on) == plans_on
    assert told[0] == told[1]


@pytest.mark.parametrize("num_pages", [9, 12, 30])
def test_a_step_stores_no_block_that_it_then_removes(num_pages: int) -> None:
    engine = EngineHarness(engine_config(num_pages=num_pages, max_sequences=4), plans_on=True)
    engine.post(*(submit(i, prompt(20, i), max_output=50) for i in range(10)))
    while engine.scheduler.num_live or not engine.ended:
        num_events = len(engine.kv_events)
        engine.step()
        stored = set()
        for event in engine.kv_events[num_events:]:
            if isinstance(event, Stored):
                stored.add(event.hash)
            else:
                assert isinstance(event, Removed)
                assert event.hash not in stored
    engine.assert_idle()


def computed(engine: EngineHarness) -> tuple[StepScheduler, StepPlan]:
    """Compute a step of a request that generates, and take it in without telling it."""
    scheduler = engine.scheduler
    plan = scheduler.plan(engine.now)
    scheduler.take_in(plan, engine.executor.execute(build_batch(plan)), engine.now)
    return scheduler, plan


def test_what_may_end_or_start_somebody_is_planned_after_the_last_step_is_told() -> None:
    engine = EngineHarness()
    engine.post(submit(1, prompt(20), max_output=9, limits=Limits(total_s=5.0)))
    engine.steps(3)
    scheduler, plan = computed(engine)
    assert scheduler.plan_on(5.1) is None, "a limit has run out"
    engine.post(Cancel(99))
    assert scheduler.plan_on(engine.now) is None, "a command waits"
    engine.record(scheduler.tell(plan, engine.now))
    engine.steps(4)
    scheduler, plan = computed(engine)
    assert scheduler.plan_on(engine.now) is None, "it has ended"
    engine.record(scheduler.tell(plan, engine.now))
    assert len(engine.tokens[1, 0]) == 9
    engine.assert_idle()


def test_a_cached_page_whose_time_is_over_goes_with_a_whole_plan() -> None:
    engine = EngineHarness()
    engine.post(SetIdleTtl(3.0), submit(1, prompt(40), max_output=2))
    engine.run()
    assert engine.scheduler.pool.num_cached == 2
    engine.post(submit(2, prompt(20, 2), max_output=9))
    engine.steps(3)
    scheduler, plan = computed(engine)
    assert scheduler.plan_on(engine.now + 4.0) is None
    engine.record(scheduler.tell(plan, engine.now))
    engine.now += 4.0
    engine.step()
    assert engine.scheduler.pool.num_cached == 0
    engine.run()


def test_a_row_whose_page_cannot_be_had_is_not_planned_on() -> None:
    """Who would have to yield is decided by the plan that tells it."""
    executor = KvCheckingExecutor(kv_checking_config(16))
    engine = EngineHarness(engine_config(num_pages=6, headroom_tokens=0), executor, plans_on=True)
    engine.post(submit(1, prompt(30), max_output=60), submit(2, prompt(30, 2), max_output=60))
    engine.run()
    assert engine.totals["preemptions"] > 0
    for handle, seed in ((1, 0), (2, 2)):
        assert engine.tokens[handle, 0] == drawn(executor, prompt(30, seed), 0, 60)
    engine.assert_idle()
