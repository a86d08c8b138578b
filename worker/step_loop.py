"""The worker's heartbeat: one plain thread that plans, executes and applies steps.

The only thread that touches the engine. Commands come in through `post` from any thread; everything goes out
through one callback, called in this thread, once per step. Knows nothing of asyncio, streams or devices.
"""

import threading
import time
from collections import deque
from collections.abc import Callable
from math import inf

from worker.engine.batch_builder import build_batch
from worker.engine.commands import Command
from worker.engine.outputs import StepOutputs
from worker.engine.step_scheduler import StepScheduler
from worker.executors.base import Executor


class StepLoop:
    """Runs a scheduler's steps on an executor until told to stop, or until something breaks."""

    def __init__(
        self,
        scheduler: StepScheduler,
        executor: Executor,
        *,
        on_step: Callable[[StepOutputs], None],
        on_fault: Callable[[BaseException], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Args:
        on_step: Given the outputs of each step that has any; the first one comes at once.
        on_fault: Given what ended the loop, unless `stop` did. All live requests are lost.
        """
        self._scheduler = scheduler
        self._executor = executor
        self._on_step = on_step
        self._on_fault = on_fault
        self._clock = clock
        self._commands: deque[Command] = deque()
        self._wake = threading.Condition()
        self._is_stopping = False
        self._may_go_on = True
        """The last step computed something, so the next plan may differ without any command."""
        self._working_since: float | None = None
        self._thread = threading.Thread(target=self._run, name="step-loop", daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def post(self, command: Command) -> None:
        """Hand a command over, from any thread; it acts before the next step is planned."""
        with self._wake:
            self._commands.append(command)
            self._wake.notify()

    def stop(self, timeout_s: float | None = None) -> bool:
        """End the loop after the step that runs, from any thread but its own; say whether it has ended."""
        with self._wake:
            self._is_stopping = True
            self._wake.notify()
        self._thread.join(timeout_s)
        return not self._thread.is_alive()

    @property
    def is_alive(self) -> bool:
        return self._thread.is_alive()

    def stuck_s(self) -> float:
        """Return seconds since the last finished step while there is work; 0 when idle. Any thread."""
        since = self._working_since
        return 0.0 if since is None else max(0.0, self._clock() - since)

    def _run(self) -> None:
        try:
            self._iterate(is_first=True)
            while self._take_commands():
                self._iterate()
        except Exception as fault:
            # The edge of the engine: nothing of it can be trusted after an unexpected error.
            self._on_fault(fault)

    def _iterate(self, *, is_first: bool = False) -> None:
        scheduler = self._scheduler
        # 2. Plan: ends, starts, preemptions, rows.
        plan = scheduler.plan(self._clock())
        self._may_go_on = plan.num_rows > 0
        if not plan.num_rows:
            # 3. Nothing to compute: tell what there is to tell (the first time also that we are here).
            outputs = scheduler.apply(plan, None, self._clock())
            if plan.has_outputs or is_first:
                self._on_step(outputs)
            return
        # 4. Execute. From here until `apply` the engine does not change.
        started = self._clock()
        if self._working_since is None:
            self._working_since = started
        result = self._executor.execute(build_batch(plan))
        finished = self._clock()
        # 5. Apply the result and hand out all that came of it.
        outputs = scheduler.apply(plan, result, finished, finished - started)
        self._working_since = finished if scheduler.num_live else None
        self._on_step(outputs)

    def _take_commands(self) -> bool:
        """Give what has been asked for meanwhile to the scheduler; sleep when there is nothing to do.

        Returns False when woken to stop.
        """
        # 1. After a plan without rows only a command or a limit can change anything.
        with self._wake:
            while not (self._commands or self._is_stopping or self._may_go_on):
                # Work that could run and does not is a fault of ours: then the age goes on growing.
                if not self._scheduler.is_wedged:
                    self._working_since = None
                elif self._working_since is None:
                    self._working_since = self._clock()
                deadline = self._scheduler.next_deadline
                left = inf if deadline is None else deadline - self._clock()
                if left <= 0:
                    break
                self._wake.wait(None if left == inf else left)
            while self._commands:
                self._scheduler.post(self._commands.popleft())
        return not self._is_stopping
