"""The step loop's thread."""

import queue
import threading
from collections.abc import Callable, Iterator

import pytest

from services.domain.generation import Limits
from tests.fakes.engine_harness import engine_config, prompt, submit
from worker.engine.admission import Admission, Admissions
from worker.engine.commands import Cancel, Drain, SetSlices
from worker.engine.outputs import Accepted, ChoiceEnded, Ended, Event, Refused, Started, StepOutputs
from worker.engine.step_scheduler import StepScheduler
from worker.executors.base import ExecutorFault
from worker.executors.sim import SimConfig, SimExecutor, SimFaults
from worker.step_loop import StepLoop

WAIT_S = 20


class Running:
    """A started loop, its executor and everything it has said."""

    def __init__(self, *, time_scale: float = 0.0, clock: Callable[[], float] | None = None) -> None:
        self.faults = SimFaults()
        self.executor = SimExecutor(SimConfig(vocab_size=1000, time_scale=time_scale), self.faults)
        config = engine_config()
        self.executor.allocate(config.num_pages)
        self.outputs: queue.Queue[StepOutputs] = queue.Queue()
        self.fault: queue.Queue[BaseException] = queue.Queue()
        options = {} if clock is None else {"clock": clock}
        self.loop = StepLoop(
            StepScheduler(config),
            self.executor,
            on_step=self.outputs.put,
            on_fault=self.fault.put,
            **options,
        )
        self.loop.start()

    def until(self, wanted: type[Event], handle: int) -> list[StepOutputs]:
        """Take outputs until one holds the event."""
        seen: list[StepOutputs] = []
        while True:
            seen.append(self.outputs.get(timeout=WAIT_S))
            if any(isinstance(e, wanted) and e.handle == handle for e in seen[-1].events):
                return seen


@pytest.fixture
def running() -> Iterator[Running]:
    engine = Running()
    yield engine
    engine.executor.close()
    assert engine.loop.stop(WAIT_S)


def test_the_first_outputs_come_at_once_with_the_grants(running: Running) -> None:
    assert running.outputs.get(timeout=WAIT_S).stats.granted == 8


def test_a_request_is_told_in_order_and_once(running: Running) -> None:
    running.loop.post(submit(1, prompt(20), max_output=5))
    seen = running.until(Ended, 1)
    events = [event for outputs in seen for event in outputs.events]
    assert [type(event) for event in events] == [Accepted, Started, ChoiceEnded, Ended]
    positions = [position for outputs in seen for position in outputs.tokens.first_positions]
    assert positions == [0, 1, 2, 3, 4]
    assert [key for outputs in seen for key in outputs.started] == [events[0].key]  # type: ignore[union-attr]
    assert running.loop.stuck_s() == 0.0


def test_commands_of_many_threads_all_arrive(running: Running) -> None:
    def post(first: int) -> None:
        for handle in range(first, first + 25):
            running.loop.post(submit(handle, prompt(10, handle), max_output=2))

    threads = [threading.Thread(target=post, args=(first,)) for first in range(0, 100, 25)]
    for thread in threads:
        thread.start()
    ended: set[int] = set()
    while len(ended) < 100:
        outputs = running.outputs.get(timeout=WAIT_S)
        ended |= {event.handle for event in outputs.events if isinstance(event, Ended)}
    for thread in threads:
        thread.join()


def test_a_limit_wakes_a_sleeping_loop(running: Running) -> None:
    running.loop.post(submit(1, prompt(40), max_output=4))
    running.loop.post(SetSlices({submit(1, [1]).tenant: 3}))
    running.until(Ended, 1)
    # Its tenant's slice is taken, so nothing can run: only the limit ends it.
    running.loop.post(submit(2, prompt(40), max_output=4))
    running.loop.post(SetSlices({submit(1, [1]).tenant: 0}))
    running.loop.post(submit(3, prompt(40), tenant="b", max_output=4, limits=Limits(total_s=0.001)))
    running.until(Ended, 3)


@pytest.mark.failure("B008")
def test_late_cancels_change_nothing(running: Running) -> None:
    running.loop.post(submit(1, prompt(20), max_output=2))
    running.until(Ended, 1)
    running.loop.post(Cancel(1))
    running.loop.post(submit(2, prompt(20), max_output=2))
    seen = running.until(Ended, 2)
    assert sum(outputs.stats.unknown_cancels for outputs in seen) == 1


@pytest.mark.failure("B164")
def test_a_crash_ends_the_loop_with_its_cause(running: Running) -> None:
    running.faults.crash = True
    running.loop.post(submit(1, prompt(20)))
    assert isinstance(running.fault.get(timeout=WAIT_S), ExecutorFault)
    assert running.loop.stop(WAIT_S)


@pytest.mark.failure("B164")
def test_a_stalled_device_shows_as_age_and_an_idle_loop_does_not() -> None:
    now = 100.0
    engine = Running(clock=lambda: now)
    engine.outputs.get(timeout=WAIT_S)
    assert engine.loop.stuck_s() == 0.0
    engine.faults.running.clear()
    engine.loop.post(submit(1, prompt(20), max_output=2))
    engine.loop.post(Drain())
    deadline = threading.Event()
    while not engine.loop._working_since:
        deadline.wait(0.001)
    now = 107.0
    assert engine.loop.stuck_s() == 7.0
    engine.faults.running.set()
    engine.until(Ended, 1)
    while engine.loop.stuck_s():
        deadline.wait(0.001)
    assert engine.loop.stop(WAIT_S)


@pytest.mark.failure("B164", "B053")
def test_a_scheduler_that_starts_nobody_although_nobody_runs_shows_as_age(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now = 100.0
    engine = Running(clock=lambda: now)
    engine.outputs.get(timeout=WAIT_S)
    with monkeypatch.context() as wrong:
        wrong.setattr(Admission, "admit", lambda *args: Admissions(waits_for_room=True))
        engine.loop.post(submit(1, prompt(20), max_output=2))
        deadline = threading.Event()
        while not engine.loop._working_since:
            deadline.wait(0.001)
        now = 107.0
        assert engine.loop.stuck_s() == 7.0
        # Another that comes is no progress.
        engine.loop.post(submit(2, prompt(20), max_output=2))
        now = 109.0
        assert engine.loop.stuck_s() == 9.0
    engine.loop.post(submit(3, prompt(20), max_output=2))
    engine.until(Ended, 3)
    while engine.loop.stuck_s():
        deadline.wait(0.001)
    assert engine.loop.stop(WAIT_S)


def test_a_refusal_is_told_without_a_step(running: Running) -> None:
    running.loop.post(submit(1, []))
    outputs = running.until(Refused, 1)[-1]
    assert outputs.stats.num_rows == 0
    assert [refusal.handle for refusal in outputs.ended] == [1]
