"""The worker's heartbeat: one plain thread that plans, executes and takes in steps.

The only thread that touches the engine. Commands come in through `post` from any thread; everything goes out
through one callback, called in this thread, once per step: of a step that another one follows while that one
computes, so that neither its outputs nor whoever they wake hold the device up. Knows nothing of asyncio,
streams or devices.
"""

import threading
import time
from collections import deque
from collections.abc import Callable
from functools import partial
from math import inf
from typing import Any

from worker.engine.batch import StepResult
from worker.engine.batch_builder import build_ahead, build_batch
from worker.engine.commands import Command, SnapshotKv
from worker.engine.outputs import StepOutputs
from worker.engine.step_plan import StepPlan
from worker.engine.step_scheduler import StepScheduler
from worker.executors.base import Executor, OverlappingExecutor


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
        on_step: Given the outputs of each step that has any, in order; the first one comes at once.
        on_fault: Given what ended the loop, unless `stop` did. All live requests are lost.
        """
        self._scheduler = scheduler
        self._executor = executor
        self._overlapping = executor if isinstance(executor, OverlappingExecutor) else None
        self._on_step = on_step
        self._on_fault = on_fault
        self._clock = clock
        self._commands: deque[Command] = deque()
        self._wake = threading.Condition()
        self._is_stopping = False
        self._may_go_on = True
        """The last step computed something, so the next plan may differ without any command."""
        self._planned: StepPlan | None = None
        """Planned before the last step was told."""
        self._launched: Any = None
        """Of that plan, where the device has it already: before the last step was taken in."""
        self._untold: Callable[[], StepOutputs] | None = None
        """Makes the outputs of the last step, which are not handed over yet."""
        self._working_since: float | None = None
        self._thread = threading.Thread(target=self._run, name="step-loop", daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def post(self, command: Command) -> None:
        """Hand a command over, from any thread; it acts before the next step that is not planned yet."""
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
            while self._wait_for_work():
                self._iterate()
            self._hand_over()
        except Exception as fault:
            # The edge of the engine: nothing of it can be trusted after an unexpected error.
            self._on_fault(fault)

    def _iterate(self, *, is_first: bool = False) -> None:
        scheduler = self._scheduler
        # 2. Plan: ends, starts, preemptions, rows.
        plan = self._next_plan()
        self._may_go_on = plan.num_rows > 0
        if not plan.num_rows:
            # 3. Nothing to compute: tell what there is to tell (the first time also that we are here).
            self._hand_over()
            outputs = scheduler.apply(plan, None, self._clock())
            if plan.has_outputs or is_first:
                self._on_step(outputs)
            return
        # 4. Execute. From here until `take_in` the engine does not change; meanwhile the step before is told.
        started = self._clock()
        if self._working_since is None:
            self._working_since = started
        result = self._compute(plan)
        assert self._untold is None, "the executor has left out what was to be done meanwhile"
        finished = self._clock()
        # 5. Take the result in. Where all go on, the next step need not wait for this one to be told.
        scheduler.take_in(plan, result, finished)
        self._working_since = finished if scheduler.num_live else None
        tell = partial(scheduler.tell, plan, finished, finished - started)
        if self._planned is None and not self._commands:
            self._planned = scheduler.plan_on(finished)
        if self._planned is None:
            outputs = tell()
            self._untold = lambda: outputs
        else:
            self._untold = tell

    def _compute(self, plan: StepPlan) -> StepResult:
        """Execute a plan; a device that works by itself gets the next step before this one has ended."""
        executor = self._overlapping
        if executor is None:
            return self._executor.execute(build_batch(plan), self._hand_over)
        launched, self._launched = self._launched, None
        if launched is None:
            launched = executor.launch(build_batch(plan))
        self._hand_over()
        # A command waits for no more than the step that runs and the one behind it.
        is_asked = self._commands or self._is_stopping
        ahead = None if is_asked else self._scheduler.plan_ahead(self._clock())
        if ahead is not None:
            self._planned = ahead[0]
            self._launched = executor.launch(build_ahead(*ahead))
        return executor.collect(launched)

    def _next_plan(self) -> StepPlan:
        """Return the plan that is made already, or give the scheduler what has been asked for, and plan."""
        if self._planned is not None:
            plan, self._planned = self._planned, None
            return plan
        with self._wake:
            commands = list(self._commands)
            self._commands.clear()
        for command in commands:
            if isinstance(command, SnapshotKv):
                # Its answer stands for all that was told before.
                self._hand_over()
            self._scheduler.post(command)
        return self._scheduler.plan(self._clock())

    def _hand_over(self) -> None:
        """Hand over the outputs of the last step, unless they have been."""
        if self._untold is not None:
            tell, self._untold = self._untold, None
            self._on_step(tell())

    def _wait_for_work(self) -> bool:
        """Sleep while there is nothing to do. Returns False when woken to stop."""
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
        return not self._is_stopping
